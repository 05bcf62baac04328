# SPDX-License-Identifier: Apache-2.0
"""What a fetch needs from others: where everything belongs in the image, and the files that it works on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

__all__ = ["Layout", "PartialFiles"]


class Layout(Protocol):
    """Where everything of a dataset is in its image (`gigaslice.core.dataset.image`)."""

    @property
    def size(self) -> int:
        """Of the image in bytes."""

    @property
    def block_size(self) -> int:
        """A file whose offset is a multiple of it has the blocks that it is in to itself, the rest of them zeros."""

    def extents(self) -> Iterable[tuple[int, int]]:
        """Offset and size of each file, in the listing's order."""

    def metadata(self) -> Iterator[tuple[int, bytes]]:
        """Everything that is no file's."""


class PartialFiles(Protocol):
    """The files of a fetch on the node (`gigaslice.roles.dataset_node.store`)."""

    @property
    def image(self) -> Path:
        """Has its full size, zeros where nothing was written."""

    @property
    def bits(self) -> Path:
        """What has arrived; made here."""

    @property
    def resumed(self) -> bool:
        """Whether an earlier attempt has written to this image."""
