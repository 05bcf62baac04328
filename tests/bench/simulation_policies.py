"""The ways to choose node and GPUs that the simulation compares; each remembers what it has given out.

Others' are written anew from what their sources say, and only that part: scores, orders, limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol

from gigaslice.model import NodeState, Placement, Request, Share
from gigaslice.placement import pair_score, place
from tests.bench.simulation_traces import Job

Chosen = tuple[str, tuple[int, ...]]
"""A node and its GPUs, by index."""


class Scheduler(Protocol):
    """One way to choose."""

    def start(self, job: Job) -> Chosen | None:
        """Gives GPUs to a job, or leaves it waiting."""

    def end(self, job: Job, chosen: Chosen) -> Iterable[tuple[Job, Chosen]]:
        """Takes them back; jobs that start in their place without another decision of the scheduler."""

    def stuck(self) -> int:
        """Jobs that have been given a node, and got no GPU of it when they came."""


@dataclass(slots=True)
class Machine:
    """A node with what is left on its GPUs."""

    name: str
    state: NodeState
    free: list[int] = field(init=False)
    jobs: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.free = [gpu.slices for gpu in self.state.gpus]
        self.jobs = [0] * len(self.free)

    def fitting(self, slices: int) -> list[int]:
        return [gpu for gpu, free in enumerate(self.free) if free >= slices]

    def take(self, job: Job, gpus: Iterable[int], sign: int = 1) -> None:
        for gpu in gpus:
            self.free[gpu] -= sign * job.slices
            self.jobs[gpu] += sign


class _ByGpu:
    """Decides by GPU, so that what is given a node has its GPUs too."""

    def __init__(self, nodes: dict[str, NodeState]) -> None:
        self.machines = {name: Machine(name, state) for name, state in nodes.items()}

    def start(self, job: Job) -> Chosen | None:
        chosen = self.choose(job)
        if chosen is not None:
            self.machines[chosen[0]].take(job, chosen[1])
        return chosen

    def end(self, job: Job, chosen: Chosen) -> Iterator[tuple[Job, Chosen]]:
        self.machines[chosen[0]].take(job, chosen[1], -1)
        return iter(())

    def stuck(self) -> int:
        return 0

    def choose(self, job: Job) -> Chosen | None:
        raise NotImplementedError


class FirstFit(_ByGpu):
    """The first node by name that has the GPUs, and the first of them by number."""

    def choose(self, job: Job) -> Chosen | None:
        for machine in self.machines.values():
            fitting = machine.fitting(job.slices)
            if len(fitting) >= job.gpus:
                return machine.name, tuple(fitting[: job.gpus])
        return None


class Hami(_ByGpu):
    """HAMi: a score of nodes and one of GPUs, in both of which more is fuller; NUMA nodes come before scores.

    Either policy is used for nodes and GPUs alike. A GPU takes ten jobs at most, HAMi's default.
    """

    MOST_JOBS = 10

    def __init__(self, nodes: dict[str, NodeState], *, pack: bool) -> None:
        super().__init__(nodes)
        self._sign = -1 if pack else 1

    def choose(self, job: Job) -> Chosen | None:
        best: tuple[tuple[float, str], Chosen] | None = None
        for machine in self.machines.values():
            gpus = self._gpus(machine, job)
            if gpus is not None:
                key = (self._sign * self._full(machine), machine.name)
                if best is None or key < best[0]:
                    best = (key, (machine.name, gpus))
        return None if best is None else best[1]

    def _full(self, machine: Machine) -> float:
        slices = sum(gpu.slices for gpu in machine.state.gpus)
        return sum(machine.jobs) / (self.MOST_JOBS * len(machine.jobs)) + 1 - sum(machine.free) / slices

    def _gpus(self, machine: Machine, job: Job) -> tuple[int, ...] | None:
        fitting = [gpu for gpu in machine.fitting(job.slices) if machine.jobs[gpu] < self.MOST_JOBS]
        if len(fitting) < job.gpus:
            return None

        def key(gpu: int) -> tuple[int, float, int]:
            one = machine.state.gpus[gpu]
            full = machine.jobs[gpu] / self.MOST_JOBS + 1 - machine.free[gpu] / one.slices
            return -self._sign * (one.numa_node or 0), self._sign * full, gpu

        return tuple(sorted(sorted(fitting, key=key)[: job.gpus]))


class Gaia(_ByGpu):
    """Ours: the node by the keys of the placement code, and its GPUs by the same code."""

    def __init__(self, nodes: dict[str, NodeState]) -> None:
        super().__init__(nodes)
        self._known: dict[object, tuple[tuple[int, ...], tuple[int, ...]] | None] = {}

    def start(self, job: Job) -> Chosen | None:
        chosen = super().start(job)
        if chosen is not None:
            machine = self.machines[chosen[0]]
            shares = tuple(Share(machine.state.gpus[gpu].uuid, job.slices) for gpu in chosen[1])
            machine.state = machine.state.with_occupant(str(job.number), Placement(shares))
        return chosen

    def end(self, job: Job, chosen: Chosen) -> Iterator[tuple[Job, Chosen]]:
        machine = self.machines[chosen[0]]
        machine.state = machine.state.without(str(job.number))
        return super().end(job, chosen)

    def choose(self, job: Job) -> Chosen | None:
        best: tuple[tuple[tuple[int, ...], str], Chosen] | None = None
        for machine in self.machines.values():
            if len(machine.fitting(job.slices)) < job.gpus:
                continue
            found = self._rated(machine, job)
            if found is not None and (best is None or (found[0], machine.name) < best[0]):
                best = ((found[0], machine.name), (machine.name, found[1]))
        return None if best is None else best[1]

    def _rated(self, machine: Machine, job: Job) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        known = (
            machine.state.topology,
            tuple(machine.free),
            tuple(map(bool, machine.jobs)),
            job.gpus,
            job.slices,
        )
        if known not in self._known:
            self._known[known] = self._rate(machine, job)
        return self._known[known]

    def _rate(self, machine: Machine, job: Job) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        state = machine.state
        found = place(state, Request(gpus=job.gpus, slices=job.slices))
        if not isinstance(found, Placement):
            return None
        gpus = tuple(state.position(uuid) for uuid in found.uuids)
        whole = sum(not jobs for jobs in machine.jobs)
        opened = sum(not machine.jobs[gpu] for gpu in gpus)
        left = sum(machine.free[gpu] - job.slices for gpu in gpus)
        scores = [pair_score(state.topology, one, other) for one, other in combinations(gpus, 2)]
        if job.gpus > 1:
            return (-min(scores), -sum(scores), opened, whole), gpus
        if job.slices < state.gpus[0].slices:
            return (opened, left, whole), gpus
        return (whole,), gpus


@dataclass(slots=True)
class _Bound:
    """A node that counts its slices alone."""

    state: NodeState
    left: int
    waiting: list[Job] = field(default_factory=list)


class NodeSums:
    """What a stock scheduler does with one number for each node: best fit by what is left of it altogether.

    The agent then places what came, and what finds no GPU waits on the node: nothing moves it to another one.
    """

    def __init__(self, nodes: dict[str, NodeState]) -> None:
        self._nodes = {
            name: _Bound(state, sum(gpu.slices for gpu in state.gpus)) for name, state in nodes.items()
        }
        self._stuck = 0

    def start(self, job: Job) -> Chosen | None:
        size = job.gpus * job.slices
        fitting = [(node.left, name) for name, node in self._nodes.items() if node.left >= size]
        if not fitting:
            return None
        _, name = min(fitting)
        node = self._nodes[name]
        node.left -= size
        gpus = self._placed(name, job)
        if gpus is None:
            self._stuck += 1
            node.waiting.append(job)
            return name, ()
        return name, gpus

    def end(self, job: Job, chosen: Chosen) -> Iterator[tuple[Job, Chosen]]:
        name = chosen[0]
        node = self._nodes[name]
        node.left += job.gpus * job.slices
        node.state = node.state.without(str(job.number))
        for one in list(node.waiting):
            gpus = self._placed(name, one)
            if gpus is not None:
                node.waiting.remove(one)
                yield one, (name, gpus)

    def stuck(self) -> int:
        return self._stuck

    def _placed(self, name: str, job: Job) -> tuple[int, ...] | None:
        node = self._nodes[name]
        found = place(node.state, Request(gpus=job.gpus, slices=job.slices))
        if not isinstance(found, Placement):
            return None
        node.state = node.state.with_occupant(str(job.number), found)
        return tuple(node.state.position(uuid) for uuid in found.uuids)
