# SPDX-License-Identifier: Apache-2.0
"""What a claim has already when the kubelet asks for it, where the API server has given it other devices since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from agent.accounting.presence import Presence
from agent.allocation.request import NotExecutableError
from agent.allocation.service import AllocationService
from agent.claims.claim_request import ClaimRequest
from agent.persistence.store import Store
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.claims.names import device_name
from gigaslice.core.claims.origin import ClaimOrigin, of_claim, with_devices
from gigaslice.core.claims.resource_claim import ResourceClaim
from gigaslice.core.model import Pod
from gigaslice.runtime.logs import get_logger

__all__ = ["EarlierAllocations", "StillUsedError"]

Allocations = tuple[tuple[Allocation, ClaimOrigin], ...]


class StillUsedError(NotExecutableError):
    """A container runs with other GPUs than the claim has now."""


class EarlierAllocations:
    """Tells what of a claim's allocations still holds.

    A claim without pods can lose its devices and be given others. Then nobody has a right to what it had before, but
    for a pod that the kubelet has started with it: after a forced deletion the kubelet gives a later pod of the claim
    its answer of before, and asks again only after a restart of its own. It then gives containers the names of both
    answers. Those of claims mean what the claim has now, while those of GPUs (NVIDIA's) mean these GPUs.
    """

    def __init__(
        self,
        store: Store,
        service: AllocationService,
        present: Callable[[Collection[str]], Presence],
        *,
        answers_gpus: bool,
    ) -> None:
        """Initializes it.

        Args:
            store: The allocation table.
            service: Releases allocations.
            present: Finds the allocations that processes of the node have mounted. Blocks.
            answers_gpus: The kubelet is answered names that stand for GPUs, whatever allocation has them by now.
        """
        self._store = store
        self._service = service
        self._present = present
        self._answers_gpus = answers_gpus
        self._log = get_logger("claims")

    async def of(
        self, claim: ResourceClaim, pods: Sequence[Pod], request: Callable[[Sequence[str]], ClaimRequest]
    ) -> Allocations:
        """Returns the allocations that a claim has, and has a right to; none where new ones are to be made.

        Args:
            claim: The claim as it is now.
            pods: Those that it is reserved for, as far as they are known.
            request: Returns what some of its requests ask for now.

        Raises:
            StillUsedError: A container runs with other GPUs than the claim has now.
            NotExecutableError: The kubelet would give containers the GPUs of its earlier answer, too.
            StorageError: The allocation table cannot be written.
        """
        prepared = of_claim(self._store.table, claim.uid)
        present = {(result.request, result.pool, result.device, result.share_id) for result in claim.results}
        if all(
            (device.request, device.pool, device.device, device.share_id) in present
            for _, origin in prepared
            for device in origin.devices
        ):
            return prepared
        self._log.info("claim has other devices by now", claim=str(claim), uid=claim.uid)
        used = _used(prepared, pods)
        if used:
            kept = _with_devices(prepared, [request(origin.requests) for _, origin in prepared])
            if len(kept) == len(prepared):
                self._store.update(self._store.table.replaced(kept))
                return of_claim(self._store.table, claim.uid)
        if self._answers_gpus and not _covered(prepared, claim):
            raise NotExecutableError(
                f"claim {claim} was given other GPUs after a pod of it was deleted by force, and the kubelet has the "
                "CDI names of those of before (visibleDevices: cdi), so containers would get both; delete the pods of "
                "this claim, which has the kubelet give it up, and make them again"
            )
        if containers := await self._running(used):
            raise StillUsedError(
                f"claim {claim} was given other GPUs after a pod of it was deleted by force, and "
                f"{', '.join(containers)} runs with those of before; delete that pod, or give this pod a claim of "
                "its own"
            )
        self._service.release([allocation.id for allocation, _ in prepared])
        return ()

    async def ended(self, uid: str, pods: Iterable[Pod]) -> bool:
        """Returns whether no container runs any more with what a claim has, as StillUsedError said one does.

        Args:
            uid: The claim's UID.
            pods: Those of this node as they are now.
        """
        return not await self._running(_used(of_claim(self._store.table, uid), pods))

    async def _running(self, used: Mapping[str, str]) -> list[str]:
        """Returns the containers with processes, of those that allocations are for, by the allocation's id."""
        mounted = (await asyncio.to_thread(self._present, used)).mounted if used else ()
        return sorted({used[allocation_id] for allocation_id in mounted})


def _used(prepared: Allocations, pods: Iterable[Pod]) -> dict[str, str]:
    """Returns the containers of running pods that allocations are for, by the allocation's id."""
    running_uids = {pod.uid for pod in pods if pod.phase == "Running"}
    return {
        allocation.id: str(consumer.ref)
        for allocation, origin in prepared
        for consumer in origin.consumers
        if consumer.uid in running_uids
    }


def _covered(prepared: Allocations, claim: ResourceClaim) -> bool:
    """Whether each request has all GPUs still that the kubelet was answered for it, or the kubelet has given it up."""
    now: dict[str, set[str]] = {}
    for result in claim.results:
        now.setdefault(result.main, set()).add(result.device)
    return all(
        origin.unprepared or set(map(device_name, allocation.quota())) <= now.get(request, set())
        for allocation, origin in prepared
        for request in origin.requests
    )


def _with_devices(prepared: Allocations, requests: Sequence[ClaimRequest]) -> list[Allocation]:
    """Returns the allocations with the devices of now, without those that would have other GPUs or amounts."""
    same = (
        with_devices(allocation, request.claim_origin, request.amounts)
        for (allocation, _), request in zip(prepared, requests, strict=True)
    )
    return [allocation for allocation in same if allocation is not None]
