# SPDX-License-Identifier: Apache-2.0
"""Whether who has listed a source may read it, too, which storage systems grant separately.

A copy that another pod's fetch has made is given to every pod that lists the same. So a few files are read with the
asking pod's own credentials before anything else is done: one byte of each, spread over the listing, since a right is
often one to a prefix. It is done whether the node has the dataset or not. So the answer tells nothing about that, and
no room is made for data that the pod could not fetch.

It is a sample: rights to single files are not found out. A pack needs none, since its listing is a file of it.
"""

from __future__ import annotations

import asyncio
import functools

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind, Listing
from gigaslice.roles.dataset_node.fetching.units import UNIT_BYTES
from gigaslice.roles.dataset_node.sources.protocol import CancelFlag, DataSource, SourceBusyError, in_thread
from gigaslice.roles.dataset_node.sources.retry import backoff

__all__ = ["PROOF_THREAD", "check_readable"]

PROOF_THREAD = "dataset-proof"
_FILES = 4
_TRIES = 5


async def check_readable(source: DataSource, listing: Listing) -> None:
    """Reads a little of what SOURCE has listed. Raises SourceError as `DataSource.read_into`."""
    if source.image is not None:
        return
    reads = [in_thread(PROOF_THREAD, functools.partial(_read, source, entry)) for entry in _chosen(listing)]
    for failure in await asyncio.gather(*reads, return_exceptions=True):
        if failure is not None:
            raise failure


def _chosen(listing: Listing) -> list[Entry]:
    """The first file, the last one, and some between; the empty ones have nothing to be read."""
    files = [entry for entry in listing.entries if entry.kind is EntryKind.FILE and entry.size]
    if len(files) <= _FILES:
        return files
    return [files[number * (len(files) - 1) // (_FILES - 1)] for number in range(_FILES)]


def _read(source: DataSource, entry: Entry, stop: CancelFlag) -> None:
    size, failures = 1, 0
    while True:
        try:
            return source.read_into(entry, 0, size, lambda offset, data: None)
        except SourceError as error:
            if error.changed or error.denied:
                raise
            if not error.retry:
                if size == entry.size or entry.size > UNIT_BYTES:
                    raise
                size = entry.size  # a server without ranges gives whole files only
                continue
            failures += 1
            after = error.retry_after if isinstance(error, SourceBusyError) else 0.0
            if failures >= _TRIES or stop.wait(backoff(failures, after)):
                raise
