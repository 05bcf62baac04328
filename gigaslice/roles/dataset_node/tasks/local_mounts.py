# SPDX-License-Identifier: Apache-2.0
"""Local mode: the storage system itself is mounted once per source, and shown to every pod that asks for it.

A mount stays as long as a volume's record names it. Before there is a record, it stays as long as a task needs it: from
`attach` to `release`. Its place below the state directory follows from the source, so a service that starts anew finds
it. After a reboot it is mounted again when a pod asks. Each mount has its own lock, so a server that does not answer
holds up only the pods that ask for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.mounts import MountError, Mounts
from gigaslice.roles.dataset_node.store import VolumeRecord
from gigaslice.roles.dataset_node.tasks.threads import Threads

__all__ = ["LocalMounts", "MountSource"]

MountSource = Callable[[SourceSpec, Mapping[str, str], Path], Awaitable[str]]
"""Mounts the storage of a source below a directory, and returns the path of the data. Raises SourceError."""


class LocalMounts:
    """The mounts below DIRECTORY."""

    def __init__(
        self, directory: Path, mounts: Mounts, mount_source: MountSource, *, threads: Threads
    ) -> None:
        self._directory = directory
        self._mounts = mounts
        self._mount_source = mount_source
        self._threads = threads
        self._locks: dict[Path, asyncio.Lock] = {}
        self._users: dict[str, set[Path]] = {}  # mounts by the volume whose task has attached them

    async def attach(self, spec: SourceSpec, credentials: Mapping[str, str], volume_id: str) -> str:
        """The directory at which a source can be read, mounted if need be.

        It stays mounted until `release`, and then for as long as a record names it.

        Raises:
            SourceError: It cannot be mounted or read.
            MountError: The kernel refuses.
        """
        if spec.kind == "file":
            if not await self._threads.run(Path(spec.path).is_dir):
                raise SourceError(f"{spec.path} is no directory of this node; name one that is")
            return spec.path
        digest = hasher(f"{spec.canonical}\n{spec.options}".encode("utf-8", "surrogatepass"))
        for key in sorted(credentials):  # another pod's rights are not lent
            digest.update(f"{key}\0{credentials[key]}\0".encode("utf-8", "surrogatepass"))
        below = self._directory / digest.hexdigest()[:32]
        self._users.setdefault(volume_id, set()).add(below)
        async with self._locks.setdefault(below, asyncio.Lock()):
            points = await self._threads.run(self._mounted, below)
            if not points:
                return await self._mount_source(spec, credentials, below)
        return f"{points[0]}{spec.path}" if spec.kind == "beegfs" else points[0]

    def release(self, volume_id: str) -> None:
        """Says that the task of a volume needs no mount any more. What the volume's record names stays mounted."""
        self._users.pop(volume_id, None)

    async def detach(self, records: Callable[[], Mapping[str, VolumeRecord]]) -> None:
        """Unmounts what no task has attached and no record names. RECORDS blocks, and is called for each mount."""
        for below in await self._threads.run(self._directories):
            lock = self._locks.setdefault(below, asyncio.Lock())
            if not lock.locked() and not any(below in used for used in self._users.values()):
                async with lock:  # who attaches it from now on waits, and mounts it again
                    await self._threads.run(self._unmount, below, records)
            if not lock.locked() and not any(below in used for used in self._users.values()):
                self._locks.pop(below, None)

    def _directories(self) -> list[Path]:
        try:
            return sorted(self._directory.iterdir())
        except OSError:
            return []

    def _unmount(self, below: Path, records: Callable[[], Mapping[str, VolumeRecord]]) -> None:
        named = [
            volume_source.path
            for record in records().values()
            for volume_source in record.volume_sources
            if volume_source.path
        ]
        if any(path.startswith(f"{below}/") for path in named):
            return
        with contextlib.suppress(OSError, MountError):
            for point in self._mounted(below):
                self._mounts.unmount(Path(point))
                Path(point).rmdir()
            below.rmdir()

    def _mounted(self, below: Path) -> list[str]:
        return [mount.point for mount in self._mounts.table() if mount.point.startswith(f"{below}/")]
