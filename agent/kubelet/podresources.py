# SPDX-License-Identifier: Apache-2.0
"""The client of the kubelet's pod-resources API: which containers hold which devices.

The kubelet lists active pods only, names no pod UIDs, and leaves plain init containers out. A connection is kept for as
long as the socket is the same file and nothing has failed on it: a restarted kubelet has made a new one. The last call
on it closes it, since closing a channel cancels the tasks that wait on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import grpc

from agent.kubelet import listing
from agent.kubelet.pb import podresources_v1_pb2 as api
from agent.kubelet.pb import podresources_v1_pb2_grpc as rpc
from gigaslice.core.deviceplugin.lifetime import ListedPod
from gigaslice.core.deviceplugin.reconcile import Listed, PodListing
from gigaslice.core.errors import KubeletError
from gigaslice.runtime.yielding import with_breaks

__all__ = ["PodResources", "PodResourcesClient"]

_MAX_ANSWER_BYTES = 16 << 20  # what the kubelet itself allows on this socket
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
    # Else a new channel goes on with the connection of one that is not closed yet.
    ("grpc.use_local_subchannel_pool", 1),
)
_PATIENT_SECONDS, _IMPATIENT_SECONDS = 2.0, 0.25
"""For a call on which an admission waits: a pod whose options are not known may get the wrong GPUs, which costs it more
than the waiting. The second after a call that was not answered, since all other pods wait as well."""
_TRIES, _TRY_SECONDS = 4, 0.011  # the kubelet answers 100 calls a second and refuses the others

T = TypeVar("T")


class PodResources(Protocol):
    """Which containers hold devices of this agent's resources."""

    @property
    def settled(self) -> bool:
        """Whether what the last answer lacks means something; see `agent.kubelet.listing`."""
        ...

    @property
    def informed(self) -> bool:
        """Whether this kubelet has shown a pod that is not static."""
        ...

    async def list(self) -> PodListing:
        """Returns pods and containers as the kubelet lists them now. Raises KubeletError when it does not answer."""
        ...

    async def pods(self) -> tuple[ListedPod, ...]:
        """Returns the same by pod and soon, for an admission that waits. Raises KubeletError."""
        ...


@dataclass(slots=True)
class _Connection:
    channel: grpc.aio.Channel
    identity: tuple[int, ...]  # of the socket
    calls: int = 0  # under way
    given_up: bool = False


class PodResourcesClient:
    """The API of the kubelet at one socket."""

    def __init__(
        self,
        socket: Path,
        resource: str | Sequence[str],
        timeout: float = 5.0,
        *,
        whole: str = "",
        node: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Initializes the client.

        Args:
            socket: The kubelet's pod-resources socket.
            resource: The resource of slices, or several.
            timeout: Seconds to wait for an answer.
            whole: The resource of whole GPUs, empty where none is offered.
            node: The node's name, empty where it is not known.
            clock: Seconds that never go back.
        """
        self._socket = socket
        self._resources = (resource,) if isinstance(resource, str) else tuple(resource)
        self._whole = whole
        self._timeout = timeout
        self._connection: _Connection | None = None
        self._silent = False  # the kubelet did not answer the last call in time
        self._settling = listing.Settling(node)
        self._clock = clock

    @property
    def settled(self) -> bool:
        """Whether what the last answer lacks means something."""
        return self._settling.settled

    @property
    def informed(self) -> bool:
        """Whether this kubelet has shown a pod that is not static."""
        return self._settling.informed

    async def list(self) -> PodListing:
        """Returns pods and containers as the kubelet lists them now. Raises KubeletError when it does not answer."""
        pods, settled = await self._ask(lambda answer: (answer.pod_resources, self.settled), self._timeout)
        containers: list[Listed] = []
        async for pod in with_breaks(pods):  # a thousand entries take milliseconds, and calls wait meanwhile
            containers += listing.containers_of(pod, self._resources, self._whole)
        return listing.gathered(pods, containers, settled=settled)

    async def pods(self) -> tuple[ListedPod, ...]:
        """Returns the same by pod and soon, for an admission that waits. Raises KubeletError."""
        return await self.pods_of(self._resources[0])

    async def pods_of(self, resource: str) -> tuple[ListedPod, ...]:
        """Returns the same where the admission is about devices of a given resource. Raises KubeletError."""
        patience = min(_IMPATIENT_SECONDS if self._silent else _PATIENT_SECONDS, self._timeout)
        return await self._ask(
            lambda answer: listing.listed_pods(answer, resource, self._resources, self._whole), patience
        )

    def of(self, resource: str) -> PodResources:
        """Returns the same API for admissions of another of its resources."""
        return _OfResource(self, resource)

    async def close(self) -> None:
        """Closes the connection once no call is under way on it."""
        if self._connection is not None:
            await self._give_up(self._connection)

    async def _ask(self, read: Callable[[api.ListPodResourcesResponse], T], timeout: float) -> T:
        for attempt in range(_TRIES):
            connection = await self._connected()
            try:
                stub = rpc.PodResourcesListerStub(connection.channel)
                answer = await stub.List(api.ListPodResourcesRequest(), timeout=timeout)
                self._silent = False
                names = (pod.name for pod in answer.pod_resources)
                self._settling.observe(connection.identity, names, self._clock())
                return read(answer)
            except grpc.aio.AioRpcError as error:
                code = error.code()
                if code is grpc.StatusCode.RESOURCE_EXHAUSTED and attempt + 1 < _TRIES:
                    await asyncio.sleep(_TRY_SECONDS)
                    continue
                connection.given_up = True
                self._silent = code is grpc.StatusCode.DEADLINE_EXCEEDED
                raise KubeletError(f"{self._socket}: {code.name}: {error.details()}") from error
            finally:
                connection.calls -= 1
                if connection.given_up:
                    await self._give_up(connection)
        raise AssertionError("every try returns or raises")

    async def _connected(self) -> _Connection:
        """Returns a connection to the present kubelet, with one more call counted on it."""
        try:
            status = self._socket.stat()
        except OSError as error:
            await self.close()
            raise KubeletError(
                f"{self._socket} does not exist; mount the kubelet's pod-resources directory"
            ) from error
        identity = (status.st_dev, status.st_ino, status.st_ctime_ns)
        connection = self._connection
        if connection is not None and connection.identity != identity:
            await self._give_up(connection)
        if self._connection is None:  # no other call has made one meanwhile
            channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
            self._connection = _Connection(channel, identity)
        self._connection.calls += 1
        return self._connection

    async def _give_up(self, connection: _Connection) -> None:
        """Makes no new calls on a connection, and closes it when none is under way any more."""
        connection.given_up = True
        if self._connection is connection:
            self._connection = None
        if not connection.calls:
            await connection.channel.close(None)


class _OfResource:
    """A client as an admission of one of its resources sees it."""

    def __init__(self, client: PodResourcesClient, resource: str) -> None:
        self._client = client
        self._resource = resource

    @property
    def settled(self) -> bool:
        return self._client.settled

    @property
    def informed(self) -> bool:
        return self._client.informed

    async def list(self) -> PodListing:
        return await self._client.list()

    async def pods(self) -> tuple[ListedPod, ...]:
        return await self._client.pods_of(self._resource)
