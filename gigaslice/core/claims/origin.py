# SPDX-License-Identifier: Apache-2.0
"""An allocation that a claim to devices was answered with: some requests of one ResourceClaim, for any consumers. Pure.

The API server names the GPU and how much of it, so nothing is chosen here. The kubelet asks once for each claim, and
names no pod: who uses the claim is read from the pods, and changes while it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gigaslice.core.allocation.consumer import Consumer, ObjectPart
from gigaslice.core.allocation.table import Allocation, AllocationTable

__all__ = [
    "ClaimDevice",
    "ClaimOrigin",
    "claim_key",
    "claim_of",
    "of_claim",
    "with_consumers",
    "with_devices",
    "with_unprepared",
]


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """One device that the API server has allocated.

    Attributes:
        request: The request of the claim, "a", or "a/b" for an alternative of it.
        pool: The pool of the device.
        device: The device's name there.
        share_id: Which share of the device; empty where it is not shared.
        gpu: The GPU's UUID.
    """

    request: str
    pool: str
    device: str
    share_id: str
    gpu: str


@dataclass(frozen=True, slots=True)
class ClaimOrigin:
    """Requests of one claim that have one quota.

    Attributes:
        namespace: The claim's namespace.
        claim: The claim's name. Another claim of that name has another UID.
        uid: The claim's UID.
        requests: The requests, in the order of the claim.
        devices: What was allocated for them.
        consumers: The containers that use them, as far as they are known.
        boot_id: The boot of the machine in which it was prepared.
        follows_annotations: Its options and live limits are those of its pod's annotations: the claim was made for one
            container, from what that asks for.
        unprepared: The kubelet has given it up while a pod had attached to it. There is no other call: it ends with
            the last that uses it.
    """

    namespace: str
    claim: str
    uid: str
    requests: tuple[str, ...]
    devices: tuple[ClaimDevice, ...]
    consumers: tuple[Consumer, ...] = ()
    boot_id: str = ""
    follows_annotations: bool = False
    unprepared: bool = False

    @property
    def undecided(self) -> bool:
        """No option of it is a guess."""
        return False

    @property
    def may_grow(self) -> bool:
        """It may not: the API server counts what it has allocated, and gives out the rest."""
        return False

    @property
    def supersedes(self) -> tuple[str, ...]:
        """None: a claim takes no other one's place."""
        return ()

    @property
    def asked_by(self) -> ObjectPart:
        """The claim, and its requests."""
        return ObjectPart(self.namespace, self.claim, self.requests)

    @property
    def key(self) -> str:
        """Names the requests of the claim: they are answered once."""
        return claim_key(self.uid, self.requests)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.claim}"


def claim_key(uid: str, requests: Iterable[str]) -> str:
    """Names some requests of a claim. A request's name has no "+"."""
    return f"{uid}/{'+'.join(requests)}"


def claim_of(allocation: Allocation) -> ClaimOrigin | None:
    """The claim that an allocation is the answer to; None where another API gave it out."""
    return allocation.origin if isinstance(allocation.origin, ClaimOrigin) else None


def of_claim(table: AllocationTable, uid: str) -> tuple[tuple[Allocation, ClaimOrigin], ...]:
    """The allocations for the claim of that UID which have not ended, in the order in which they were made."""
    return tuple(
        (allocation, origin)
        for allocation in table.allocations
        if (origin := claim_of(allocation)) is not None and origin.uid == uid and not allocation.ended
    )


def with_consumers(allocation: Allocation, consumers: Sequence[Consumer]) -> Allocation:
    """The allocation of a claim with other consumers."""
    origin = claim_of(allocation)
    if origin is None or origin.consumers == tuple(consumers):
        return allocation
    return replace(allocation, origin=replace(origin, consumers=tuple(consumers)))


def with_unprepared(allocation: Allocation, unprepared: bool) -> Allocation:
    """The allocation of a claim that the kubelet has given up, or not."""
    origin = claim_of(allocation)
    if origin is None or origin.unprepared == unprepared:
        return allocation
    return replace(allocation, origin=replace(origin, unprepared=unprepared))


def with_devices(
    allocation: Allocation, origin: ClaimOrigin, amounts: Mapping[str, tuple[int, int]]
) -> Allocation | None:
    """The allocation of a claim for devices that the claim was given anew.

    Args:
        allocation: What the claim has.
        origin: The claim with its devices of now.
        amounts: Bytes and per cent of the compute that these have of each GPU, by UUID.

    Returns:
        The allocation with these devices; None where they are other GPUs or amounts.
    """
    before = claim_of(allocation)
    given = {hold.gpu: (hold.memory_bytes, allocation.cores_of(hold.gpu)) for hold in allocation.holds}
    if before is None or given != amounts:
        return None
    return replace(allocation, origin=replace(before, devices=origin.devices))
