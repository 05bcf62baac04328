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
import contextlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from gigaslice.allocation.consumer import Consumer
from gigaslice.kube.json_text import read_json
from gigaslice.model import DATASET_DRIVER, Pod
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.time_limit import within
from gigaslice.text import plain

__all__ = ["EARLY_FILE", "DatasetGate", "NoDatasetGate", "StartCondition"]

_PAUSE = 2.0  # seconds between two attempts to connect
_ANSWER = 2.0  # seconds that the service may take
_LINE = 65536
_SEEN_SECONDS = 0.5  # between two checks whether the agent still sees its pods
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
    """

    def __init__(
        self, socket: Path, resources: Sequence[str], sees_pods: Callable[[], bool] = lambda: True
    ) -> None:
        self._socket = socket
        self._sees_pods = sees_pods
        self._resources = tuple(resources)
        self._numbers = itertools.count(1)
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._log = get_logger("datasets")

    async def run(self) -> None:
        """Keeps the connection until cancelled."""
        while True:
            with contextlib.suppress(OSError, ValueError):
                await self._connected()
            await asyncio.sleep(_PAUSE)

    async def blocker(self, consumer: Consumer | None, pod: Pod | None) -> str | None:
        """Why the container may not start yet; None when the datasets it mounts are there, or it mounts none."""
        uid = pod.uid if pod is not None else consumer.uid if consumer is not None else ""
        volumes = None
        if pod is not None:
            container = consumer.ref.container if consumer is not None else ""
            volumes = [
                one.name
                for one in pod.volumes_of(DATASET_DRIVER)
                if not container or container in one.mounted_by
            ]
            if not volumes:
                return None
        if self._writer is None:
            return self._missing("does not answer") if volumes or self._may_be_early() else None
        if not uid:
            return (
                "waiting for the pod from the API server: it may mount a dataset"
                if self._may_be_early()
                else None
            )
        try:
            answer = await within(self._ask(uid, volumes), _ANSWER)
        except (OSError, asyncio.TimeoutError):
            return self._missing(f"has not answered within {_ANSWER:g} s")
        if answer.get("ready") is True:
            return None
        return plain(str(answer.get("detail") or "its datasets are not there yet"))[:1000]

    def _may_be_early(self) -> bool:
        return self._socket.with_name(EARLY_FILE).exists()

    def _missing(self, what: str) -> str:
        return (
            f"waiting for a dataset: the dataset service {what} on {self._socket}; "
            "is `gigaslice dataset` running on this node?"
        )

    async def _ask(self, uid: str, volumes: list[str] | None) -> dict[str, Any]:
        if self._writer is None:
            raise ConnectionResetError
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._send({"id": number, "ready": uid, **({} if volumes is None else {"volumes": volumes})})
            return await answer
        finally:
            self._asked.pop(number, None)

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def _announce(self) -> None:
        """Says what this agent guards: nothing while it does not see its pods, and so cannot tell who has to wait."""
        told: tuple[str, ...] | None = None
        while True:
            guarded = self._resources if self._sees_pods() else ()
            if guarded != told:
                self._send({"gatekeeper": {"resources": guarded}})
                told = guarded
            await asyncio.sleep(_SEEN_SECONDS)

    async def _connected(self) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=_LINE)
        announcing: asyncio.Task[None] | None = None
        try:
            self._writer = writer
            self._log.info("connected to the dataset service", socket=str(self._socket))
            announcing = asyncio.create_task(self._announce())
            while line := await _line(reader):
                try:
                    answer = read_json(line)
                except ValueError:
                    continue  # of one question, which ends by its own limit; the others are answered
                asked = self._asked.get(answer.get("id", 0)) if isinstance(answer, dict) else None
                if asked is not None and not asked.done():
                    asked.set_result(answer)
        finally:
            self._writer = None
            if announcing is not None:
                announcing.cancel()
                await asyncio.wait([announcing])
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(ConnectionResetError())
            writer.close()
            self._log.info("dataset service left", socket=str(self._socket))


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Reads a line; of one that is too long, what is left of it."""
    while True:
        with contextlib.suppress(ValueError):
            return await reader.readline()
