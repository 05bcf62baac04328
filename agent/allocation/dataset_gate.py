# SPDX-License-Identifier: Apache-2.0
"""Holds a container back until the datasets it mounts are there: asks the node's dataset service.

The dataset service may publish a volume before its data has arrived, so that images are pulled meanwhile. It does so
only while an agent is connected that checks before each start, and for pods whose containers all ask for resources that
this agent serves. So the connection is kept open, and tells which resources these are, as long as the agent sees the
pods of its node. Where it is missing, or the service does not answer, a container that mounts such a volume does not
start: it would find an empty directory. Nor does one of which nothing is known that says whether it mounts one, where
volumes may have been published early: the service leaves a file beside its socket from the first one on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from gigaslice.core.allocation.consumer import Consumer
from gigaslice.core.model import DATASET_DRIVER, Pod
from gigaslice.core.text import plain
from gigaslice.runtime.local_sockets import LineConnection
from gigaslice.runtime.logs import get_logger

__all__ = ["EARLY_FILE", "DatasetGate", "NoDatasetGate", "StartCondition"]

_ANSWER = 2.0  # seconds that the service may take
_MOST_ANSWER_BYTES = 65536
EARLY_FILE = "published-early"
"""Is beside the socket when volumes may have been published early since the machine has started."""


class StartCondition(Protocol):
    """Something that a container's start depends on besides its GPUs."""

    async def blocker(self, consumer: Consumer | None, pod: Pod | None) -> str | None:
        """Why a container may not start yet; None when it may. CONSUMER, POD: it and its pod, where they are known."""
        ...


class NoDatasetGate:
    """No dataset service is asked: --dataset-gate=off."""

    async def blocker(self, consumer: Consumer | None, pod: Pod | None) -> None:
        """Nothing."""
        del consumer, pod

    async def run(self) -> None:
        """Works until cancelled; there is nothing to do."""
        await asyncio.Event().wait()


class DatasetGate:
    """The connection to the dataset service of this node.

    Args:
        socket: Where the service listens.
        resources: What this agent serves; a name stands for itself and for its types, "NAME.TYPE".
        sees_pods: Whether the agent has the pods of its node as they are.
        pause: Seconds between two attempts to connect.
        patience: Seconds that the service may take for an answer.
        check_seconds: Between two checks whether the agent still sees its pods.
    """

    def __init__(
        self,
        socket: Path,
        resources: Sequence[str],
        sees_pods: Callable[[], bool] = lambda: True,
        *,
        pause: float = 2.0,
        patience: float = _ANSWER,
        check_seconds: float = 0.5,
    ) -> None:
        self._socket = socket
        self._sees_pods = sees_pods
        self._resources = tuple(resources)
        self._patience = patience
        self._check_seconds = check_seconds
        self._service = LineConnection(socket, self._announce, most=_MOST_ANSWER_BYTES, pause=pause)
        self._log = get_logger("datasets")

    async def run(self) -> None:
        """Keeps the connection until cancelled."""
        await self._service.run()

    async def blocker(self, consumer: Consumer | None, pod: Pod | None) -> str | None:
        """Why the container may not start yet; None when the datasets it mounts are there, or it mounts none."""
        uid = pod.uid if pod is not None else consumer.uid if consumer is not None else ""
        volumes = None
        if pod is not None:
            container = consumer.ref.container if consumer is not None else ""
            volumes = [
                volume.name
                for volume in pod.volumes_of(DATASET_DRIVER)
                if not container or container in volume.mounted_by
            ]
            if not volumes:
                return None
        if not self._service.connected:
            return self._missing("does not answer") if volumes or self._may_be_early() else None
        if not uid:
            return (
                "waiting for the pod from the API server: it may mount a dataset"
                if self._may_be_early()
                else None
            )
        question = {"ready": uid, **({} if volumes is None else {"volumes": volumes})}
        try:
            answer = await self._service.ask(question, self._patience)
        except (OSError, asyncio.TimeoutError):
            return self._missing(f"has not answered within {self._patience:g} s")
        if answer.get("ready") is True:
            return None
        reason = answer.get("detail") or answer.get("error") or "its datasets are not there yet"
        return plain(str(reason))[:1000]

    def _may_be_early(self) -> bool:
        return self._socket.with_name(EARLY_FILE).exists()

    def _missing(self, what: str) -> str:
        return (
            f"waiting for a dataset: the dataset service {what} on {self._socket}; "
            "is `gigaslice dataset` running on this node?"
        )

    async def _announce(self) -> None:
        """Says what this agent guards: nothing while it does not see its pods, and so cannot tell who has to wait."""
        self._log.info("connected to the dataset service", socket=str(self._socket))
        told: tuple[str, ...] | None = None
        try:
            while True:
                guarded = self._resources if self._sees_pods() else ()
                if guarded != told:
                    self._service.tell({"gatekeeper": {"resources": guarded}})
                    told = guarded
                await asyncio.sleep(self._check_seconds)
        finally:
            self._log.info("dataset service left", socket=str(self._socket))
