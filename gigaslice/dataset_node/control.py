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

from gigaslice.dataset.errors import DatasetError, RequestError
from gigaslice.dataset_node.store import DatasetStore, Stored, Volume
from gigaslice.dataset_node.tasks.tasks import StillFetching, Tasks, volume_name
from gigaslice.dataset_node.tasks.threads import Threads
from gigaslice.errors import ControlError, GigasliceError
from gigaslice.kube.fields import object_at, strings_at
from gigaslice.runtime.local_sockets import Answer, LineServer
from gigaslice.runtime.logs import get_logger
from gigaslice.text import plain

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
        self, tasks: Tasks, store: DatasetStore, root: Path, waits: Path, *, threads: Threads
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
        flights = {
            stage.about.key: stage
            for task in self._tasks.tasks
            for stage in task.stages
            if stage.about is not None
        }
        return {
            "room": max(0, room),
            "trash": await self._threads.run(lambda: self._store.trash_bytes),
            "datasets": [_dataset(one, flights) for one in stored],
            "tasks": [
                {
                    "pod": f"{task.volume.namespace}/{task.volume.pod}",
                    "volume": volume_name(task.volume),
                    "datasets": [one.name for one in task.stages],
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
            found = [one.about.key for one in stored if _named(one, name)]
            keys += found
            if not found:
                refused[name] = "no dataset of this node has this name; `gigaslice dataset ps` shows them"
        seconds = asked.get("idle_seconds")
        if isinstance(seconds, int | float) and not isinstance(seconds, bool):
            keys += await self._threads.run(self._store.idle, float(seconds))
        sources = {one.about.key: one.about.source for one in stored}
        sizes = {one.about.key: one.about.size for one in stored}
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
                return sum(one.fraction for one in task.stages) / max(1, len(task.stages))
        return 0.0

    def _volume(self, asked: Mapping[str, Any]) -> Volume:
        uid, namespace, pod = (str(asked.get(one, "")) for one in ("uid", "namespace", "pod"))
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


def _named(one: Stored, name: str) -> bool:
    about = one.about
    return name in (about.key, about.source, about.requested) or (
        len(name) >= 6 and about.key.startswith(name)
    )


def _dataset(one: Stored, flights: Mapping[str, Any]) -> dict[str, Any]:
    about, stage = one.about, flights.get(one.about.key)
    progress = stage.progress if stage is not None else None
    state = "ready" if one.complete else "fetching" if progress is not None or one.waiting else "partial"
    if one.complete and (one.holders or one.waiting):
        state = "in use"
    return {
        "key": about.key,
        "source": about.source,
        "bytes": about.size,
        "files": about.files,
        "state": state,
        "last_used": one.last_used,
        "mounted": one.mounted,
        "waiting": one.waiting,
        "holders": sorted({f"{holder.namespace}/{holder.pod}" for holder in one.holders}),
        "digest": about.digest,
        "share": progress.fraction if progress is not None else 1.0 if one.complete else 0.0,
        "bytes_per_second": progress.rate if progress is not None else 0.0,
        "eta_seconds": progress.eta if progress is not None else None,
    }
