"""Which containers hold which devices: the kubelet's pod-resources socket behind a Protocol.

The kubelet lists active pods only, names no pod UIDs, and leaves plain init containers out. A connection is kept for as
long as the socket is the same file and nothing has failed on it: a kubelet that was restarted has made another one. It
is closed by the last of its calls, since closing a channel cancels the tasks that wait on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import grpc

from agent.kubelet import listing
from agent.kubelet.pb import podresources_v1_pb2 as api
from agent.kubelet.pb import podresources_v1_pb2_grpc as rpc
from gigaslice.allocation.lifetime import ListedPod
from gigaslice.allocation.reconcile import Listed, Listing
from gigaslice.errors import KubeletError
from gigaslice.runtime.yielding import with_breaks

__all__ = ["PodResources", "PodResourcesClient"]

_MAX_ANSWER_BYTES = 16 << 20  # what the kubelet itself allows on this socket
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
    # Else a new channel goes on with the connection of one that is not closed yet.
    ("grpc.use_local_subchannel_pool", 1),
)
_PATIENT_SECONDS, _IMPATIENT_SECONDS = 2.0, 0.25
"""For a question on which an admission waits: a pod whose options are not known may get the wrong GPUs, which costs it
more than the waiting. The second, which all other pods wait for as well, after a question that was not answered."""
_TURNS, _TURN_SECONDS = 4, 0.011  # the kubelet answers 100 questions a second and refuses the others

T = TypeVar("T")


class PodResources(Protocol):
    """Tells which containers hold devices of our resource."""

    @property
    def settled(self) -> bool:
        """Whether what the last answer lacks means something; see `agent.kubelet.listing`."""
        ...

    @property
    def informed(self) -> bool:
        """Whether this kubelet has shown a pod that is not static."""
        ...

    async def list(self) -> Listing:
        """Pods and containers as the kubelet sees them now. Raises KubeletError when it does not say."""
        ...

    async def pods(self) -> tuple[ListedPod, ...]:
        """The same by pod and at once, for an admission that waits. Raises KubeletError."""
        ...


@dataclass(slots=True)
class _Connection:
    channel: grpc.aio.Channel
    identity: tuple[int, ...]  # of the socket
    calls: int = 0  # under way
    given_up: bool = False


class PodResourcesClient:
    """Asks the kubelet at SOCKET about RESOURCE, and WHOLE GPUs where that is given out; waits TIMEOUT seconds.

    NODE: the node's name, empty where it is not known. CLOCK: seconds that never go back.
    """

    def __init__(
        self,
        socket: Path,
        resource: str,
        timeout: float = 5.0,
        *,
        whole: str = "",
        node: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = socket
        self._resource = resource
        self._whole = whole
        self._timeout = timeout
        self._connection: _Connection | None = None
        self._silent = False  # the kubelet did not answer the last question in time
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

    async def list(self) -> Listing:
        """Pods and containers as the kubelet sees them now. Raises KubeletError when it does not say."""
        pods, settled = await self._ask(lambda answer: (answer.pod_resources, self.settled), self._timeout)
        found: list[Listed] = []
        async for pod in with_breaks(pods):  # a thousand entries take milliseconds, and calls wait meanwhile
            found += listing.containers_of(pod, self._resource, self._whole)
        return listing.gathered(pods, found, settled=settled)

    async def pods(self) -> tuple[ListedPod, ...]:
        """The same by pod and at once, for an admission that waits. Raises KubeletError."""
        patience = min(_IMPATIENT_SECONDS if self._silent else _PATIENT_SECONDS, self._timeout)
        return await self._ask(
            lambda answer: listing.listed_pods(answer, self._resource, self._whole), patience
        )

    async def close(self) -> None:
        """Gives the connection back, once no call is under way on it."""
        if self._connection is not None:
            await self._give_up(self._connection)

    async def _ask(self, read: Callable[[api.ListPodResourcesResponse], T], timeout: float) -> T:
        for turn in range(_TURNS):
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
                if code is grpc.StatusCode.RESOURCE_EXHAUSTED and turn + 1 < _TURNS:
                    await asyncio.sleep(_TURN_SECONDS)
                    continue
                connection.given_up = True
                self._silent = code is grpc.StatusCode.DEADLINE_EXCEEDED
                raise KubeletError(f"{self._socket}: {code.name}: {error.details()}") from error
            finally:
                connection.calls -= 1
                if connection.given_up:
                    await self._give_up(connection)
        raise AssertionError("every turn ends")

    async def _connected(self) -> _Connection:
        """A connection to the kubelet of now, with one more call counted on it."""
        try:
            found = self._socket.stat()
        except OSError as error:
            await self.close()
            raise KubeletError(
                f"{self._socket} does not exist; mount the kubelet's pod-resources directory"
            ) from error
        identity = (found.st_dev, found.st_ino, found.st_ctime_ns)
        known = self._connection
        if known is not None and known.identity != identity:
            await self._give_up(known)
        if self._connection is None:  # nobody else has made one meanwhile
            channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
            self._connection = _Connection(channel, identity)
        self._connection.calls += 1
        return self._connection

    async def _give_up(self, connection: _Connection) -> None:
        """Has no new calls made on CONNECTION, and closes it when none is under way any more."""
        connection.given_up = True
        if self._connection is connection:
            self._connection = None
        if not connection.calls:
            await connection.channel.close(None)
