# SPDX-License-Identifier: Apache-2.0
"""A process that fetches a directory into an image, slowly, to be killed: ROOT WHERE MICROSECONDS."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from gigaslice.core.dataset.image import plan
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.sources.posix import PosixSource
from tests.fakes.dataset_layout import PartFiles


class Counted(PosixSource):
    """Appends what it gives to a file, which outlives a kill."""

    def __init__(self, root: Path, where: Path, seconds: float) -> None:
        super().__init__(root, parallel=8)
        self._seconds = seconds
        self._given = (where / "given").open("ab", buffering=0)

    def read_into(self, entry, offset, size, sink):
        time.sleep(self._seconds)
        super().read_into(entry, offset, size, sink)
        self._given.write(b"%d\n" % size)


async def run(root: Path, where: Path, seconds: float) -> None:
    source = Counted(root, where, seconds)
    listing = await source.list()
    layout = plan(listing)
    part = PartFiles.begin(where, layout.size)
    print("begun", flush=True)
    print(await fetch(layout, listing, source, part, bounds=FetchLimits(), unit_bytes=1 << 18), flush=True)
    await source.close()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]) / 1e6))
