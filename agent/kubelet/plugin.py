"""The device plugin's gRPC face: five calls, each translated, decided elsewhere, and answered.

The kubelet makes GetPreferredAllocation and Allocate one after the other in its only admission loop and without a
deadline, and an error in either fails the pod for good: both answer at once, and the first never with an error.
PreStartContainer runs beside them, has 30 seconds and is repeated when it fails: whatever has to be waited for is
waited for there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from agent.discovery.source import Inventory
from agent.errors import GigasliceError
from agent.kubelet import translate
from agent.kubelet.allocator import Allocator, ImpossibleError
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from agent.state.records import Grant
from agent.state.store import Store
from agent.telemetry.logs import get_logger

__all__ = ["DevicePlugin"]

_GATE_PATIENCE = (
    5.0  # seconds of waiting inside one PreStartContainer call before the kubelet is sent round again
)
_GATE_INTERVAL = 0.1


class DevicePlugin(rpc.DevicePluginServicer):
    """Serves one resource.

    ALLOCATED is called when the kubelet's list of containers is worth a look, STREAMS_CHANGED when a stream opened or
    ended.
    """

    def __init__(
        self,
        store: Store,
        allocator: Allocator,
        visible_devices: str,
        allocated: Callable[[], None],
        streams_changed: Callable[[], None],
    ) -> None:
        self.streams = 0
        self._store = store
        self._allocator = allocator
        self._visible_devices = visible_devices
        self._allocated = allocated
        self._streams_changed = streams_changed
        self._news = asyncio.Condition()
        self._version = 0
        self._closed = False
        self._log = get_logger("plugin")

    async def set_inventory(self, inventory: Inventory) -> None:
        """Makes INVENTORY the present one and sends it to every open stream."""
        self._allocator.inventory = inventory
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
                    yield translate.device_list(self._allocator.inventory)
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
            response.container_responses.add(deviceIDs=self._prefer(wanted))
        return response

    async def Allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:  # noqa: N802
        """Places, records and answers every container of the request, or none of them."""
        try:
            grants = self._allocator.allocate([wanted.devices_ids for wanted in request.container_requests])
        except ImpossibleError as error:
            self._log.warning("allocation refused", detail=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except GigasliceError as error:
            self._log.error("allocation failed", detail=str(error))
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        self._allocated()
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
            reason = await self._wait_for_room(found[0].id, context.time_remaining())
        except GigasliceError as error:
            self._log.error("start gate failed", detail=str(error))
            reason = str(error)
        if reason:
            self._log.info("start held back", allocation=found[0].id, container=found[0].name, detail=reason)
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        return api.PreStartContainerResponse()

    def _prefer(self, wanted: api.ContainerPreferredAllocationRequest) -> tuple[str, ...]:
        try:
            return self._allocator.prefer(
                wanted.available_deviceIDs, wanted.must_include_deviceIDs, wanted.allocation_size
            )
        except Exception:  # noqa: BLE001  (an error would fail the pod; without a preference the kubelet goes on)
            self._log.exception("no preference", size=wanted.allocation_size)
            return ()

    def _answer(self, grant: Grant) -> api.ContainerAllocateResponse:
        directory = self._store.dirs.path(grant.id)
        return translate.container_response(grant, directory, self._store.library_dir, self._visible_devices)

    async def _wait_for_room(self, grant_id: str, remaining: float | None) -> str | None:
        patience = _GATE_PATIENCE if remaining is None else min(_GATE_PATIENCE, remaining / 2)
        deadline = time.monotonic() + patience
        while True:
            grant = self._store.book.find(grant_id)
            if grant is None:
                return "the kubelet has given this container's devices to another one; delete the pod"
            reason = self._allocator.may_start(grant)
            if reason is None or self._closed or time.monotonic() >= deadline:
                return reason
            self._allocated()
            await asyncio.sleep(_GATE_INTERVAL)

    def _count(self, change: int) -> None:
        self.streams += change
        self._log.debug("stream opened" if change > 0 else "stream ended", open=self.streams)
        self._streams_changed()
