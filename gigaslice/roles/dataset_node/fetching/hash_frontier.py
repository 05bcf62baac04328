# SPDX-License-Identifier: Apache-2.0
"""Hashes an image while it is written in any order.

BLAKE3 needs the bytes of a file in their order. Units are fetched roughly in the order of the image, so the complete
part at its beginning grows steadily. A thread reads this part back from the page cache, and hashes it. That is one more
copy than hashing the bytes on their way, but it hashes what is in the file, and not what should be.
"""

from __future__ import annotations

import os
import threading

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.errors import DatasetError
from gigaslice.roles.dataset_node.fetching.bitmap import Bitmap
from gigaslice.roles.dataset_node.fetching.units import Units

__all__ = ["HashFrontier"]

_CHUNK = 256 << 10  # what stays in a core's own cache between being read and being hashed
_IDLE_SECONDS = 0.02


class HashFrontier:
    """Hashes an image up to its first missing unit, in a thread of its own.

    Everything that is no unit's must have been written before `start`.
    """

    def __init__(self, image: int, size: int, units: Units, bitmap: Bitmap) -> None:
        self._image = image
        self._size = size
        self._units = units
        self._bitmap = bitmap
        self._hash = hasher()
        self._piece = memoryview(bytearray(_CHUNK))
        self._hashed = 0
        self._missing = 0
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dataset-hash", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def finish(self) -> str:
        """Hashes the rest. Returns the digest of the whole image, as 64 hexadecimal digits.

        Raises:
            DatasetError: The image cannot be read, or a unit is missing.
        """
        self.stop()
        if self._failure is None:
            self._advance()
        if self._failure is not None:
            raise DatasetError(f"the image cannot be hashed: {self._failure}") from None
        if self._hashed != self._size:
            raise DatasetError("the image is not complete; this is a mistake of the service")
        return self._hash.hexdigest()

    def stop(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                if not self._advance():
                    self._ended.wait(_IDLE_SECONDS)
        except (OSError, DatasetError) as error:
            self._failure = error

    def _advance(self) -> bool:
        """Hashes what is complete by now. Returns whether there was anything."""
        self._missing = self._bitmap.missing(self._missing)
        whole = self._missing == self._units.count
        end = self._size if whole else self._units.place(self._missing)
        began = self._hashed
        while self._hashed < end:
            piece = self._piece[: end - self._hashed]
            size = os.preadv(self._image, [piece], self._hashed)
            if not size:
                raise DatasetError("it was cut short by another program")
            self._hash.update(piece[:size])
            self._hashed += size
            if self._ended.is_set() and not whole:
                break
        return self._hashed > began
