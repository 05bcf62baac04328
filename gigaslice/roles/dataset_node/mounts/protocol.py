# SPDX-License-Identifier: Apache-2.0
"""What the dataset service asks of the kernel's mounts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from gigaslice.core.dataset.errors import DatasetError
from gigaslice.roles.dataset_node.mounts.table import MountEntry

__all__ = ["MountError", "Mounts", "mount_errors"]


class MountError(DatasetError):
    """Something could not be mounted or unmounted. number: the errno; 0 where there is none."""

    def __init__(self, text: str, number: int = 0) -> None:
        super().__init__(text)
        self.number = number


@contextlib.contextmanager
def mount_errors(what: str) -> Iterator[None]:
    """Raises MountError in place of an OSError; WHAT begins its text."""
    try:
        yield
    except OSError as error:
        raise MountError(f"{what}: {error.strerror}", error.errno or 0) from error


class Mounts(Protocol):
    """The mounts of one node. Every method blocks, and raises MountError."""

    @property
    def has_erofs(self) -> bool:
        """Whether the kernel can mount EROFS images."""
        ...

    def table(self) -> tuple[MountEntry, ...]:
        """The mounts as they are now, the ones on top last."""
        ...

    def image(self, image: Path, where: Path) -> None:
        """Mounts an EROFS image, read-only, nosuid, nodev."""
        ...

    def bind(self, source: Path, where: Path) -> None:
        """Shows a directory at another place, read-only, nosuid, nodev. No link is followed in its path."""
        ...

    def empty(self, where: Path, directories: Sequence[str] = ()) -> None:
        """Mounts an empty read-only file system with these directories in it."""
        ...

    def unmount(self, where: Path) -> None:
        """Removes what is on top at a path; processes that have files open go on reading. No mount there: no error."""
        ...

    def network(self, kind: str, source: str, where: Path, options: Sequence[str]) -> None:
        """Mounts a network's file system, such as nfs, read-only, nosuid, nodev, by mount(8) and its helpers."""
        ...
