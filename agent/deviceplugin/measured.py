"""The device plugin with a clock and counters around its calls."""

from __future__ import annotations

import time
from typing import Any

from agent.deviceplugin.gpu_memory import DevicePlugin
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.telemetry.counters import Counters

__all__ = ["MeasuredPlugin"]


class MeasuredPlugin(DevicePlugin):
    """A DevicePlugin that counts into `counters`."""

    counters: Counters

    def watched(self, count: int) -> None:
        """A stream is what a registration is for; each begins with one."""
        self.counters.registrations += max(0, count - self.streams)
        super().watched(count)

    async def Allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:  # noqa: N802
        """Timed, whatever comes of it."""
        begun = time.perf_counter()
        try:
            return await super().Allocate(request, context)
        except BaseException:
            self.counters.allocate_failures += 1
            raise
        finally:
            self.counters.allocate.observe(time.perf_counter() - begun)

    async def PreStartContainer(  # noqa: N802
        self, request: api.PreStartContainerRequest, context: Any
    ) -> api.PreStartContainerResponse:
        """Counts the starts that are sent round again."""
        try:
            return await super().PreStartContainer(request, context)
        except BaseException:
            self.counters.gate_waits += 1
            raise
