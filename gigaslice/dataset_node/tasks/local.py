"""Local mode: the storage system itself, mounted once per source and shown to every pod that asks for it.

A mount stays as long as a volume's record names it. It is under the state directory, at a place that follows from the
source, so that a service which is started anew finds it; after a reboot it is mounted again when a pod asks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from gigaslice.dataset.digest import hasher
from gigaslice.dataset.errors import SourceError
from gigaslice.dataset.source_spec import SourceSpec
from gigaslice.dataset_node.mounts import MountError, Mounts
from gigaslice.dataset_node.store import Record
from gigaslice.dataset_node.tasks.threads import Threads

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
        self._lock = asyncio.Lock()

    async def attach(self, spec: SourceSpec, credentials: Mapping[str, str]) -> str:
        """The directory at which a source can be read, mounted if need be. Raises SourceError and MountError."""
        if spec.kind == "file":
            if not await self._threads.run(Path(spec.path).is_dir):
                raise SourceError(f"{spec.path} is no directory of this node; name one that is")
            return spec.path
        made = hasher(f"{spec.canonical}\n{spec.options}".encode("utf-8", "surrogatepass"))
        for key in sorted(credentials):  # another pod's rights are not lent
            made.update(f"{key}\0{credentials[key]}\0".encode("utf-8", "surrogatepass"))
        below = self._directory / made.hexdigest()[:32]
        async with self._lock:
            found = await self._threads.run(self._mounted, below)
            if not found:
                return await self._mount_source(spec, credentials, below)
        return f"{found[0]}{spec.path}" if spec.kind == "beegfs" else found[0]

    def detach(self, records: Mapping[str, Record]) -> None:
        """Unmounts what no record names any more. Blocking."""
        named = [piece.path for record in records.values() for piece in record.pieces if piece.path]
        if not self._directory.exists():
            return
        with contextlib.suppress(OSError):
            for below in sorted(self._directory.iterdir()):
                if not any(path.startswith(f"{below}/") for path in named):
                    with contextlib.suppress(OSError, MountError):
                        for point in self._mounted(below):
                            self._mounts.unmount(Path(point))
                            Path(point).rmdir()
                        below.rmdir()

    def _mounted(self, below: Path) -> list[str]:
        return [one.point for one in self._mounts.table() if one.point.startswith(f"{below}/")]
