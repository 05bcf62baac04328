# SPDX-License-Identifier: Apache-2.0
"""How allocations for claims are recorded: the claim, its devices, and who uses them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.persistence.codec import positive, string
from gigaslice.core.allocation.consumer import Consumer, ContainerRef, Origin
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.claims.origin import ClaimDevice, ClaimOrigin, claim_of

__all__ = ["ClaimRecords"]


class ClaimRecords:
    """Writes and reads the origins of allocations for claims."""

    kind = "claim"
    version = 5

    def covers(self, origin: Origin) -> bool:
        """Whether an origin is a claim."""
        return isinstance(origin, ClaimOrigin)

    def fields(self, allocation: Allocation) -> Mapping[str, object]:
        """Returns the claim, with its devices and consumers."""
        origin = _claim(allocation)
        return {
            "claim": [origin.namespace, origin.claim, origin.uid],
            "requests": list(origin.requests),
            "devices": [
                [device.request, device.pool, device.device, device.share_id, device.gpu]
                for device in origin.devices
            ],
            "consumers": [
                [
                    consumer.ref.namespace,
                    consumer.ref.pod,
                    consumer.ref.container,
                    consumer.uid,
                    consumer.init,
                ]
                for consumer in origin.consumers
            ],
            "boot": origin.boot_id,
            **({"followsAnnotations": True} if origin.follows_annotations else {}),
            **({"unprepared": True} if origin.unprepared else {}),
        }

    def hold_fields(self, allocation: Allocation) -> Sequence[Mapping[str, object]]:
        """Returns the bytes of each hold."""
        return [{"bytes": hold.memory_bytes} for hold in allocation.holds]

    def read(
        self, item: Mapping[str, Any], holds: Sequence[Mapping[str, Any]]
    ) -> tuple[ClaimOrigin, list[int]]:
        """Returns the claim in a record."""
        namespace, claim, uid = (string(part) for part in item["claim"])
        if not uid:
            raise ValueError("a claim without a UID")
        origin = ClaimOrigin(
            namespace=namespace,
            claim=claim,
            uid=uid,
            requests=tuple(string(request) for request in item["requests"]),
            devices=tuple(ClaimDevice(*(string(part) for part in device)) for device in item["devices"]),
            consumers=tuple(_consumer(consumer) for consumer in item["consumers"]),
            boot_id=string(item["boot"]),
            follows_annotations=item.get("followsAnnotations", False) is True,
            unprepared=item.get("unprepared", False) is True,  # an agent of 0.1.0 passes this over
        )
        return origin, [positive(hold["bytes"]) for hold in holds]

    def complete(self, allocation: Allocation) -> Allocation:
        """Returns the allocation as it is: nothing else follows from a claim."""
        return allocation

    def with_owner(self, allocation: Allocation, owner: ContainerRef) -> Allocation:
        """Returns the allocation as it is: its record names its consumers."""
        del owner
        return allocation

    def recovered(self, table: AllocationTable, orphans: Sequence[Allocation]) -> AllocationTable:
        """Returns the table with the claims that only directories know.

        One whose claim has an allocation in the table already was remade or ended meanwhile.
        """
        for orphan in orphans:
            if table.find(orphan.id) is None and table.of_key(_claim(orphan).key) is None:
                table = table.with_allocation(orphan)
        return table


def _claim(allocation: Allocation) -> ClaimOrigin:
    origin = claim_of(allocation)
    if origin is None:
        raise TypeError(f"allocation {allocation.id} is for no claim")
    return origin


def _consumer(item: Sequence[Any]) -> Consumer:
    namespace, pod, container, uid = (string(part) for part in item[:4])
    return Consumer(ContainerRef(namespace, pod, container), uid, init=item[4] is True)
