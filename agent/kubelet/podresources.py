"""Which containers hold which devices: the kubelet's pod-resources socket behind a Protocol.

The kubelet lists active pods only, names no pod UIDs, and leaves plain init containers out. A connection is kept for as
long as the socket is the same file: a kubelet that was restarted has made another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import grpc

from agent.errors import KubeletError
from agent.kubelet import translate
from agent.kubelet.pb import podresources_v1_pb2 as api
from agent.kubelet.pb import podresources_v1_pb2_grpc as rpc
from agent.kubelet.whose import ListedPod
from agent.state.breaks import with_breaks
from agent.state.reconcile import Listed, Listing

__all__ = ["PodResources", "PodResourcesClient"]

_MAX_ANSWER_BYTES = 16 << 20  # what the kubelet itself allows on this socket
_QUICK_SECONDS = 0.25  # for a question on which an admission waits
_TURNS, _TURN_SECONDS = 4, 0.011  # the kubelet answers 100 questions a second and refuses the others

T = TypeVar("T")


class PodResources(Protocol):
    """Tells which containers hold devices of our resource."""

    async def list(self) -> Listing:
        """Pods and containers as the kubelet sees them now. Raises KubeletError when it does not say."""
        ...

    async def pods(self) -> tuple[ListedPod, ...]:
        """The same by pod and at once, for an admission that waits. Raises KubeletError."""
        ...


class PodResourcesClient:
    """Asks the kubelet at SOCKET about RESOURCE, and WHOLE cards where that is given out; waits TIMEOUT seconds."""

    def __init__(self, socket: Path, resource: str, timeout: float = 5.0, *, whole: str = "") -> None:
        self._socket = socket
        self._resource = resource
        self._whole = whole
        self._timeout = timeout
        self._channel: grpc.aio.Channel | None = None
        self._identity: tuple[int, ...] = ()

    async def list(self) -> Listing:
        """Pods and containers as the kubelet sees them now. Raises KubeletError when it does not say."""
        pods = await self._ask(lambda answer: answer.pod_resources, self._timeout)
        found: list[Listed] = []
        async for pod in with_breaks(pods):  # a thousand entries take milliseconds, and calls wait meanwhile
            found += translate.containers_of(pod, self._resource, self._whole)
        return translate.gathered(pods, found)

    async def pods(self) -> tuple[ListedPod, ...]:
        """The same by pod and at once, for an admission that waits. Raises KubeletError."""
        quick = min(_QUICK_SECONDS, self._timeout)
        return await self._ask(lambda answer: translate.listed_pods(answer, self._resource), quick)

    async def close(self) -> None:
        """Gives the connection back."""
        channel, self._channel, self._identity = self._channel, None, ()
        if channel is not None:
            await channel.close(None)

    async def _ask(self, read: Callable[[api.ListPodResourcesResponse], T], timeout: float) -> T:
        for turn in range(_TURNS):
            channel = await self._connected()
            try:
                stub = rpc.PodResourcesListerStub(channel)
                return read(await stub.List(api.ListPodResourcesRequest(), timeout=timeout))
            except grpc.aio.AioRpcError as error:
                code = error.code()
                if code is grpc.StatusCode.RESOURCE_EXHAUSTED and turn + 1 < _TURNS:
                    await asyncio.sleep(_TURN_SECONDS)
                    continue
                await self.close()
                raise KubeletError(f"{self._socket}: {code.name}: {error.details()}") from error
        raise AssertionError("every turn ends")

    async def _connected(self) -> grpc.aio.Channel:
        try:
            found = self._socket.stat()
        except OSError as error:
            await self.close()
            raise KubeletError(
                f"{self._socket} does not exist; mount the kubelet's pod-resources directory"
            ) from error
        identity = (found.st_dev, found.st_ino, found.st_ctime_ns)
        if self._channel is None or identity != self._identity:
            await self.close()
            options = [("grpc.max_receive_message_length", _MAX_ANSWER_BYTES)]
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
            self._identity = identity
        return self._channel
