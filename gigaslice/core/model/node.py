# SPDX-License-Identifier: Apache-2.0
"""The state of one node: its GPUs, how they are joined, and what is taken of them.

`NodeState` is a value. Taking and releasing return a new one, so a decision can try "what if" without an undo, and a
state depends on the set of its occupants only, never on the order in which they came. It decides nothing: that is
`gigaslice.core.placement`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from gigaslice.core.errors import (
    DuplicateOccupantError,
    OvercommitError,
    StateError,
    UnknownGpuError,
    UnknownOccupantError,
)
from gigaslice.core.model.gpu import CORES_PER_GPU, Gpu
from gigaslice.core.model.request import Placement, Share
from gigaslice.core.model.topology import Topology


@dataclass(frozen=True, slots=True)
class Occupant:
    """What one name holds. name: any name unique on the node."""

    name: str
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Pool:
    """The GPUs of one model and slice count; a request is never spread over two pools (Gaia III-A).

    members: positions in `NodeState.gpus`, ascending.
    """

    model: str
    slices: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """What is taken, by position in `NodeState.gpus`: slices, compute share in per cent, occupants (sorted)."""

    slices: tuple[int, ...]
    cores: tuple[int, ...]
    holders: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node. Build it with `build`; the fields are sorted (GPUs by index, allocations by name)."""

    gpus: tuple[Gpu, ...]
    topology: Topology
    occupants: tuple[Occupant, ...] = ()

    @classmethod
    def build(
        cls, gpus: Iterable[Gpu], topology: Topology, occupants: Iterable[Occupant] = ()
    ) -> "NodeState":
        """Return a state; row i of `topology` belongs to the i-th of `gpus`, which may come in any order.

        Allocations are taken as recorded: one on a GPU that has vanished, or more than a GPU has since
        slices were reconfigured, is kept and simply leaves nothing free. StateError when sizes, UUIDs or occupants
        contradict.
        """
        given = tuple(gpus)
        if topology.size != len(given):
            raise StateError(
                f"topology of {topology.size} GPUs for a node of {len(given)}; scan both together"
            )
        order = sorted(range(len(given)), key=lambda position: given[position].index)
        ordered = tuple(given[position] for position in order)
        if len({gpu.uuid for gpu in ordered}) != len(ordered):
            raise StateError("two GPUs have the same UUID; the driver or the inventory file lists one twice")
        held = tuple(sorted(occupants, key=lambda occupant: occupant.name))
        for occupant, other in pairwise(held):
            if occupant.name == other.name:
                raise DuplicateOccupantError(f"occupant {occupant.name} is recorded twice")
        in_order = order == list(range(len(given)))
        return cls(ordered, topology if in_order else topology.reordered(order), held)

    def with_occupant(self, name: str, placement: Placement, *, overcommit: bool = False) -> "NodeState":
        """Return the state after `name` took `placement`, all of it or none.

        UnknownGpuError, DuplicateOccupantError; OvercommitError where a GPU has not that much left, unless
        `overcommit` (a placement that waits until there is room).
        """
        if any(occupant.name == name for occupant in self.occupants):
            raise DuplicateOccupantError(f"occupant {name} already holds GPUs here; release it first")
        usage = self.usage()
        for share in placement.shares:
            self._check_share(name, share, usage, overcommit)
        taken = Occupant(name, placement.shares)
        return replace(
            self, occupants=tuple(sorted((*self.occupants, taken), key=lambda occupant: occupant.name))
        )

    def _check_share(self, name: str, share: Share, usage: Usage, overcommit: bool) -> None:
        position = self.position(share.gpu)
        if overcommit:
            return
        free = self.gpus[position].slices - usage.slices[position]
        free_cores = CORES_PER_GPU - usage.cores[position]
        if share.slices > free or share.cores > free_cores:
            raise OvercommitError(
                f"occupant {name} takes {share.slices} slices and {share.cores}% of {share.gpu}, "
                f"which has {free} slices and {free_cores}% left"
            )

    def without(self, name: str) -> "NodeState":
        """Return the state after `name` released everything; UnknownOccupantError if it holds nothing."""
        kept = tuple(occupant for occupant in self.occupants if occupant.name != name)
        if len(kept) == len(self.occupants):
            raise UnknownOccupantError(f"occupant {name} holds nothing here")
        return replace(self, occupants=kept)

    def with_health(self, uuid: str, healthy: bool) -> "NodeState":
        """Return the state with one GPU unhealthy or well; its holders keep their slices. UnknownGpuError."""
        position = self.position(uuid)
        gpu = replace(self.gpus[position], healthy=healthy)
        return replace(self, gpus=(*self.gpus[:position], gpu, *self.gpus[position + 1 :]))

    def position(self, uuid: str) -> int:
        """Return the position of a GPU in `gpus`; UnknownGpuError."""
        for position, gpu in enumerate(self.gpus):
            if gpu.uuid == uuid:
                return position
        raise UnknownGpuError(f"this node has no GPU {uuid}")

    def gpu(self, uuid: str) -> Gpu:
        """Return a GPU; UnknownGpuError."""
        return self.gpus[self.position(uuid)]

    def occupant(self, name: str) -> Occupant:
        """Return what a name holds; UnknownOccupantError."""
        for occupant in self.occupants:
            if occupant.name == name:
                return occupant
        raise UnknownOccupantError(f"occupant {name} holds nothing here")

    def usage(self) -> Usage:
        """Return what is taken on every GPU. Allocations on GPUs that have vanished count nowhere."""
        positions = {gpu.uuid: position for position, gpu in enumerate(self.gpus)}
        slices, cores = [0] * len(self.gpus), [0] * len(self.gpus)
        holders: list[list[str]] = [[] for _ in self.gpus]
        for occupant in self.occupants:
            for share in occupant.shares:
                position = positions.get(share.gpu)
                if position is not None:
                    slices[position] += share.slices
                    cores[position] += share.cores
                    holders[position].append(occupant.name)
        return Usage(tuple(slices), tuple(cores), tuple(tuple(occupants) for occupants in holders))

    def free(self, uuid: str) -> int:
        """Return the slices of a GPU that can be given out: none while it is unhealthy. UnknownGpuError."""
        position = self.position(uuid)
        gpu = self.gpus[position]
        return max(0, gpu.slices - self.usage().slices[position]) if gpu.healthy else 0

    def pools(self) -> tuple[Pool, ...]:
        """Return the pools, smallest GPUs first and then by model name."""
        members: dict[tuple[int, str], list[int]] = {}
        for position, gpu in enumerate(self.gpus):
            members.setdefault((gpu.slices, gpu.model), []).append(position)
        return tuple(Pool(model, slices, tuple(gpus)) for (slices, model), gpus in sorted(members.items()))
