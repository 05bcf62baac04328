"""The kubelet's side of any provider: five calls, each translated, answered by the provider, and translated back.

The kubelet makes GetPreferredAllocation and Allocate one after the other in its only admission loop and without a
deadline, and an error in either fails the pod for good; an error in PreStartContainer has it ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from agent.errors import GigasliceError
from agent.kubelet import translate
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from agent.providers.provider import NotYetError, Provider, RefusedError
from agent.telemetry.logs import get_logger

__all__ = ["Servicer"]


class Servicer(rpc.DevicePluginServicer):
    """Serves PROVIDER. STREAMS_CHANGED is called when a stream opened or ended."""

    def __init__(self, provider: Provider, streams_changed: Callable[[], None]) -> None:
        self.provider = provider
        self.streams = 0
        self._streams_changed = streams_changed
        self._news = asyncio.Condition()
        self._version = 0
        self._closed = False
        self._log = get_logger("plugin")

    @property
    def options(self) -> api.DevicePluginOptions:
        """Which optional calls the kubelet should make."""
        return translate.plugin_options(gated=self.provider.gated, prefers=self.provider.prefers)

    async def changed(self) -> None:
        """Sends the devices, as they are now, to every open stream."""
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
        return self.options

    async def ListAndWatch(  # noqa: N802
        self, request: api.Empty, context: Any
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        """Sends all devices now and after every change, until the kubelet or the agent ends."""
        del request, context
        self._count(+1)
        try:
            sent = -1
            while not self._closed:
                if sent != self._version:
                    sent = self._version
                    yield self.listed()
                    continue
                async with self._news:
                    while not self._closed and sent == self._version:
                        await self._news.wait()
        finally:
            self._count(-1)

    async def GetPreferredAllocation(  # noqa: N802
        self, request: api.PreferredAllocationRequest, context: Any
    ) -> api.PreferredAllocationResponse:
        """Answers what the provider prefers; nothing for a request it cannot make sense of."""
        del context
        response = api.PreferredAllocationResponse()
        for wanted in request.container_requests:
            response.container_responses.add(deviceIDs=await self._prefer(wanted))
        return response

    async def Allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:  # noqa: N802
        """Answers every container of the request, or none of them."""
        wanted = [tuple(container.devices_ids) for container in request.container_requests]
        try:
            answers = await self.provider.allocate(wanted)
        except RefusedError as error:
            self._log.warning("allocation refused", resource=self.provider.resource, detail=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except GigasliceError as error:
            self._log.error("allocation failed", resource=self.provider.resource, detail=str(error))
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        return api.AllocateResponse(container_responses=[translate.answer(one) for one in answers])

    async def PreStartContainer(  # noqa: N802
        self, request: api.PreStartContainerRequest, context: Any
    ) -> api.PreStartContainerResponse:
        """Lets the container start when the provider does; else says why not."""
        try:
            await self.provider.start(request.devices_ids, context.time_remaining())
        except RefusedError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except NotYetError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except GigasliceError as error:
            self._log.error("start gate failed", resource=self.provider.resource, detail=str(error))
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return api.PreStartContainerResponse()

    def listed(self) -> api.ListAndWatchResponse:
        """The devices as the kubelet is told them."""
        return translate.devices(self.provider.devices())

    async def _prefer(self, wanted: api.ContainerPreferredAllocationRequest) -> list[str]:
        try:
            return list(
                await self.provider.prefer(
                    tuple(wanted.available_deviceIDs),
                    tuple(wanted.must_include_deviceIDs),
                    wanted.allocation_size,
                )
            )
        except Exception:  # noqa: BLE001  (an error would fail the pod; without a preference the kubelet goes on)
            self._log.exception("no preference", size=wanted.allocation_size)
            return []

    def _count(self, change: int) -> None:
        self.streams += change
        self._log.debug("stream opened" if change > 0 else "stream ended", open=self.streams)
        self._streams_changed()
