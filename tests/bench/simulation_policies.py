# SPDX-License-Identifier: Apache-2.0
"""The ways to choose node and GPUs that the simulation compares; each remembers what it has given out.

Others' are written anew from what their sources say, and only that part: scores, orders, limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.inventory import InventoryGpu, NodeInventory
from gigaslice.core.cluster.names import GPU_RESOURCE, MEMORY_RESOURCE
from gigaslice.core.cluster.state import ClusterState, NodeFacts
from gigaslice.core.model import NodeState, Placement, Pod, PodContainer, Request
from gigaslice.core.placement import place
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


class _ByGpu(ABC):
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

    @abstractmethod
    def choose(self, job: Job) -> Chosen | None: ...


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


class Gigaslice:
    """Ours: the scheduler's own state of the cluster, asked as kube-scheduler does: filter, rank, choose."""

    def __init__(self, nodes: dict[str, NodeState]) -> None:
        self._state = ClusterState()
        self._demands: dict[tuple[int, int], PodDemand] = {}
        for name, node in nodes.items():
            gpus = tuple(InventoryGpu(gpu) for gpu in node.gpus)
            self._state.put_node(NodeFacts(name, NodeInventory(gpus, node.topology).encode()))
        self._nodes = nodes

    def start(self, job: Job) -> Chosen | None:
        demand = self._demand(job)
        fitting, _ = self._state.filter(demand, self._state.nodes)
        if not fitting:
            return None
        (name,) = self._state.best(demand, fitting, 1)
        found = self._state.choose(demand, name)
        if not isinstance(found, Assignment):
            raise AssertionError(found.text)
        self._state.reserve(str(job.number), name, found, demand)
        return name, tuple(self._nodes[name].position(share.gpu) for share in found.containers["main"])

    def end(self, job: Job, chosen: Chosen) -> Iterator[tuple[Job, Chosen]]:
        del chosen
        self._state.release(str(job.number))
        return iter(())

    def stuck(self) -> int:
        return 0

    def _demand(self, job: Job) -> PodDemand:
        """What a pod of that shape asks for: whole GPUs by their resource, parts in slices."""
        shape = (job.gpus, job.slices)
        if shape not in self._demands:
            whole = job.slices == next(iter(self._nodes.values())).gpus[0].slices
            asks = {GPU_RESOURCE: job.gpus} if whole else {MEMORY_RESOURCE: job.gpus * job.slices}
            annotations = {} if whole else {"gigaslice.io/gpus": str(job.gpus)}
            pod = Pod("jobs", "job", "job", annotations, (PodContainer("main", requests=asks),))
            demand = self._state.demand_of(pod)
            if not isinstance(demand, PodDemand):
                raise AssertionError(demand.text)
            self._demands[shape] = demand
        return self._demands[shape]


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
