# SPDX-License-Identifier: Apache-2.0
"""The dataset service with a slow source of which every byte is noted: GIVEN MILLISECONDS, then its own arguments.

GIVEN is a file that outlives a kill: a line for each range that has arrived, as its dataset, path, offset and size.
"""

from __future__ import annotations

import os
import sys
import time

from gigaslice.roles.dataset_node.sources.posix import PosixSource
from gigaslice_cli.entry import main


def slow_down(given: str, seconds: float) -> None:
    """Has every read of a directory wait, and noted."""
    lines = os.open(given, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    listed, read = PosixSource._list, PosixSource.read_into

    def _list(self, limits, stop):
        listing = listed(self, limits, stop)
        self.dataset = listing.digest.hex()
        return listing

    def read_into(self, entry, offset, size, sink):
        time.sleep(seconds)
        read(self, entry, offset, size, sink)
        os.write(lines, f"{self.dataset} {entry.path.hex()} {offset} {size}\n".encode())

    PosixSource._list, PosixSource.read_into = _list, read_into


if __name__ == "__main__":
    slow_down(sys.argv[1], float(sys.argv[2]) / 1e3)
    sys.argv[1:3] = []
    sys.exit(main())
