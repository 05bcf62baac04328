# SPDX-License-Identifier: Apache-2.0
"""What `gigaslice dataset ps`, `evict` and `wait` ask of the service of this node, over sockets.

Two sockets, since they have different callers: control.sock in the state directory, for root of the node; and wait.sock
in a directory of its own that may be mounted into pods, for the init-container form. The latter can only ask for data.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gigaslice.core.dataset.errors import DatasetError, RequestError
from gigaslice.core.errors import ControlError, GigasliceError
from gigaslice.core.kube.fields import object_at, strings_at
from gigaslice.core.text import plain
from gigaslice.roles.dataset_node.store import DatasetStore, StoredDataset, Volume
from gigaslice.roles.dataset_node.tasks.threads import Threads
from gigaslice.roles.dataset_node.tasks.volume_tasks import StillFetching, VolumeTasks, volume_name
from gigaslice.runtime.local_sockets import Answer, LineServer
from gigaslice.runtime.logs import get_logger

__all__ = ["CONTROL_SOCKET", "WAIT_PREFIX", "WAIT_SOCKET", "CommandServer"]

CONTROL_SOCKET = "control.sock"
WAIT_SOCKET = "wait.sock"
WAIT_PREFIX = "wait-"
_TELL_SECONDS = 0.5
_UID = re.compile(r"[0-9A-Za-z-]{8,64}")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_VOLUME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class CommandServer:
    """Answers commands.

    Args:
        tasks: The node's tasks.
        store: The node's cache.
        root: The state directory.
        waits: The directory of wait.sock.
        threads: For what blocks.
    """

    def __init__(
        self, tasks: VolumeTasks, store: DatasetStore, root: Path, waits: Path, *, threads: Threads
    ) -> None:
        self._tasks = tasks
        self._store = store
        self._pods = root / "pods"
        self._threads = threads
        self._control = LineServer(root / CONTROL_SOCKET, self._administrator)
        self._wait = LineServer(waits / WAIT_SOCKET, self._pod, mode=0o666)
        self._log = get_logger("control")

    async def run(self) -> None:
        """Works until cancelled."""
        await asyncio.gather(self._control.run(), self._wait.run())

    async def _administrator(self, message: dict[str, Any], answer: Answer) -> None:
        if "ps" in message:
            await answer(await self._ps())
        elif isinstance(evict := message.get("evict"), dict):
            await answer(await self._evict(evict))
        elif "wait" in message:
            await self._pod(message, answer)
        else:
            raise ControlError("the dataset service does not know this command; use the same version of both")

    async def _pod(self, message: dict[str, Any], answer: Answer) -> None:
        try:
            asked = message.get("wait")
            if not isinstance(asked, dict):
                raise RequestError("this socket serves `gigaslice dataset wait` only")
            await self._await(asked, answer)
        except GigasliceError as error:
            await answer({"error": plain(str(error)), "retry": not isinstance(error, RequestError)})

    async def _ps(self) -> dict[str, Any]:
        stored = await self._threads.run(self._store.stored)
        room = await self._threads.run(self._store.room)
        statuses = {
            status.metadata.key: status
            for task in self._tasks.tasks
            for status in task.statuses
            if status.metadata is not None
        }
        return {
            "room": max(0, room),
            "trash": await self._threads.run(lambda: self._store.trash_bytes),
            "datasets": [_dataset(dataset, statuses) for dataset in stored],
            "tasks": [
                {
                    "pod": f"{task.volume.namespace}/{task.volume.pod}",
                    "volume": volume_name(task.volume),
                    "datasets": [status.name for status in task.statuses],
                    "early": task.early,
                    "state": "failed" if not task.running and task.failure is not None else "running",
                    "detail": plain(task.text()),
                    "seconds": round(time.monotonic() - task.created, 1),
                }
                for task in self._tasks.tasks
            ],
        }

    async def _evict(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        stored = await self._threads.run(self._store.stored)
        keys: list[str] = []
        refused: dict[str, str] = {}
        for name in strings_at(asked, "names"):
            matching = [dataset.metadata.key for dataset in stored if _named(dataset, name)]
            keys += matching
            if not matching:
                refused[name] = "no dataset of this node has this name; `gigaslice dataset ps` shows them"
        seconds = asked.get("idle_seconds")
        if isinstance(seconds, int | float) and not isinstance(seconds, bool):
            keys += await self._threads.run(self._store.idle, float(seconds))
        sources = {dataset.metadata.key: dataset.metadata.source for dataset in stored}
        sizes = {dataset.metadata.key: dataset.metadata.size for dataset in stored}
        kept = await self._threads.run(self._store.evict, list(dict.fromkeys(keys)))
        gone = [key for key in dict.fromkeys(keys) if key not in kept]
        self._log.info("evicted on request", datasets=len(gone))
        return {
            "evicted": [{"key": key, "source": sources[key], "bytes": sizes[key]} for key in gone],
            "refused": {f"{sources.get(key, key)}": why for key, why in {**kept, **refused}.items()},
        }

    async def _await(self, asked: Mapping[str, Any], answer: Answer) -> None:
        volume = self._volume(asked)
        attributes = {str(key): str(value) for key, value in object_at(asked, "attributes").items()}
        credentials = {str(key): str(value) for key, value in object_at(asked, "credentials").items()}
        try:
            await self._threads.run(
                lambda: Path(volume.target).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            )
        except OSError as error:
            raise DatasetError(f"cannot make {volume.target}: {error.strerror}") from error
        while True:
            try:
                await self._tasks.publish(volume, attributes, credentials, _TELL_SECONDS, hold=True)
            except StillFetching as held:
                await answer({"progress": plain(str(held)), "share": self._share(volume.id)})
                continue
            break
        await answer({"ready": True, "path": volume.target})

    def _share(self, volume_id: str) -> float:
        for task in self._tasks.tasks:
            if task.volume.id == volume_id:
                return sum(status.fraction for status in task.statuses) / max(1, len(task.statuses))
        return 0.0

    def _volume(self, asked: Mapping[str, Any]) -> Volume:
        uid, namespace, pod = (str(asked.get(field, "")) for field in ("uid", "namespace", "pod"))
        name = str(asked.get("volume") or "data")
        if not _UID.fullmatch(uid):
            raise RequestError("POD_UID is not the UID of a pod; set it by fieldRef metadata.uid")
        for what, text in (("POD_NAMESPACE", namespace), ("POD_NAME", pod)):
            if not _LABEL.fullmatch(text):
                raise RequestError(f"{what} is no name; set it by fieldRef")
        if not _VOLUME.fullmatch(name):
            raise RequestError(f'"{plain(name)[:80]}" is no name of a volume; use a-z, 0-9 and "-"')
        target = str(self._pods / uid / name / "mount")
        return Volume(f"{WAIT_PREFIX}{uid}-{name}", target, uid, namespace, pod)


def _named(dataset: StoredDataset, name: str) -> bool:
    metadata = dataset.metadata
    return name in (metadata.key, metadata.source, metadata.requested) or (
        len(name) >= 6 and metadata.key.startswith(name)
    )


def _dataset(dataset: StoredDataset, statuses: Mapping[str, Any]) -> dict[str, Any]:
    metadata, status = dataset.metadata, statuses.get(dataset.metadata.key)
    progress = status.progress if status is not None else None
    state = (
        "ready" if dataset.complete else "fetching" if progress is not None or dataset.waiting else "partial"
    )
    if dataset.complete and (dataset.holders or dataset.waiting):
        state = "in use"
    return {
        "key": metadata.key,
        "source": metadata.source,
        "bytes": metadata.size,
        "files": metadata.files,
        "state": state,
        "last_used": dataset.last_used,
        "mounted": dataset.mounted,
        "waiting": dataset.waiting,
        "holders": sorted({f"{holder.namespace}/{holder.pod}" for holder in dataset.holders}),
        "digest": metadata.digest,
        "share": progress.fraction if progress is not None else 1.0 if dataset.complete else 0.0,
        "bytes_per_second": progress.rate if progress is not None else 0.0,
        "eta_seconds": progress.eta if progress is not None else None,
    }
