"""The state of one node: its GPUs, how they are joined, and who holds what.

`NodeState` is a value. Allocating and releasing return a new one, so a decision can ask "what if" without an
undo, and a state depends on the set of its jobs only, never on the order in which they came. It holds no
opinion on what should happen: that is `agent.placement`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from agent.errors import DuplicateJobError, OvercommitError, StateError, UnknownGpuError, UnknownJobError
from agent.model.gpu import CORES_PER_CARD, Gpu
from agent.model.request import Placement, Share
from agent.model.topology import Topology


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one job holds. job: any name unique on the node. elastic, max_slices: as in Request."""

    job: str
    shares: tuple[Share, ...]
    elastic: bool = False
    max_slices: int | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """The cards of one model and slice count; a request is never spread over two pools (Gaia III-A).

    members: positions in `NodeState.gpus`, ascending.
    """

    model: str
    slices: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """What is taken, by position in `NodeState.gpus`: slices, compute share in per cent, jobs (sorted)."""

    slices: tuple[int, ...]
    cores: tuple[int, ...]
    holders: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node. Build it with `build`; the fields are sorted (GPUs by index, allocations by job)."""

    gpus: tuple[Gpu, ...]
    topology: Topology
    allocations: tuple[Allocation, ...] = ()

    @classmethod
    def build(
        cls, gpus: Iterable[Gpu], topology: Topology, allocations: Iterable[Allocation] = ()
    ) -> "NodeState":
        """Return a state; row i of `topology` belongs to the i-th of `gpus`, which may come in any order.

        Allocations are taken as recorded: one on a GPU that has vanished, or more than a card has since
        slices were reconfigured, is kept and simply leaves nothing free. StateError when sizes, UUIDs or jobs
        contradict.
        """
        given = tuple(gpus)
        if topology.size != len(given):
            raise StateError(
                f"topology of {topology.size} GPUs for a node of {len(given)}; scan both together"
            )
        order = sorted(range(len(given)), key=lambda position: given[position].index)
        cards = tuple(given[position] for position in order)
        if len({card.uuid for card in cards}) != len(cards):
            raise StateError("two GPUs have the same UUID; the driver or the inventory file lists one twice")
        held = tuple(sorted(allocations, key=lambda allocation: allocation.job))
        for one, other in pairwise(held):
            if one.job == other.job:
                raise DuplicateJobError(f"job {one.job} is recorded twice")
        in_order = order == list(range(len(given)))
        return cls(cards, topology if in_order else topology.reordered(order), held)

    def with_allocation(
        self,
        job: str,
        placement: Placement,
        *,
        elastic: bool = False,
        max_slices: int | None = None,
        overcommit: bool = False,
    ) -> "NodeState":
        """Return the state after `job` took `placement`, all of it or none.

        UnknownGpuError, DuplicateJobError; OvercommitError where a card has not that much left, unless
        `overcommit` (a placement that waits behind the start gate).
        """
        if any(allocation.job == job for allocation in self.allocations):
            raise DuplicateJobError(f"job {job} already holds cards here; release it first")
        usage = self.usage()
        for share in placement.shares:
            self._check_share(job, share, usage, overcommit)
        taken = Allocation(job, placement.shares, elastic, max_slices)
        return replace(self, allocations=tuple(sorted((*self.allocations, taken), key=lambda one: one.job)))

    def _check_share(self, job: str, share: Share, usage: Usage, overcommit: bool) -> None:
        position = self.position(share.gpu)
        if overcommit:
            return
        free = self.gpus[position].slices - usage.slices[position]
        free_cores = CORES_PER_CARD - usage.cores[position]
        if share.slices > free or share.cores > free_cores:
            raise OvercommitError(
                f"job {job} takes {share.slices} slices and {share.cores}% of {share.gpu}, "
                f"which has {free} slices and {free_cores}% left"
            )

    def without(self, job: str) -> "NodeState":
        """Return the state after `job` released everything; UnknownJobError if it holds nothing."""
        kept = tuple(allocation for allocation in self.allocations if allocation.job != job)
        if len(kept) == len(self.allocations):
            raise UnknownJobError(f"job {job} holds nothing here")
        return replace(self, allocations=kept)

    def with_health(self, uuid: str, healthy: bool) -> "NodeState":
        """Return the state with one card sick or well; its holders keep their slices. UnknownGpuError."""
        position = self.position(uuid)
        card = replace(self.gpus[position], healthy=healthy)
        return replace(self, gpus=(*self.gpus[:position], card, *self.gpus[position + 1 :]))

    def position(self, uuid: str) -> int:
        """Return the position of a card in `gpus`; UnknownGpuError."""
        for position, card in enumerate(self.gpus):
            if card.uuid == uuid:
                return position
        raise UnknownGpuError(f"this node has no GPU {uuid}")

    def gpu(self, uuid: str) -> Gpu:
        """Return a card; UnknownGpuError."""
        return self.gpus[self.position(uuid)]

    def allocation(self, job: str) -> Allocation:
        """Return what a job holds; UnknownJobError."""
        for allocation in self.allocations:
            if allocation.job == job:
                return allocation
        raise UnknownJobError(f"job {job} holds nothing here")

    def usage(self) -> Usage:
        """Return what is taken on every card. Allocations on cards that have vanished count nowhere."""
        positions = {card.uuid: position for position, card in enumerate(self.gpus)}
        slices, cores = [0] * len(self.gpus), [0] * len(self.gpus)
        holders: list[list[str]] = [[] for _ in self.gpus]
        for allocation in self.allocations:
            for share in allocation.shares:
                position = positions.get(share.gpu)
                if position is not None:
                    slices[position] += share.slices
                    cores[position] += share.cores
                    holders[position].append(allocation.job)
        return Usage(tuple(slices), tuple(cores), tuple(tuple(jobs) for jobs in holders))

    def free(self, uuid: str) -> int:
        """Return the slices of a card that can be given out: none while it is sick. UnknownGpuError."""
        position = self.position(uuid)
        card = self.gpus[position]
        return max(0, card.slices - self.usage().slices[position]) if card.healthy else 0

    def pools(self) -> tuple[Pool, ...]:
        """Return the pools, smallest cards first and then by model name."""
        members: dict[tuple[int, str], list[int]] = {}
        for position, card in enumerate(self.gpus):
            members.setdefault((card.slices, card.model), []).append(position)
        return tuple(Pool(model, slices, tuple(cards)) for (slices, model), cards in sorted(members.items()))
