"""The provider of GPU memory: what the kubelet asks, decided by the allocator, told to people, and answered.

The kubelet makes GetPreferredAllocation and Allocate one after the other in its only admission loop and without a
deadline, and an error in either fails the pod for good: both answer at once, and the first never with an error.
PreStartContainer runs beside them, has 30 seconds and is repeated when it fails: whatever has to be waited for is
waited for there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from agent.allocation.owner import Identification, Lifecycle, owner_of
from agent.allocation.service import AllocationService, ImpossibleError
from agent.apiserver import Cluster, NoCluster
from agent.deviceplugin import messages
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.servicer import Servicer
from agent.inventory.source import Inventory
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.persistence.store import Store
from agent.providers.provider import Answer, NotYetError, Provider, RefusedError
from gigaslice import units
from gigaslice.allocation.reconcile import Answered
from gigaslice.allocation.table import Allocation
from gigaslice.errors import GigasliceError, StorageError
from gigaslice.model import Pod, gpu_device_ids

__all__ = ["DevicePlugin"]

_GATE_PATIENCE = (
    5.0  # seconds of waiting inside one PreStartContainer call before the kubelet is sent round again
)
_GATE_INTERVAL = 0.1
_GATE_PART = 0.05  # of this thread's time for all that wait: each look reads the ledgers of all neighbours
_EVICT_AGAIN = 60.0
_ROUNDED = 0.002  # the time of an allocation is kept in milliseconds
_UNKNOWN_SECONDS = 60.0  # how long a container is held back because its annotations cannot be read
_GIVEN_AWAY = "the kubelet has given this container's devices to another one; delete the pod"


class DevicePlugin(Servicer, Provider):
    """Hands out slices: a servicer that is its own provider, since the kubelet's list of a thousand is kept as it is.

    ALLOCATED is called when the kubelet's list of containers is worth a look, STREAMS_CHANGED when a stream opened or
    ended. ADMISSIONS finds out whom a call is for, and CLUSTER tells people; without them nobody knows or is told.
    KEPT_ANSWERS gives what the kubelet keeps of our answers, None where that cannot be read; it blocks.
    """

    prefers = True
    gated = True

    def __init__(
        self,
        store: Store,
        allocator: AllocationService,
        visible_devices: str,
        allocated: Callable[[], None],
        streams_changed: Callable[[], None],
        *,
        admissions: AdmissionResolver | None = None,
        cluster: Cluster | None = None,
        kept_answers: Callable[[], Sequence[Answered] | None] = lambda: None,
    ) -> None:
        super().__init__(self, streams_changed)
        self.resource = allocator.resource
        self._store = store
        self._allocator = allocator
        self._visible_devices = visible_devices
        self._allocated = allocated
        self._admissions = admissions
        self._cluster: Cluster = cluster or NoCluster()
        self._kept_answers = kept_answers
        self._evict_again: dict[str, float] = {}  # when, by allocation
        self._waiting = 0  # containers at the start gate
        self._withheld: frozenset[str] = frozenset()
        self._taken_whole: frozenset[str] = frozenset()
        self._recordable = True

    async def set_inventory(self, inventory: Inventory) -> None:
        """Makes INVENTORY the present one and sends it to every open stream."""
        self._allocator.inventory = inventory
        await self.changed()

    async def withhold(self, device_ids: frozenset[str]) -> None:
        """Shows exactly DEVICE_IDS as not to be had, whatever the health of their GPUs."""
        if device_ids != self._withheld:
            self._withheld = device_ids
            await self.changed()

    async def set_taken_whole(self, device_ids: frozenset[str]) -> None:
        """Shows exactly these free DEVICE_IDS as not to be had besides, because their GPUs are given out whole."""
        if device_ids != self._taken_whole:
            self._taken_whole = device_ids
            await self.changed()

    async def set_recordable(self, recordable: bool) -> None:
        """Whether an allocation could be recorded now; while not, every device ID is shown as not to be had.

        Those of running containers too, as with an unhealthy GPU: the scheduler knows that they are free before we do.
        """
        self._recordable = recordable
        await self.changed()

    def listed(self) -> api.ListAndWatchResponse:
        """Every slice of every GPU."""
        withheld = self._withheld | self._taken_whole
        if not self._recordable:
            withheld = frozenset(
                device_id for gpu in self._allocator.inventory.gpus for device_id in gpu_device_ids(gpu)
            )
        return messages.device_list(self._allocator.inventory, withheld)

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Device IDs of the GPUs that placement would choose."""
        identified = Identification()
        if self._admissions is not None and self._cluster.expected:
            identified = await self._admissions.identify(size)
        lifecycle = Lifecycle()
        if self._admissions is not None:
            lifecycle = await self._admissions.lifecycle(set(available) - set(must_include))
        device_ids = self._allocator.prefer(available, must_include, size, identified.requester, lifecycle)
        if self._admissions is not None:
            self._admissions.note_preference(device_ids, identified)
        return device_ids

    async def allocate(self, wanted: Sequence[Sequence[str]]) -> list[Answer]:
        """Places and records every container, or none of them."""
        identified = None
        if len(wanted) == 1 and self._admissions is not None and self._cluster.expected:
            identified = await self._admissions.identify_devices(wanted[0])
        lifecycle = Lifecycle()
        if self._admissions is not None:
            lifecycle = await self._admissions.lifecycle(
                device_id for device_ids in wanted for device_id in device_ids
            )
        try:
            allocations = self._allocator.allocate(wanted, identified, lifecycle)
        except ImpossibleError as error:
            self._say(identified, "Warning", "GigasliceImpossible", str(error))
            raise
        except StorageError as error:
            self._say(
                identified, "Warning", "GigasliceStorage", f"the node cannot record an allocation: {error}"
            )
            raise
        self._allocated()
        self._announce(identified, allocations)
        return [self._answer(allocation) for allocation in allocations]

    async def allocate_again(self, wanted: Sequence[Sequence[str]], age: float) -> list[Answer]:
        """Answers what was recorded during the call, if it was; an allocation from before it is somebody else's."""
        table = self._store.table
        newest = max(table.allocations, key=lambda allocation: allocation.number, default=None)
        asked = [frozenset(device_ids) for device_ids in wanted]
        if newest is None or asked != [newest.device_ids] or self._allocator.age(newest) > age + _ROUNDED:
            return list(await self.allocate(wanted))
        self._store.ensure(newest)
        self._allocated()
        self._log.info("allocation found", allocation=newest.id, container=newest.name)
        return [self._answer(newest)]

    async def start(self, devices: Sequence[str], remaining: float | None) -> None:
        """Returns when the container's memory is free and its allocation is safe on disk; else says why not."""
        found = await self._meant(devices)
        try:
            for allocation in found:
                self._store.ensure(allocation)
            reason = await self._wait_until_ready(found[0].id, remaining)
            if reason is None:  # and not before: what the gate has decided must be on the disk, too
                await asyncio.to_thread(self._store.sync)
                reason = None if self._store.table.find(found[0].id) else _GIVEN_AWAY
        except GigasliceError as error:
            self._log.error("start gate failed", detail=str(error))
            reason = str(error)
        if reason:
            self._hold_back(found[0].id, reason)
            raise NotYetError(reason)

    async def _meant(self, devices: Sequence[str]) -> tuple[Allocation, ...]:
        """The allocations that the kubelet can mean by DEVICES, newest first: those whose mounts it is about to replay.

        What it was answered is in its checkpoint. Where that can be read it decides, and an allocation that the
        allocation table has lost is restored where those mounts point. A runtime makes a directory of each source that
        is missing, and the container runs without limits: so nothing starts from files that are not the ones its mounts
        name.
        """
        kept = await asyncio.to_thread(self._kept_answers)
        named = [one for one in kept or () if one.device_ids == frozenset(devices)]
        for one in named:
            self._restore(one, len(devices))
        found = self._allocator.find(devices)
        if named:
            ids = {one.allocation for one in named}
            found = tuple(allocation for allocation in found if allocation.id in ids)
        found = tuple(allocation for allocation in found if not allocation.foreign)
        if not found:
            raise RefusedError(
                f"no record of this container's {len(devices)} devices in {self._store.state_dir}, so nothing is "
                "where its mounts point; delete the pod, so that it is allocated again"
            )
        return found

    def _restore(self, answer: Answered, devices: int) -> None:
        """Takes up the allocation of ANSWER again if the allocation table has lost it. Raises RefusedError where that
        cannot be.
        """
        known = self._store.table.find(answer.allocation)
        if known is not None and not known.foreign:
            return
        if not self._store.is_place_of(answer):
            raise RefusedError(
                f"the mounts of this container point to {answer.directory}, which is not in {self._store.state_dir}; "
                "delete the pod, or start the agent with the state directory of before"
            )
        if not self._allocator.restore(answer, self._cluster.pods):
            raise RefusedError(
                f"no record of this container's {devices} devices, and which GPU has how many of them cannot be told; "
                "delete the pod, so that it is allocated again"
            )

    def _answer(self, allocation: Allocation) -> Answer:
        directory = self._store.dirs.path(allocation.id)
        return messages.container_answer(
            allocation, directory, self._store.library_dir, self._visible_devices
        )

    async def _wait_until_ready(self, allocation_id: str, remaining: float | None) -> str | None:
        patience = _GATE_PATIENCE if remaining is None else min(_GATE_PATIENCE, remaining / 2)
        self._waiting += 1
        try:
            return await self._wait_until(allocation_id, time.monotonic() + patience)
        finally:
            self._waiting -= 1

    async def _wait_until(self, allocation_id: str, deadline: float) -> str | None:
        while True:
            begun = time.thread_time()
            allocation = self._store.table.find(allocation_id)
            if allocation is None:
                return _GIVEN_AWAY
            reason = (
                await self._unsettled(allocation)
                if allocation.undecided
                else self._allocator.may_start(allocation)
            )
            if allocation.undecided and reason is None:
                continue  # now it is decided
            if reason is None or self._closed or time.monotonic() >= deadline:
                return reason
            self._allocated()
            pause = min(
                (time.thread_time() - begun) * self._waiting / _GATE_PART, deadline - time.monotonic()
            )
            await asyncio.sleep(max(_GATE_INTERVAL, pause))

    async def _unsettled(self, allocation: Allocation) -> str | None:
        """Why an undecided allocation cannot be decided yet; None when it is."""
        requester = owner_of(allocation, self._cluster.pod, self._store.table, self._allocator.resource)
        if (
            requester is None
            and self._cluster.expected
            and self._allocator.age(allocation) < _UNKNOWN_SECONDS
        ):
            return "waiting for the pod's annotations from the API server"
        if requester is None:
            self._log.warning("annotations unknown; started with defaults", allocation=allocation.id)
        settled = self._allocator.settle(allocation, requester)
        if settled.remake and requester is not None:
            await self._have_remade(requester.pod, allocation, settled.reason or "")
        return settled.reason

    async def _have_remade(self, pod: Pod, allocation: Allocation, reason: str) -> None:
        """Has POD evicted where something makes it anew. Asks again after a while: a budget can refuse, and the kubelet
        can end the call that asks. Whether it may is asked first, so that nobody is told of what does not come.
        """
        now = time.monotonic()
        if not pod.controlled or pod.ending or now < self._evict_again.get(allocation.id, now):
            return
        self._evict_again = {one: at for one, at in self._evict_again.items() if self._store.table.find(one)}
        self._evict_again[allocation.id] = now + _EVICT_AGAIN
        eviction = await self._cluster.evict(pod, dry_run=True)
        if eviction.done:
            self._say_of(pod, "Warning", "GigasliceEvicting", reason, allocation)
            eviction = await self._cluster.evict(pod)
        if eviction.gone:
            self._log.info("pod to be evicted is gone", pod=str(pod), allocation=allocation.id)
            return
        event = "pod not evicted" if eviction.problem else "pod evicted"
        self._log.warning(event, pod=str(pod), allocation=allocation.id, detail=eviction.problem or reason)

    def _hold_back(self, allocation_id: str, reason: str) -> None:
        allocation = self._store.table.find(allocation_id)
        name = allocation.name if allocation else allocation_id
        self._log.info("start held back", allocation=allocation_id, container=name, detail=reason)
        pod = (
            self._cluster.pod(allocation.ref.namespace, allocation.ref.pod)
            if allocation and allocation.ref
            else None
        )
        if allocation and pod is not None:
            self._say_of(pod, "Warning", "GigasliceWaiting", reason, allocation)

    def _announce(self, identified: Identification | None, allocations: Sequence[Allocation]) -> None:
        requester = identified.requester if identified else None
        for allocation in allocations if requester else ():
            gpus = ", ".join(
                f"{units.format_bytes(size)} of {gpu}" for gpu, size in allocation.quota().items()
            )
            self._say(identified, "Normal", "GigasliceAllocated", f"{gpus} for container {allocation.name}")
            if away := self._allocator.unaligned(allocation):
                self._say(identified, "Normal", "GigasliceUnaligned", away)
        remarks = self._allocator.remarks(requester, next(iter(allocations), None)) if requester else ()
        if remarks:  # in one event: a second of the same reason would only be counted
            self._say(identified, "Warning", "GigasliceAnnotation", "; ".join(remarks))

    def _say(self, identified: Identification | None, kind: str, reason: str, text: str) -> None:
        if identified is not None and identified.requester is not None:
            requester = identified.requester
            self._cluster.event(requester.pod, kind, reason, text, requester.container.name)

    def _say_of(self, pod: Pod, kind: str, reason: str, text: str, allocation: Allocation) -> None:
        self._cluster.event(pod, kind, reason, text, allocation.ref.container if allocation.ref else "")
