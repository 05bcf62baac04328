# SPDX-License-Identifier: Apache-2.0
"""NodePrepareResources: makes the allocations of a claim, and answers once its containers may start.

The kubelet asks once for each claim, whatever pods and containers use it, and gives every later pod the first answer.
An error costs a pod 60 to 90 seconds, the kubelet's ordinary resync: so a call is held while something stands in the
way that time can mend, as long as anybody waits for it (`agent.allocation.start_wait`), and a pod that was answered
with an error is woken once its start would succeed (`agent.claims.waking`).

The order is record, directory, file of the runtime, answer. A process that ends in between leaves what the next call
finds by the claim's UID and finishes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from agent.accounting.presence import Presence, find_mounted
from agent.allocation.request import ImpossibleError, NotExecutableError
from agent.allocation.service import AllocationService
from agent.allocation.start import StartBlocker, StartChecks
from agent.allocation.start_wait import StartWaiter
from agent.apiserver import Cluster, PodLists
from agent.claims.cdi_files import CdiFiles, cdi_devices, cdi_name
from agent.claims.claim_events import ClaimEvents
from agent.claims.claim_reader import ClaimReader
from agent.claims.claim_request import AbsentGpuError, ClaimRequest, claim_request
from agent.claims.earlier_allocations import EarlierAllocations, StillUsedError
from agent.claims.messages import ClaimName, PrepareAnswer, PreparedDevice
from agent.claims.refusals import Over, Refusals, after, never, succeeds
from agent.claims.reserved_pods import NotReservedError, ReservedPods, UnsureError
from agent.persistence.store import Store
from agent.providers.container_edits import ContainerEdits, Mount, gpu_edits, quota_mounts
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.claims.consumers import claim_consumers, claim_groups, misuse
from gigaslice.core.claims.names import device_name
from gigaslice.core.claims.origin import claim_of, of_claim, with_consumers, with_unprepared
from gigaslice.core.claims.parameters import claim_options
from gigaslice.core.claims.resource_claim import ResourceClaim
from gigaslice.core.errors import GigasliceError
from gigaslice.core.model import AnnotationRights, Pod, SliceUnit, parse_options
from gigaslice.kubeapi.failures import ApiFailure
from gigaslice.runtime.logs import get_logger
from vcuda import contract

__all__ = ["ClaimPreparation", "edits_of"]

_READ_SECONDS = 5.0  # for one attempt to read a claim
_READ_AGAIN = 0.5
_AGAIN_SECONDS = 5.0  # until a claim that could not be read is worth another try
_NOT_RESERVED = "the claim is not reserved for a pod any more; nothing to prepare"


class _RefusedError(GigasliceError):
    """The claim cannot be had as it is; the text reaches its pods' events."""


class _Calls:
    """The calls for one claim that are under way."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = asyncio.Lock()


class ClaimPreparation:
    """Prepares claims.

    Attributes:
        refusals: The claims that were last answered with an error, and wait.
        answered: The UIDs of claims that were answered without an error, by namespace and name. Who reads them takes
            out those that have ended.
    """

    def __init__(
        self,
        store: Store,
        service: AllocationService,
        checks: StartChecks,
        waiter: StartWaiter,
        *,
        cluster: Cluster,
        lists: PodLists,
        claims: ClaimReader,
        cdi: CdiFiles,
        unit: SliceUnit,
        rights: AnnotationRights,
        visible_devices: str,
        boot_id: str,
        allocated: Callable[[], None],
        present: Callable[[Collection[str]], Presence] = find_mounted,
    ) -> None:
        """Initializes it.

        Args:
            store: The allocation table.
            service: Makes the allocations.
            checks: Tells what a start waits for.
            waiter: Holds the calls.
            cluster: The pods of this node.
            lists: Read them past the watch.
            claims: Reads claims.
            cdi: The files for the container runtime.
            unit: What a slice is.
            rights: Which options of a claim count.
            visible_devices: How GPUs are named to the runtime, "env" or "cdi".
            boot_id: The boot of the machine.
            allocated: Called when allocations were made.
            present: Finds the allocations that processes of the node have mounted. Blocks.
        """
        self.refusals = Refusals()
        self.answered: dict[tuple[str, str], str] = {}
        self._store = store
        self._service = service
        self._checks = checks
        self._waiter = waiter
        self._cluster = cluster
        self._claims = claims
        self._cdi = cdi
        self._unit = unit
        self._rights = rights
        self._visible_devices = visible_devices
        self._boot_id = boot_id
        self._allocated = allocated
        self._earlier = EarlierAllocations(store, service, present, answers_gpus=visible_devices == "cdi")
        self._events = ClaimEvents(cluster)
        self._calls: dict[str, _Calls] = {}
        self._pods = ReservedPods(cluster, lists)
        self._log = get_logger("claims")

    async def prepare(self, name: ClaimName, remaining: float | None) -> PrepareAnswer:
        """Answers for one claim.

        Args:
            name: The claim.
            remaining: Seconds until the kubelet gives up; None where it does not.
        """
        until = time.monotonic() + remaining if remaining is not None else None
        self.refusals.begun(name.uid)
        calls = self._calls.setdefault(name.uid, _Calls())
        calls.count += 1
        try:
            async with calls.lock:  # two pods of one claim are two calls at a time
                answer = await self._prepare(name, until)
        except asyncio.CancelledError:
            self._refused(name)  # the kubelet has waited for too long, and repeats it late
            raise
        finally:
            calls.count -= 1
            if not calls.count:
                del self._calls[name.uid]
        if answer.error:
            self._refused(name)
            self._log.info("claim not prepared", claim=str(name), uid=name.uid, detail=answer.error)
        else:
            self.refusals.done(name.uid)
            self._pods.prepared(name.uid)
            self.answered[name.namespace, name.name] = name.uid
        return answer

    def unprepared(self, uid: str) -> None:
        """Notes that the kubelet gives a claim up. What is asked for it from now on may be late."""
        self._pods.unprepared(uid)

    def preparing(self, uid: str) -> bool:
        """Whether a claim is being prepared now."""
        return uid in self._calls

    def _refused(self, name: ClaimName) -> None:
        """Notes that a claim waits. Where nothing tells what for, its pods are woken as those that nobody asks for."""
        if self.refusals.explained(name.uid) or of_claim(self._store.table, name.uid):
            self.refusals.refused(name)
        else:
            self.refusals.done(name.uid)

    async def _prepare(self, name: ClaimName, until: float | None) -> PrepareAnswer:
        pods: tuple[Pod, ...] = ()
        try:
            claim = await self._read(name, until)
            pods = await self._pods.of(claim)
            if pods and all(pod.ending or pod.terminal for pod in pods):
                raise _RefusedError(f"claim {name}: {_NOT_RESERVED}")
            allocations = await self._allocations(claim, pods)
            if blocker := await self._wait(claim, allocations, pods, until):
                self._events.waiting(pods, blocker.text, dataset=blocker.dataset)
                return PrepareAnswer(error=blocker.text)
            for allocation in allocations:
                if not await self._checks.recorded(allocation.id):
                    return PrepareAnswer(error="the claim was unprepared meanwhile; asked again by itself")
        except (_RefusedError, NotReservedError, ImpossibleError) as error:
            self.refusals.because(name.uid, self._over(name.uid, error))
            self._events.impossible(pods, str(error))
            return PrepareAnswer(error=str(error))
        except UnsureError as error:
            self.refusals.because(name.uid, after(_AGAIN_SECONDS))
            return PrepareAnswer(error=str(error))
        except ApiFailure as failure:
            self.refusals.because(name.uid, after(_AGAIN_SECONDS))
            return PrepareAnswer(error=f"claim {name} cannot be read: {failure}")
        except GigasliceError as error:
            self.refusals.because(name.uid, after(_AGAIN_SECONDS, succeeds(self._store.probe)))
            self._log.error("claim not prepared", claim=str(name), detail=str(error))
            return PrepareAnswer(error=str(error))
        return PrepareAnswer(tuple(self._devices(allocations)))

    # --- what it is ------------------------------------------------------------------------------------------

    async def _read(self, name: ClaimName, until: float | None) -> ResourceClaim:
        """Reads a claim, again and again while the API server does not say and somebody waits."""
        while True:
            try:
                claim = await self._claims.read(name.namespace, name.name, _READ_SECONDS)
                break
            except ValueError as error:
                raise _RefusedError(f"claim {name} makes no sense to this driver: {error}") from error
            except ApiFailure:
                if until is None or time.monotonic() + _READ_AGAIN + self._waiter.times.margin > until:
                    raise
                await asyncio.sleep(_READ_AGAIN)
        if claim is None or claim.uid != name.uid:
            raise _RefusedError(f"claim {name} with the UID {name.uid} is gone; nothing to prepare")
        if not claim.results:
            raise _RefusedError(f"claim {name} has no device of this driver")
        if not claim.reserved_for:
            raise _RefusedError(f"claim {name}: {_NOT_RESERVED}")
        if any(result.admin_access for result in claim.results):
            raise _RefusedError(
                f"claim {name} asks for admin access, which gives nothing here: a share of memory is no access to a "
                "GPU for monitoring; leave adminAccess out"
            )
        return claim

    async def _allocations(self, claim: ResourceClaim, pods: Sequence[Pod]) -> tuple[Allocation, ...]:
        """Returns the allocations of a claim, made now or before, with all their files."""
        prepared = await self._earlier.of(claim, pods, lambda group: self._request(claim, group, pods))
        requests = claim.requests
        groups = tuple(origin.requests for _, origin in prepared) or claim_groups(requests, pods, claim.name)
        for pod in pods:
            if sentence := misuse(pod, claim.name, groups, await self._other_claims(pod, claim)):
                raise _RefusedError(f"pod {pod}: {sentence}")
        adapters = [self._request(claim, group, pods) for group in groups]
        if not prepared and (problem := next(filter(None, (adapter.problem for adapter in adapters)), "")):
            raise NotExecutableError(f"claim {claim}: {problem}")
        allocations = self._service.allocate(adapters)
        if not prepared:
            self._allocated()
            self._events.allocated(pods, allocations)
        followed = [
            with_consumers(
                with_unprepared(allocation, False),
                claim_consumers(group, pods, claim.name, requests) or allocation.consumers,
            )
            for allocation, group in zip(allocations, groups, strict=True)
        ]
        if followed != list(allocations):
            self._store.update(self._store.table.replaced(followed))
        devices: dict[str, ContainerEdits] = {}
        for allocation in followed:
            origin = claim_of(allocation)
            if origin is not None:
                edits = edits_of(self._store, allocation, self._visible_devices)
                devices.update(cdi_devices(allocation, origin, edits))
        self._cdi.write(claim.uid, devices)
        return tuple(followed)

    async def _other_claims(self, pod: Pod, claim: ResourceClaim) -> list[str]:
        """Returns the names of further claims with devices of ours that a container of a pod has beside this one."""
        beside = {
            own.claim
            for container, _ in pod.users_of(claim.name)
            for use in container.claims
            for own in pod.claims
            if own.name == use.name and own.claim and own.claim != claim.name
        }
        ours = []
        for name in sorted(beside):
            try:
                other = await self._claims.read(pod.namespace, name, _READ_SECONDS)
            except ValueError as error:
                raise _RefusedError(
                    f"claim {pod.namespace}/{name} makes no sense to this driver: {error}"
                ) from error
            if other is not None and other.results:
                ours.append(name)
        return ours

    def _request(self, claim: ResourceClaim, group: Sequence[str], pods: Sequence[Pod]) -> ClaimRequest:
        consumers = claim_consumers(group, pods, claim.name, claim.requests)
        follows = claim.follows_pod and len({consumer.uid for consumer in consumers}) == 1
        if follows:
            pod = next(pod for pod in pods if pod.uid == consumers[0].uid)
            options = parse_options(pod.annotations, consumers[0].ref.container, self._unit, self._rights)
        else:
            options = claim_options(claim, group, self._unit, self._rights)
        if options.mistakes:
            raise _RefusedError(f"claim {claim}: {'; '.join(options.mistakes)}")
        return claim_request(
            claim,
            group,
            {device_name(gpu.uuid): gpu for gpu in self._service.inventory.gpus},
            options,
            consumers=consumers,
            boot_id=self._boot_id,
            follows_annotations=follows,
        )

    # --- waiting ---------------------------------------------------------------------------------------------

    async def _wait(
        self,
        claim: ResourceClaim,
        allocations: Sequence[Allocation],
        pods: Sequence[Pod],
        until: float | None,
    ) -> StartBlocker | None:
        async def blocker() -> StartBlocker | None:
            return await self.blocker(claim.uid)

        def report(reason: StartBlocker) -> None:
            self._events.waiting(pods, reason.text, dataset=reason.dataset)

        remaining = None if until is None else until - time.monotonic()
        return await self._waiter.wait(blocker, lambda: self._patience(pods), remaining, report)

    async def blocker(self, uid: str) -> StartBlocker | None:
        """Returns what the containers of a prepared claim still wait for, as of now."""
        prepared = of_claim(self._store.table, uid)
        if not prepared:
            return StartBlocker("the claim was unprepared meanwhile; asked again by itself", final=True)
        for allocation, _ in prepared:
            if (reason := await self._checks.blocker(allocation)) is not None:
                return reason
        return None

    async def would_start(self, uid: str) -> bool:
        """Whether a claim that was answered with an error would be prepared now, as far as that can be told."""
        if (over := await self.refusals.over(uid)) is not None:
            return over
        return bool(of_claim(self._store.table, uid)) and await self.blocker(uid) is None

    def _over(self, uid: str, error: GigasliceError) -> Over:
        """Returns what tells whether that which a claim was refused for is over."""
        if isinstance(error, StillUsedError):
            return lambda: self._earlier.ended(uid, self._cluster.pods.values())
        if isinstance(error, AbsentGpuError):
            return partial(self._has_gpu, error.device)
        return never

    async def _has_gpu(self, device: str) -> bool:
        return device in (device_name(gpu.uuid) for gpu in self._service.inventory.gpus)

    def _patience(self, pods: Sequence[Pod]) -> float:
        """Returns how long a call is held by what is known of its pods now: none once all are to be deleted."""
        if not pods or not self._cluster.synced:
            return self._waiter.times.unwatched_patience
        for reserved in pods:
            pod = self._cluster.pod(reserved.namespace, reserved.name)
            if pod is not None and pod.uid == reserved.uid and not pod.ending and not pod.terminal:
                return self._waiter.times.patience
        return 0.0

    def _devices(self, allocations: Sequence[Allocation]) -> Sequence[PreparedDevice]:
        devices = []
        for allocation in allocations:
            origin = claim_of(allocation)
            edits = edits_of(self._store, allocation, self._visible_devices)
            if origin is None:
                continue
            for device in origin.devices:
                request = device.request.partition("/")[0]
                devices.append(
                    PreparedDevice(
                        requests=(request,),
                        pool=device.pool,
                        device=device.device,
                        cdi=(*edits.cdi, cdi_name(origin.uid, request)),
                        share_id=device.share_id,
                    )
                )
        return devices


def edits_of(store: Store, allocation: Allocation, visible_devices: str) -> ContainerEdits:
    """Returns what a container gets that uses an allocation.

    No call comes for a later container that has the allocations of two claims, and of files at one path the runtime
    mounts the last. So the page is there under the allocation's name too, and the library refuses to serve two.
    """
    directory = store.dirs.path(allocation.id)
    by_name = f"{contract.CONTAINER_ALLOCATIONS}/{allocation.id}"
    mounts = (
        *quota_mounts(directory, store.library_dir),
        Mount(by_name, str(directory / contract.LIMITS_FILE)),
    )
    return gpu_edits(allocation.id, tuple(allocation.quota()), visible_devices, mounts)
