# SPDX-License-Identifier: Apache-2.0
"""The sockets in plugins_registry: which have come, which are gone. For drivers of every kind."""

from __future__ import annotations

from pathlib import Path


class PluginSockets:
    """Looks at a directory again and again; a socket that was made anew under its name is gone, and has come."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._inodes: dict[Path, tuple[int, int]] = {}

    def poll(self) -> tuple[list[Path], list[Path]]:
        """Sockets that have come since the last time, by name, and those that are gone."""
        present = {}
        for path in sorted(self.directory.iterdir()):
            if not path.name.startswith(".") and path.is_socket():
                try:
                    status = path.lstat()
                except FileNotFoundError:
                    continue
                present[path] = status.st_dev, status.st_ino
        gone = [path for path, inode in self._inodes.items() if present.get(path) != inode]
        come = [path for path, inode in present.items() if self._inodes.get(path) != inode]
        self._inodes = present
        return come, gone

    def forget(self, path: Path | None = None) -> None:
        """A socket comes again at the next time: one of them, or all."""
        if path is None:
            self._inodes.clear()
        else:
            self._inodes.pop(path, None)
