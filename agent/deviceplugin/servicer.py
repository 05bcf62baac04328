"""The kubelet's side of any provider: its calls, each translated, answered by the provider, and translated back.

The front answers for the options and keeps the stream of devices; what goes into both is said here.

The kubelet makes GetPreferredAllocation and Allocate one after the other in its only admission loop and without a
deadline, and an error in either fails the pod for good; an error in PreStartContainer has it ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from agent.deviceplugin import messages
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.providers.provider import NotYetError, Provider, RefusedError
from gigaslice.errors import GigasliceError
from gigaslice.runtime.logs import get_logger
from gigaslice.text import plain

__all__ = ["Servicer"]


class Servicer:
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
        return messages.plugin_options(gated=self.provider.gated, prefers=self.provider.prefers)

    async def changed(self) -> None:
        """Sends the devices, as they are now, to every open stream."""
        async with self._news:
            self._version += 1
            self._news.notify_all()

    def watched(self, count: int) -> None:
        """COUNT streams of the kubelet are open now."""
        if count != self.streams:
            self.streams = count
            self._streams_changed()

    async def close(self) -> None:
        """Nothing is waited for any more."""
        async with self._news:
            self._closed = True
            self._news.notify_all()

    async def lists(self) -> AsyncIterator[api.ListAndWatchResponse]:
        """All devices now and after every change, until `close`."""
        sent = -1
        while not self._closed:
            if sent != self._version:
                sent = self._version
                yield self.listed()
                continue
            async with self._news:
                while not self._closed and sent == self._version:
                    await self._news.wait()

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
            if context.age is None:
                answers = await self.provider.allocate(wanted)
            else:
                answers = await self.provider.allocate_again(wanted, context.age)
        except RefusedError as error:
            self._log.warning("allocation refused", resource=self.provider.resource, detail=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, plain(str(error)))
        except GigasliceError as error:
            self._log.error("allocation failed", resource=self.provider.resource, detail=str(error))
            await context.abort(grpc.StatusCode.INTERNAL, plain(str(error)))
        return api.AllocateResponse(container_responses=[messages.answer(one) for one in answers])

    async def PreStartContainer(  # noqa: N802
        self, request: api.PreStartContainerRequest, context: Any
    ) -> api.PreStartContainerResponse:
        """Lets the container start when the provider does; else says why not."""
        try:
            await self.provider.start(request.devices_ids, context.time_remaining())
        except RefusedError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, plain(str(error)))
        except NotYetError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, plain(str(error)))
        except GigasliceError as error:
            self._log.error("start gate failed", resource=self.provider.resource, detail=str(error))
            await context.abort(grpc.StatusCode.UNAVAILABLE, plain(str(error)))
        return api.PreStartContainerResponse()

    def listed(self) -> api.ListAndWatchResponse:
        """The devices as the kubelet is told them."""
        return messages.devices(self.provider.devices())

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
