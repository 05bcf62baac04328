"""The device plugin's gRPC face: five calls, each translated, decided elsewhere, and answered.

The kubelet makes GetPreferredAllocation and Allocate one after the other in its only admission loop and without a
deadline, and an error in either fails the pod for good: both answer at once, and the first never with an error.
PreStartContainer runs beside them, has 30 seconds and is repeated when it fails: whatever has to be waited for is
waited for there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc

from agent import units
from agent.discovery.source import Inventory
from agent.errors import GigasliceError
from agent.kube import Cluster, NoCluster
from agent.kubelet import translate
from agent.kubelet.admission import Admissions
from agent.kubelet.allocator import Allocator, ImpossibleError
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from agent.kubelet.whose import Verdict, owner_of
from agent.model import Pod
from agent.state.records import Grant
from agent.state.store import Store
from agent.telemetry.logs import get_logger

__all__ = ["DevicePlugin"]

_GATE_PATIENCE = (
    5.0  # seconds of waiting inside one PreStartContainer call before the kubelet is sent round again
)
_GATE_INTERVAL = 0.1
_UNKNOWN_SECONDS = 60.0  # how long a container is held back because its annotations cannot be read


class DevicePlugin(rpc.DevicePluginServicer):
    """Serves one resource.

    ALLOCATED is called when the kubelet's list of containers is worth a look, STREAMS_CHANGED when a stream opened or
    ended. ADMISSIONS finds out whom a call is for, and CLUSTER tells people; without them nobody knows or is told.
    """

    def __init__(
        self,
        store: Store,
        allocator: Allocator,
        visible_devices: str,
        allocated: Callable[[], None],
        streams_changed: Callable[[], None],
        *,
        admissions: Admissions | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.streams = 0
        self._store = store
        self._allocator = allocator
        self._visible_devices = visible_devices
        self._allocated = allocated
        self._streams_changed = streams_changed
        self._admissions = admissions
        self._cluster: Cluster = cluster or NoCluster()
        self._evicted: set[str] = set()
        self._news = asyncio.Condition()
        self._version = 0
        self._withheld: frozenset[str] = frozenset()
        self._closed = False
        self._log = get_logger("plugin")

    async def set_inventory(self, inventory: Inventory) -> None:
        """Makes INVENTORY the present one and sends it to every open stream."""
        self._allocator.inventory = inventory
        async with self._news:
            self._version += 1
            self._news.notify_all()

    async def withhold(self, tokens: frozenset[str]) -> None:
        """Shows exactly TOKENS as not to be had, whatever the health of their cards."""
        if tokens == self._withheld:
            return
        self._withheld = tokens
        async with self._news:
            self._version += 1
            self._news.notify_all()

    async def close(self) -> None:
        """Ends the open streams; the kubelet then takes the devices for unhealthy until a plugin is back."""
        async with self._news:
            self._closed = True
            self._news.notify_all()

    async def GetDevicePluginOptions(self, request: api.Empty, context: Any) -> api.DevicePluginOptions:  # noqa: N802
        """Answers what is implemented beyond the minimum."""
        del request, context
        return translate.plugin_options()

    async def ListAndWatch(  # noqa: N802
        self, request: api.Empty, context: Any
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        """Sends all slices now and after every change, until the kubelet or the agent ends."""
        del request, context
        self._count(+1)
        try:
            sent = -1
            while not self._closed:
                if sent != self._version:
                    sent = self._version
                    yield translate.device_list(self._allocator.inventory, self._withheld)
                    continue
                async with self._news:
                    while not self._closed and sent == self._version:
                        await self._news.wait()
        finally:
            self._count(-1)

    async def GetPreferredAllocation(  # noqa: N802
        self, request: api.PreferredAllocationRequest, context: Any
    ) -> api.PreferredAllocationResponse:
        """Answers tokens of the cards that placement would choose; none for a request it cannot make sense of."""
        del context
        response = api.PreferredAllocationResponse()
        for wanted in request.container_requests:
            response.container_responses.add(deviceIDs=await self._prefer(wanted))
        return response

    async def Allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:  # noqa: N802
        """Places, records and answers every container of the request, or none of them."""
        wanted = [tuple(container.devices_ids) for container in request.container_requests]
        verdict = None
        if len(wanted) == 1 and self._admissions is not None and self._cluster.expected:
            verdict = await self._admissions.of_tokens(wanted[0])
        try:
            grants = self._allocator.allocate(wanted, verdict)
        except ImpossibleError as error:
            self._log.warning("allocation refused", detail=str(error))
            self._say(verdict, "Warning", "GigasliceImpossible", str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except GigasliceError as error:
            self._log.error("allocation failed", detail=str(error))
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        self._allocated()
        self._announce(verdict, grants)
        return api.AllocateResponse(container_responses=[self._answer(grant) for grant in grants])

    async def PreStartContainer(  # noqa: N802
        self, request: api.PreStartContainerRequest, context: Any
    ) -> api.PreStartContainerResponse:
        """Lets the container start when its memory is free and its allocation is safe on disk; else says why not."""
        found = self._allocator.find(request.devices_ids)
        if not found:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"no record of this container's {len(request.devices_ids)} devices in {self._store.state_dir}; "
                "delete the pod, so that it is allocated again",
            )
        try:
            for grant in found:
                self._store.ensure(grant)
            await asyncio.to_thread(self._store.sync)
            reason = await self._wait_until_ready(found[0].id, context.time_remaining())
        except GigasliceError as error:
            self._log.error("start gate failed", detail=str(error))
            reason = str(error)
        if reason:
            self._hold_back(found[0].id, reason)
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        return api.PreStartContainerResponse()

    async def _prefer(self, wanted: api.ContainerPreferredAllocationRequest) -> tuple[str, ...]:
        try:
            verdict = Verdict()
            if self._admissions is not None and self._cluster.expected:
                verdict = await self._admissions.whose(wanted.allocation_size)
            tokens = self._allocator.prefer(
                tuple(wanted.available_deviceIDs),
                tuple(wanted.must_include_deviceIDs),
                wanted.allocation_size,
                verdict.admitted,
            )
            if self._admissions is not None:
                self._admissions.prefers(tokens, verdict)
            return tokens
        except Exception:  # noqa: BLE001  (an error would fail the pod; without a preference the kubelet goes on)
            self._log.exception("no preference", size=wanted.allocation_size)
            return ()

    def _answer(self, grant: Grant) -> api.ContainerAllocateResponse:
        directory = self._store.dirs.path(grant.id)
        return translate.container_response(grant, directory, self._store.library_dir, self._visible_devices)

    async def _wait_until_ready(self, grant_id: str, remaining: float | None) -> str | None:
        patience = _GATE_PATIENCE if remaining is None else min(_GATE_PATIENCE, remaining / 2)
        deadline = time.monotonic() + patience
        while True:
            grant = self._store.book.find(grant_id)
            if grant is None:
                return "the kubelet has given this container's devices to another one; delete the pod"
            reason = await self._unsettled(grant) if grant.undecided else self._allocator.may_start(grant)
            if grant.undecided and reason is None:
                continue  # now it is decided
            if reason is None or self._closed or time.monotonic() >= deadline:
                return reason
            self._allocated()
            await asyncio.sleep(_GATE_INTERVAL)

    async def _unsettled(self, grant: Grant) -> str | None:
        """Why an undecided grant cannot be decided yet; None when it is."""
        admitted = owner_of(grant, self._cluster.pod, self._store.book, self._allocator.resource)
        if admitted is None and self._cluster.expected and self._allocator.age(grant) < _UNKNOWN_SECONDS:
            return "waiting for the pod's annotations from the API server"
        if admitted is None:
            self._log.warning("annotations unknown; started with defaults", allocation=grant.id)
        settled = self._allocator.settle(grant, admitted)
        if (
            settled.remake
            and admitted is not None
            and admitted.pod.controlled
            and grant.id not in self._evicted
        ):
            self._evicted.add(grant.id)
            self._say_of(admitted.pod, "Warning", "GigasliceEvicting", settled.reason or "", grant)
            problem = await self._cluster.evict(admitted.pod)
            self._log.warning("pod evicted", pod=str(admitted.pod), allocation=grant.id, detail=problem)
        return settled.reason

    def _hold_back(self, grant_id: str, reason: str) -> None:
        grant = self._store.book.find(grant_id)
        name = grant.name if grant else grant_id
        self._log.info("start held back", allocation=grant_id, container=name, detail=reason)
        pod = self._cluster.pod(grant.ref.namespace, grant.ref.pod) if grant and grant.ref else None
        if grant and pod is not None:
            self._say_of(pod, "Warning", "GigasliceWaiting", reason, grant)

    def _announce(self, verdict: Verdict | None, grants: Sequence[Grant]) -> None:
        admitted = verdict.admitted if verdict else None
        for grant in grants if admitted else ():
            cards = ", ".join(f"{units.format_bytes(size)} of {gpu}" for gpu, size in grant.quota().items())
            self._say(verdict, "Normal", "GigasliceAllocated", f"{cards} for container {grant.name}")
        for sentence in self._allocator.remarks(admitted) if admitted else ():
            self._say(verdict, "Warning", "GigasliceAnnotation", sentence)

    def _say(self, verdict: Verdict | None, kind: str, reason: str, text: str) -> None:
        if verdict is not None and verdict.admitted is not None:
            admitted = verdict.admitted
            self._cluster.event(admitted.pod, kind, reason, text, admitted.container.name)

    def _say_of(self, pod: Pod, kind: str, reason: str, text: str, grant: Grant) -> None:
        self._cluster.event(pod, kind, reason, text, grant.ref.container if grant.ref else "")

    def _count(self, change: int) -> None:
        self.streams += change
        self._log.debug("stream opened" if change > 0 else "stream ended", open=self.streams)
        self._streams_changed()
