# SPDX-License-Identifier: Apache-2.0
"""One node as the cluster's state keeps it: its GPUs, and what the pods on it leave of them. Pure.

The room is counted anew from everything that holds GPUs here whenever any of it changes; nothing is added up over time,
so nothing can drift. Of a pod that came without an assignment the agent says what it holds, as soon as it has chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from gigaslice.core.cluster.hardware import NOTHING, GpuRoom, Hardware, HardwareKinds, NodeKind, NodeRoom
from gigaslice.core.cluster.holding import HeldShare, Holding, PodConsumer
from gigaslice.core.cluster.inventory import InventoryFormatError, InventoryGpu, NodeInventory
from gigaslice.core.cluster.refusal import RefusalReason
from gigaslice.core.model import CORES_PER_GPU, AnnotationRights, Infeasible, Pod, RequestOptions

__all__ = ["NodeFacts", "NodeRecord"]


@dataclass(frozen=True)  # without slots, which weak references need
class NodeFacts:
    """What the API server says about a node.

    Attributes:
        name: Its name.
        inventory_text: The annotation of its agent; None where there is none.
        inventory: What it says; None where there is none or it cannot be read.
        mistake: Why it cannot be read; empty where it can be.
        schedulable: False while it is cordoned.
        ready: Whether its kubelet says so.
        labels: Of the Node object.
    """

    name: str
    inventory_text: str | None = None
    schedulable: bool = True
    ready: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    inventory: NodeInventory | None = field(init=False, compare=False, default=None)
    mistake: str = field(init=False, compare=False, default="")

    def __post_init__(self) -> None:
        last = _LAST.get(self.name)
        _LAST[self.name] = self
        if last is not None and last.inventory_text == self.inventory_text:
            self.__dict__.update({key: getattr(last, key) for key in _DECODED})
        elif self.inventory_text is not None:
            try:
                self.__dict__["inventory"] = NodeInventory.decode(self.inventory_text)
            except InventoryFormatError as error:
                self.__dict__["mistake"] = str(error)


_DECODED = ("inventory_text", "inventory", "mistake")
_LAST: WeakValueDictionary[str, NodeFacts] = WeakValueDictionary()
"""The last facts of each node: a Node changes with every heartbeat, and its inventory seldom."""


@dataclass(slots=True)
class NodeRecord:
    """A node and everything that counts on it.

    Attributes:
        facts: As they came last.
        registered: The API server has it; before, only pods on it may be there.
        problem: Why its GPUs are not known; None where they are.
        gpus: By index.
        kind: What it has in common with others.
        rights: Which annotations of pods its agent takes.
        positions: Their numbers, by UUID.
        unhealthy: The set of those that get no containers.
        listed: What the agent says is held, of pods without an assignment.
        exclusive: The GPUs that a pod was given for itself, by UID, where its agent says so of a pod.
        lent: The same for GPUs whose lent host memory it may use.
        bound: What is held by assignments, by the holding's id.
        pending: Bound pods without an assignment, by UID.
        unplaced: What is counted for them, by UID.
        reserved: What is chosen for pods that are not bound yet, by UID.
        unread: Bound pods that cannot be read, by UID: they may hold anything here.
        masks: The GPUs of each class that has been looked at and tells nodes of one kind apart.
        room: What all of them leave; None while it has to be counted anew.
    """

    facts: NodeFacts
    registered: bool = False
    problem: RefusalReason | None = RefusalReason.NO_INVENTORY
    gpus: tuple[InventoryGpu, ...] = ()
    kind: NodeKind | None = None
    rights: AnnotationRights = AnnotationRights.REFUSE
    positions: Mapping[str, int] = field(default_factory=dict)
    unhealthy: int = 0
    listed: tuple[Holding, ...] = ()
    exclusive: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bound: dict[str, Holding] = field(default_factory=dict)
    pending: dict[str, Pod] = field(default_factory=dict)
    unplaced: dict[str, Holding] = field(default_factory=dict)
    reserved: dict[str, Holding] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    masks: dict[str, int] = field(default_factory=dict)
    room: NodeRoom | None = None

    @property
    def hardware(self) -> Hardware | None:
        """Its GPUs without their names; None where they are not known."""
        return self.kind.hardware if self.kind is not None else None

    def holdings(self) -> list[Holding]:
        """Returns everything that counts, each holding once.

        A pod counts by its assignment, and by what its agent lists where that is not what it was assigned: then its
        annotation says something else than its agent has recorded.
        """
        by_id = {**self.reserved, **self.unplaced, **self.bound}
        for listed in self.listed:
            counted = by_id.get(listed.id)
            by_id[listed.id] = (
                listed if counted is None or counted.reserved else replace(counted, shares=listed.shares)
            )
        for name in {*self.exclusive, *self.lent} if self.exclusive or self.lent else ():
            if name in by_id:
                by_id[name] = self._as_recorded(by_id[name])
        return list(by_id.values())

    def closed(self, without: Collection[str] = ()) -> bool:
        """Whether a pod is on it of which neither an assignment nor the agent says what it holds.

        Args:
            without: UIDs of pods to be left out of account.
        """
        return bool(self.unread) and bool(
            self.unread.difference(without, (holding.id for holding in self.listed))
        )

    def _as_recorded(self, holding: Holding) -> Holding:
        """Returns a holding with what its agent has recorded of it, whatever annotations say by now."""
        alone, host = self.exclusive.get(holding.id), self.lent.get(holding.id)
        shares = (
            share._replace(
                exclusive=share.exclusive if alone is None else share.gpu in alone,
                host=share.host if host is None else share.gpu in host,
            )
            for share in holding.shares
        )
        return replace(holding, shares=tuple(shares))

    def current_room(self) -> NodeRoom:
        """Returns what is left on its GPUs."""
        if self.room is None:
            self.room = self.room_without(())
        return self.room

    def room_without(self, uids: Collection[str]) -> NodeRoom:
        """Returns what would be left if some pods were gone."""
        hardware = self.hardware
        if hardware is None:
            return ()
        size = len(hardware.gpus)
        used, real, cores = [0] * size, [0] * size, [0] * size
        held, shut = 0, hardware.all_gpus if self.closed(uids) else self.unhealthy
        positions, lends = self.positions, hardware.lends
        for holding in self.holdings():
            if uids and holding.ends_with(uids):
                continue
            for uuid, slices, share, exclusive, host in holding.shares:
                gpu = positions.get(uuid)
                if gpu is None:
                    continue
                used[gpu] += slices
                if lends:
                    real[gpu] += hardware.real_slices(gpu, slices, host)
                cores[gpu] += share
                held |= 1 << gpu
                if exclusive:
                    shut |= 1 << gpu
        return tuple(
            NOTHING
            if shut >> number & 1
            else GpuRoom(
                max(0, gpu.slices - used[number]),
                max(0, own.slices - (real if lends else used)[number]),
                max(0, CORES_PER_GPU - cores[number]),
                bool(held >> number & 1),
            )
            for number, (gpu, own) in enumerate(zip(hardware.gpus, hardware.own, strict=True))
        )

    def read_inventory(self, kinds: HardwareKinds) -> None:
        """Takes its GPUs from its annotation."""
        self.gpus, self.positions, self.listed, self.unhealthy, self.kind = (), {}, (), 0, None
        self.exclusive, self.lent = {}, {}
        self.masks.clear()
        inventory = self.facts.inventory
        if inventory is None or not inventory.gpus:
            unreadable = bool(self.facts.mistake)
            self.problem = RefusalReason.UNREADABLE_INVENTORY if unreadable else RefusalReason.NO_INVENTORY
            return
        order = sorted(range(len(inventory.gpus)), key=lambda number: inventory.gpus[number].gpu.index)
        self.gpus = tuple(inventory.gpus[number] for number in order)
        self.problem, self.rights = None, inventory.rights
        self.exclusive, self.lent = inventory.exclusive, inventory.lent
        self.positions = {gpu.gpu.uuid: number for number, gpu in enumerate(self.gpus)}
        self.unhealthy = sum(1 << number for number, gpu in enumerate(self.gpus) if gpu.unhealthy)
        self.listed = tuple(
            Holding(
                occupant.name,
                tuple(HeldShare(share.gpu, share.slices, share.cores) for share in occupant.shares),
                (PodConsumer(occupant.name),),  # as far as is known here: a pod that nothing has shown yet
            )
            for occupant in inventory.held
        )
        in_order = order == list(range(len(order)))
        hardware = kinds.kind(
            [gpu.gpu for gpu in self.gpus],
            inventory.topology if in_order else inventory.topology.reordered(order),
            [gpu.resource for gpu in self.gpus],
            inventory.whole_resource,
        )
        self.kind = kinds.alike(
            hardware, [gpu.properties for gpu in self.gpus], [gpu.gpu.numa_node for gpu in self.gpus]
        )

    def allowed(self, options: RequestOptions) -> int:
        """Returns the GPUs that a container's annotations allow."""
        if not options.limits_gpus:
            return (1 << len(self.gpus)) - 1
        uuids = options.allowed_gpus([gpu.gpu for gpu in self.gpus])
        return 0 if isinstance(uuids, Infeasible) else sum(1 << self.positions[uuid] for uuid in uuids)

    def wherever_there_is_room(self, slices: int) -> tuple[HeldShare, ...]:
        """Returns shares of so many slices on the emptiest GPUs, as far as there is room."""
        room, shares = self.current_room(), []
        for gpu in sorted(range(len(room)), key=lambda gpu: -room[gpu].free):
            part = min(slices, room[gpu].free)
            if part > 0:
                slices -= part
                shares.append(HeldShare(self.gpus[gpu].gpu.uuid, part))
        return tuple(shares)
