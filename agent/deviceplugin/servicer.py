# SPDX-License-Identifier: Apache-2.0
"""The kubelet's side of any provider: its calls, each translated, answered by the provider, and translated back.

The kubelet makes GetPreferredAllocation and Allocate one after the other in its only admission loop and without a
deadline, and an error in either fails the pod for good; an error in PreStartContainer makes the kubelet call again.
The front answers for the options and keeps the stream of devices; the contents of both come from here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from agent.deviceplugin import messages
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.link import OfferedMethod
from agent.providers.resource import DevicePluginResource, NotYetError, RefusedError
from agent.telemetry.counters import Counters
from gigaslice.core.errors import GigasliceError
from gigaslice.core.text import plain
from gigaslice.runtime.logs import get_logger

__all__ = ["Servicer"]


class Servicer:
    """Serves one provider.

    Attributes:
        provider: The provider.
        streams: How many streams of the kubelet are open.
    """

    def __init__(self, provider: DevicePluginResource, counters: Counters | None = None) -> None:
        """Initializes the servicer.

        Args:
            provider: Answers the calls.
            counters: Where calls and registrations are counted; None where they are not.
        """
        self.provider = provider
        self.streams = 0
        self._counters = counters or Counters()
        self._news = asyncio.Condition()
        self._version = 0
        self._closed = False
        self._log = get_logger("plugin")

    @property
    def options(self) -> api.DevicePluginOptions:
        """Which optional calls the kubelet should make."""
        return messages.plugin_options(checks_start=self.provider.checks_start, prefers=self.provider.prefers)

    @property
    def methods(self) -> dict[str, OfferedMethod]:
        """What answers the kubelet's calls."""
        return {
            "GetPreferredAllocation": OfferedMethod(
                api.PreferredAllocationRequest, self.GetPreferredAllocation
            ),
            "Allocate": OfferedMethod(api.AllocateRequest, self.Allocate),
            "PreStartContainer": OfferedMethod(
                api.PreStartContainerRequest, self.PreStartContainer, repeatable=True
            ),
        }

    async def changed(self) -> None:
        """Sends the devices, as they are now, to every open stream."""
        async with self._news:
            self._version += 1
            self._news.notify_all()

    def watched(self, count: int) -> None:
        """Notes how many streams of the kubelet are open now. Each registration begins with a new one."""
        self._counters.registrations += max(0, count - self.streams)
        self.streams = count

    async def close(self) -> None:
        """Ends the list of devices; the provider waits for nothing any more."""
        self.provider.close()
        async with self._news:
            self._closed = True
            self._news.notify_all()

    async def lists(self) -> AsyncIterator[api.ListAndWatchResponse]:
        """Yields all devices now and after every change, until `close`."""
        sent = -1
        while not self._closed:
            if sent != self._version:
                sent = self._version
                yield messages.devices(self.provider.devices())
                continue
            async with self._news:
                while not self._closed and sent == self._version:
                    await self._news.wait()

    async def GetPreferredAllocation(  # noqa: N802
        self, request: api.PreferredAllocationRequest, context: Any
    ) -> api.PreferredAllocationResponse:
        """Answers what the provider prefers; nothing where that fails."""
        del context
        response = api.PreferredAllocationResponse()
        for container in request.container_requests:
            response.container_responses.add(deviceIDs=await self._prefer(container))
        return response

    async def Allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:  # noqa: N802
        """Answers every container of the request, or none of them. Timed, whatever comes of it."""
        begun = time.perf_counter()
        try:
            return await self._allocate(request, context)
        except BaseException:
            self._counters.allocate_failures += 1
            raise
        finally:
            self._counters.allocate.observe(time.perf_counter() - begun)

    async def PreStartContainer(  # noqa: N802
        self, request: api.PreStartContainerRequest, context: Any
    ) -> api.PreStartContainerResponse:
        """Lets the container start when the provider does; else says why not, and counts that."""
        try:
            await self._start(request, context)
        except BaseException:
            self._counters.gate_waits += 1
            raise
        return api.PreStartContainerResponse()

    async def _allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        requests = [tuple(container.devices_ids) for container in request.container_requests]
        try:
            if context.age is None:
                answers = await self.provider.allocate(requests)
            else:
                answers = await self.provider.allocate_again(requests, context.age)
        except RefusedError as error:
            self._log.warning("allocation refused", resource=self.provider.resource, detail=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, plain(str(error)))
        except GigasliceError as error:
            self._log.error("allocation failed", resource=self.provider.resource, detail=str(error))
            await context.abort(grpc.StatusCode.INTERNAL, plain(str(error)))
        return api.AllocateResponse(
            container_responses=[messages.container_response(edits) for edits in answers]
        )

    async def _start(self, request: api.PreStartContainerRequest, context: Any) -> None:
        try:
            await self.provider.start(request.devices_ids, context.time_remaining())
        except RefusedError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, plain(str(error)))
        except NotYetError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, plain(str(error)))
        except GigasliceError as error:
            self._log.error("start decision failed", resource=self.provider.resource, detail=str(error))
            await context.abort(grpc.StatusCode.UNAVAILABLE, plain(str(error)))

    async def _prefer(self, request: api.ContainerPreferredAllocationRequest) -> list[str]:
        try:
            return list(
                await self.provider.prefer(
                    tuple(request.available_deviceIDs),
                    tuple(request.must_include_deviceIDs),
                    request.allocation_size,
                )
            )
        except Exception:  # noqa: BLE001  (an error would fail the pod; without a preference the kubelet goes on)
            self._log.exception("preferred allocation failed", size=request.allocation_size)
            return []
