# SPDX-License-Identifier: Apache-2.0
"""The interface of a resource: it has devices, and tells what a container that was given some of them gets.

A resource has nothing to do with the kubelet's protocol: `agent.deviceplugin.servicer` speaks it for any resource, with
a socket and a registration of its own. Two errors reach the kubelet with a meaning: RefusedError is for good and fails
the pod, NotYetError holds a container back, and the kubelet calls again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agent.providers.container_edits import ContainerEdits
from gigaslice.core.errors import GigasliceError

__all__ = ["Device", "DevicePluginResource", "NotYetError", "RefusedError"]


@dataclass(frozen=True, slots=True)
class Device:
    """One unit of the resource. id: stable across restarts. numa: its NUMA node, None where that is unknown."""

    id: str
    healthy: bool = True
    numa: int | None = None


class RefusedError(GigasliceError):
    """What the kubelet asks for can never be had; the text reaches the pod's event."""


class NotYetError(GigasliceError):
    """A container cannot start yet; the text says what is waited for."""


class DevicePluginResource(ABC):
    """Base of all resources; `resource`, `devices`, and `answer` or `allocate` are what every one of them has to have.

    All calls are made from one event loop. `allocate` and `prefer` hold up the kubelet's admissions: no network and no
    hardware in them.

    Attributes:
        resource: What pods request.
        prefers: `prefer` is implemented.
        checks_start: `start` is implemented, and every start of a container waits for it.
    """

    resource: str = ""
    prefers: bool = False
    checks_start: bool = False

    def __init_subclass__(cls) -> None:
        """Refuses a class whose calls nothing would answer."""
        super().__init_subclass__()
        if cls.answer is DevicePluginResource.answer and cls.allocate is DevicePluginResource.allocate:
            raise TypeError(f"{cls.__name__} has neither answer nor allocate")

    @abstractmethod
    def devices(self) -> Iterable[Device]:
        """All devices as they are now. One that is gone stays listed, unhealthy, while containers may have it."""

    def answer(self, devices: Sequence[str]) -> ContainerEdits:
        """Returns what a container with these devices gets. Raises RefusedError."""
        raise TypeError(f"{type(self).__name__} answers by allocate alone")

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerEdits]:
        """Returns an answer per container, all or none. Refuse only what can never be: the pod fails for good."""
        return [self.answer(devices) for devices in requests]

    async def allocate_again(self, requests: Sequence[Sequence[str]], age: float) -> Sequence[ContainerEdits]:
        """As `allocate`, for a call that came AGE seconds ago to a process that ended before it answered."""
        del age
        return await self.allocate(requests)

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Returns as many of the available devices as asked for that go well together; the kubelet need not follow."""
        del available, must_include, size
        return ()

    async def start(self, devices: Sequence[str], remaining: float | None) -> None:
        """Returns when a container with these devices may start.

        Args:
            devices: The container's devices.
            remaining: Seconds until the kubelet gives up; None where it does not.

        Raises:
            NotYetError: It may not start yet.
        """
        del devices, remaining

    def close(self) -> None:  # noqa: B027  (most have nothing to end)
        """Ends the waiting in `start`: the program is about to end."""

    async def watch(self, changed: Callable[[], None]) -> None:
        """Calls `changed` whenever `devices` would answer something else; ends only by being cancelled."""
        del changed
        await asyncio.Event().wait()
