# SPDX-License-Identifier: Apache-2.0
"""What this node has, as the rest of the cluster is told it: GPUs, health, what is free, and who holds what.

`node_inventory` makes the value, `InventoryPublisher` follows what it depends on: the GPUs and the allocation table.
What an assignment has put on a GPU is in the annotation of its pod. So an allocation that came of one is left out
here for as long as the API server shows that pod; any other counts by what this node says of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from agent.allocation.assignments import shares_in
from agent.apiserver import Cluster
from agent.inventory.holder import InventoryHolder
from agent.inventory.source import Inventory
from agent.persistence.store import Store
from gigaslice.core.allocation.availability import availability
from gigaslice.core.allocation.consumer import Consumer
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.cluster.inventory import InventoryGpu, NodeInventory
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.cluster.pod_holdings import EXCLUSIVE, OVERSUBSCRIBE
from gigaslice.core.model import CORES_PER_GPU, AnnotationRights, Gpu, Occupant, Pod, Share
from gigaslice.runtime.wakeup import Alarm

__all__ = ["InventoryPublisher", "node_inventory"]

_TOGETHER = 0.1  # seconds in which changes become one
_POLL = 5.0  # seconds; changes of the table and of the GPUs ring an alarm
_NOT_THERE = "not there, or declared unhealthy"


class InventoryPublisher:
    """Has the cluster told what the node has, whenever that changes."""

    def __init__(
        self,
        store: Store,
        gpus: InventoryHolder,
        cluster: Cluster,
        *,
        reason: Callable[[str], str],
        resource: Callable[[Gpu], str],
        whole_resource: str,
        labels: Mapping[str, Mapping[str, str]],
        watch: Callable[[Callable[[], None]], Callable[[], None]],
        rights: AnnotationRights = AnnotationRights.REFUSE,
        driver_limits: Callable[[], str] = lambda: "",
    ) -> None:
        """Initializes the publisher.

        Args:
            store: The allocation table.
            gpus: The node's GPUs.
            cluster: Where it is published, and the pods of this node.
            reason: Returns why a GPU gets no containers, by UUID.
            resource: Returns the resource that slices of a GPU are requested by.
            whole_resource: The resource of whole GPUs, empty where none is offered.
            labels: Properties from the settings by UUID, of all GPUs under the empty name.
            watch: Has a function called when the GPUs may have changed, and returns a function that ends this.
            rights: Which annotations of pods count here.
            driver_limits: Returns what keeps the driver's own limits of pods: a property of every GPU; empty: none.
        """
        self._store = store
        self._gpus = gpus
        self._cluster = cluster
        self._reason = reason
        self._resource = resource
        self._whole_resource = whole_resource
        self._labels = labels
        self._watch = watch
        self._rights = rights
        self._driver_limits = driver_limits
        self._alarm = Alarm()

    async def run(self) -> None:
        """Works until cancelled."""
        unwatch = self._watch(self._alarm.ring)
        self._store.watchers.append(self._alarm.ring)
        try:
            while True:
                self._cluster.publish(self.inventory().encode())
                if await self._alarm.wait(_POLL):
                    await asyncio.sleep(_TOGETHER)
        finally:
            self._store.watchers.remove(self._alarm.ring)
            unwatch()

    def inventory(self) -> NodeInventory:
        """Returns what the node has now."""
        inventory, backend = self._gpus.now, self._driver_limits()
        everywhere = {**self._labels.get("", {}), **({"driverLimits": backend} if backend else {})}
        return node_inventory(
            inventory,
            self._store.table,
            self._cluster.pods if self._cluster.synced else None,
            reasons={
                gpu.uuid: self._reason(gpu.uuid) or _NOT_THERE for gpu in inventory.gpus if not gpu.healthy
            },
            resources={gpu.uuid: self._resource(gpu) for gpu in inventory.gpus},
            whole_resource=self._whole_resource,
            labels={
                gpu.uuid: {**everywhere, **self._labels.get(gpu.uuid.lower().replace("gpu", "GPU", 1), {})}
                for gpu in inventory.gpus
            },
            rights=self._rights,
        )


def node_inventory(
    inventory: Inventory,
    table: AllocationTable,
    pods: Mapping[tuple[str, str], Pod] | None,
    *,
    reasons: Mapping[str, str],
    resources: Mapping[str, str],
    whole_resource: str,
    labels: Mapping[str, Mapping[str, str]],
    rights: AnnotationRights = AnnotationRights.REFUSE,
) -> NodeInventory:
    """Returns what a node has.

    Args:
        inventory: The GPUs.
        table: The allocation table.
        pods: This node's pods; None where they are not known.
        reasons: Why a GPU is unhealthy, by UUID.
        resources: What slices of each GPU are requested by.
        whole_resource: What whole GPUs are requested by; empty where the node offers none.
        labels: Further properties, by UUID.
        rights: Which annotations of pods count here.
    """
    gpus = tuple(
        InventoryGpu(
            gpu,
            "" if gpu.healthy else reasons[gpu.uuid],
            left.free_slices,
            resources[gpu.uuid],
            {**labels.get(gpu.uuid, {}), **inventory.properties.get(gpu.uuid, {})},
        )
        for gpu, left in zip(inventory.gpus, availability(table, inventory.gpus), strict=True)
    )
    return NodeInventory(
        gpus,
        inventory.topology,
        _held(inventory.gpus, table, pods),
        whole_resource,
        rights,
        *_recorded(inventory.gpus, table, pods),
    )


def _held(
    gpus: Sequence[Gpu], table: AllocationTable, pods: Mapping[tuple[str, str], Pod] | None
) -> tuple[Occupant, ...]:
    """Returns what no assignment explains, by pod. Beyond its assignment an allocation has a name of its own."""
    size = {gpu.uuid: gpu.slices for gpu in gpus}
    unit = {gpu.uuid: gpu.slice_bytes for gpu in gpus}
    allocations = {allocation.id: allocation for allocation in table.allocations}
    occupants = table.occupants(gpus)
    # of a pod whose assignment says something else in part, all counts as it is
    unexplained = {
        _pod(allocation, pods)
        for allocation in map(allocations.__getitem__, (occupant.name for occupant in occupants))
        if not _explained(allocation, pods)
    }
    holdings: dict[str, dict[str, tuple[int, int]]] = {}
    for occupant in occupants:
        allocation = allocations[occupant.name]
        shares = [share for share in occupant.shares if share.gpu in size]
        name = _pod(allocation, pods)
        if name not in unexplained:
            given = {
                hold.gpu: -(-hold.memory_bytes // unit[hold.gpu])
                for hold in allocation.holds
                if hold.gpu in unit
            }
            shares = (
                []
                if allocation.policy.exclusive  # said beside: see `_recorded`
                else [
                    Share(share.gpu, share.slices - given.get(share.gpu, 0))
                    for share in shares
                    if share.slices > given.get(share.gpu, 0)
                ]
            )
            name = allocation.id
        of_pod = holdings.setdefault(name, {}) if shares else {}
        for share in shares:
            slices, cores = of_pod.get(share.gpu, (0, 0))
            of_pod[share.gpu] = (
                min(slices + share.slices, max(share.slices, size[share.gpu])),
                min(cores + share.cores, CORES_PER_GPU),
            )
    order = list(size)
    return tuple(
        Occupant(name, tuple(Share(gpu, *held[gpu]) for gpu in sorted(held, key=order.index)))
        for name, held in sorted(holdings.items())
    )


def _recorded(
    gpus: Sequence[Gpu], table: AllocationTable, pods: Mapping[tuple[str, str], Pod] | None
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Returns the GPUs that pods were given for themselves, and those whose lent memory they may use, by UID.

    Annotations can be edited, and these two are decided with the GPUs: so a pod is named, too, that has none of them
    and whose annotations say by now that it has. One that is still undecided is not recorded yet.
    """
    of_pod: dict[str, list[Allocation]] = {}
    for allocation in table.allocations:
        if allocation.consumers and not allocation.whole and not allocation.ended:
            of_pod.setdefault(_pod(allocation, pods), []).append(allocation)
    exclusive, lent = dict[str, tuple[str, ...]](), dict[str, tuple[str, ...]]()
    for uid, allocations in of_pod.items():
        if any(allocation.origin.undecided for allocation in allocations):
            continue
        annotations = _annotations(allocations[0], pods)
        on = [
            (gpu.uuid, [allocation for allocation in allocations if gpu.uuid in allocation.quota()])
            for gpu in gpus
        ]
        alone = tuple(gpu for gpu, here in on if any(allocation.policy.exclusive for allocation in here))
        if alone or any(key.startswith(EXCLUSIVE) for key in annotations):
            exclusive[uid] = alone
        host = tuple(
            gpu for gpu, here in on if here and all(allocation.policy.oversubscribe for allocation in here)
        )
        if host or any(key.startswith(OVERSUBSCRIBE) for key in annotations):
            lent[uid] = host
    return exclusive, lent


def _annotations(allocation: Allocation, pods: Mapping[tuple[str, str], Pod] | None) -> Mapping[str, str]:
    pod = _consumer_pod(allocation, pods)[1]
    return pod.annotations if pod is not None else {}


def _explained(allocation: Allocation, pods: Mapping[tuple[str, str], Pod] | None) -> bool:
    """Returns whether the annotation of its pod says what an allocation holds, as far as is known."""
    if pods is None:
        return allocation.assigned
    consumer, pod = _consumer_pod(allocation, pods)
    if consumer is None or pod is None or pod.terminal or not consumer.may_be_of(pod):
        return False
    text = pod.annotations.get(ASSIGNMENT)
    assigned = {share.gpu: share.slices for share in shares_in(text, consumer.ref.container)} if text else {}
    if allocation.whole:
        return assigned.keys() == {hold.gpu for hold in allocation.holds}
    # With a GPU more, what of it counts could be that GPU, and not the one that it has.
    return assigned == {hold.gpu: hold.memory_bytes // hold.slice_bytes for hold in allocation.holds}


def _pod(allocation: Allocation, pods: Mapping[tuple[str, str], Pod] | None) -> str:
    """Returns the UID of an allocation's pod; the allocation's own id where that is not known, or there are several."""
    consumer, pod = _consumer_pod(allocation, pods)
    if consumer is not None and consumer.uid:
        return consumer.uid
    return pod.uid if pod else allocation.id


def _consumer_pod(
    allocation: Allocation, pods: Mapping[tuple[str, str], Pod] | None
) -> tuple[Consumer | None, Pod | None]:
    """Returns the only consumer of an allocation, and the pod of its name."""
    if len(allocation.consumers) != 1:
        return None, None
    consumer = allocation.consumers[0]
    return consumer, (pods or {}).get((consumer.ref.namespace, consumer.ref.pod))
