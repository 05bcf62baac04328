"""Which containers hold which devices: the kubelet's pod-resources socket behind a Protocol.

The kubelet lists active pods only, names no pod UIDs, and leaves plain init containers out. A fresh connection is made
for every question, a few a minute: after a kubelet's restart there is then no stale one to wait for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import grpc

from agent.errors import KubeletError
from agent.kubelet import translate
from agent.kubelet.pb import podresources_v1_pb2 as api
from agent.kubelet.pb import podresources_v1_pb2_grpc as rpc
from agent.state.reconcile import Listing

__all__ = ["PodResources", "PodResourcesClient"]

_MAX_ANSWER_BYTES = 16 << 20  # what the kubelet itself allows on this socket


class PodResources(Protocol):
    """Tells which containers hold devices of our resource."""

    async def list(self) -> Listing:
        """Pods and containers as the kubelet sees them now. Raises KubeletError when it does not say."""
        ...


class PodResourcesClient:
    """Asks the kubelet at SOCKET about RESOURCE and waits TIMEOUT seconds at most."""

    def __init__(self, socket: Path, resource: str, timeout: float = 5.0) -> None:
        self._socket = socket
        self._resource = resource
        self._timeout = timeout

    async def list(self) -> Listing:
        """Pods and containers as the kubelet sees them now. Raises KubeletError when it does not say."""
        if not self._socket.exists():
            raise KubeletError(f"{self._socket} does not exist; mount the kubelet's pod-resources directory")
        options = [("grpc.max_receive_message_length", _MAX_ANSWER_BYTES)]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            try:
                answer = await rpc.PodResourcesListerStub(channel).List(
                    api.ListPodResourcesRequest(), timeout=self._timeout
                )
            except grpc.aio.AioRpcError as error:
                raise KubeletError(f"{self._socket}: {error.code().name}: {error.details()}") from error
        return translate.listing(answer, self._resource)
