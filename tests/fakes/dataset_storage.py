# SPDX-License-Identifier: Apache-2.0
"""Sources in memory for the dataset service: buckets with files, who may list them, and how they misbehave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits, Listing
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.roles.dataset_node.sources.opening import effective_spec
from gigaslice.roles.dataset_node.sources.readability import PROOF_THREAD

__all__ = ["Bucket", "MemorySource", "MemoryStorage"]

DENIED = "access denied by the storage; check the Secret"


@dataclass
class Bucket:
    """A bucket.

    files: by path. key: the credential that may list it; empty: everybody's. others: credentials that may, too.
    unreadable: those of them that may list and not read, as of now. proofs: reads that only show that one may. reads:
    all others. hold: those wait until it is set.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    key: str = ""
    others: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)
    listings: int = 0
    proofs: int = 0
    reads: int = 0
    read_bytes: int = 0
    opened: int = 0
    closed: int = 0
    fails: list[BaseException] = field(default_factory=list)  # raised by the next listings
    weight: int = 0  # the entries that a listing says it has, beside its own
    hold: threading.Event = field(default_factory=threading.Event)
    list_hold: asyncio.Event | None = None

    def __post_init__(self) -> None:
        self.hold.set()


class MemorySource:
    parallel = 4
    weak = False
    image = None

    def __init__(self, bucket: Bucket, spec: SourceSpec, key: str = "") -> None:
        self.bucket, self.spec, self.key = bucket, spec, key
        bucket.opened += 1

    async def list(self, limits: Limits = Limits()) -> Listing:  # noqa: B008  (frozen)
        self.bucket.listings += 1
        limits.check(self.bucket.weight, 0)
        files = dict(self.bucket.files)  # what changes from here on is not in it
        if self.bucket.list_hold is not None:
            await self.bucket.list_hold.wait()
        if self.bucket.fails:
            raise self.bucket.fails.pop(0)
        return Listing.of(
            Entry(name.encode(), EntryKind.FILE, len(data), str(hash(data))) for name, data in files.items()
        )

    def read_into(self, entry: Entry, offset: int, size: int, sink) -> None:
        proof = threading.current_thread().name == PROOF_THREAD
        if not proof:
            self.bucket.hold.wait()
        if self.key in self.bucket.unreadable:
            raise SourceError(f"{entry.path.decode()}: {DENIED}", denied=True)
        data = self.bucket.files[entry.path.decode()][offset : offset + size]
        if proof:
            self.bucket.proofs += 1
        else:
            self.bucket.reads += 1
            self.bucket.read_bytes += len(data)
        sink(offset, data)

    async def close(self) -> None:
        self.bucket.closed += 1


class MemoryStorage:
    """Buckets by name; to be used as `open_source`."""

    def __init__(self, **buckets: Bucket) -> None:
        self.buckets = buckets

    async def __call__(self, spec: SourceSpec, credentials: Mapping[str, str]) -> MemorySource:
        bucket = self.buckets.get(spec.server)
        key = credentials.get("key", "")
        if bucket is None or (bucket.key and key not in {bucket.key, *bucket.others}):
            raise SourceError(DENIED, denied=True)  # the same, whether there is one or not
        return MemorySource(bucket, effective_spec(spec, Credentials(credentials)), key)
