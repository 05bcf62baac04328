"""What a provider is: something that has devices and says what a container that was given some of them gets.

A provider knows nothing of the kubelet's protocol: `agent.deviceplugin.servicer` speaks it for any of them, with a
socket and a registration of its own. Two errors mean something to the kubelet: RefusedError is for good and fails the
pod, NotYetError holds a container back, and the kubelet asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from agent.providers.devices import Answer, Device, DeviceNode, Mount
from gigaslice.errors import GigasliceError

__all__ = ["Answer", "Device", "DeviceNode", "Mount", "NotYetError", "Provider", "RefusedError"]


class RefusedError(GigasliceError):
    """What the kubelet asks for can never be had; the text reaches the pod's event."""


class NotYetError(GigasliceError):
    """A container cannot start yet; the text says what is waited for."""


class Provider:
    """Base of all providers; `resource`, `devices` and `answer` are what every one of them has to say.

    resource: what pods ask for. prefers: `prefer` is implemented. gated: `start` is, and every start of a container
    waits for it. All calls are made from one event loop, and `allocate` and `prefer` hold up the kubelet's admissions:
    no network and no hardware in them.
    """

    resource: str = ""
    prefers: bool = False
    gated: bool = False

    def devices(self) -> Iterable[Device]:
        """All devices as they are now. One that is gone stays listed, unhealthy, while containers may have it."""
        raise NotImplementedError

    def answer(self, devices: Sequence[str]) -> Answer:
        """What a container with these DEVICES gets. Raises RefusedError."""
        raise NotImplementedError

    async def allocate(self, wanted: Sequence[Sequence[str]]) -> Sequence[Answer]:
        """An answer per container, all or none. Never refuse what time can mend: the pod would fail for good."""
        return [self.answer(devices) for devices in wanted]

    async def allocate_again(self, wanted: Sequence[Sequence[str]], age: float) -> Sequence[Answer]:
        """As `allocate`, for a call that came AGE seconds ago; who had it then did not live to answer."""
        del age
        return await self.allocate(wanted)

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """SIZE of the AVAILABLE devices that go well together; the kubelet need not follow."""
        del available, must_include, size
        return ()

    async def start(self, devices: Sequence[str], remaining: float | None) -> None:
        """Returns when a container with DEVICES may start; REMAINING seconds are left. Raises NotYetError."""
        del devices, remaining

    async def watch(self, changed: Callable[[], None]) -> None:
        """Calls CHANGED whenever `devices` would answer something else; ends only by being cancelled."""
        del changed
        await asyncio.Event().wait()
