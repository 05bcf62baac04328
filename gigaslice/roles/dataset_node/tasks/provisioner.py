# SPDX-License-Identifier: Apache-2.0
"""Brings a dataset into the node's cache: lists its source, and fetches what is not there yet.

The listing is taken with the asking pod's own credentials, every time, and a little is read with them: only who may
list and read a source learns whether the node has it. Pods that ask at once with equal credentials share one. With the
listing the dataset's key is known. A key that is in the cache is there, a key that is being fetched is waited for, and
any other key is fetched. The one exception are Dataset objects of administrators that say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gigaslice.core.dataset.errors import DatasetError, ImageError, LostWritesError, SourceError
from gigaslice.core.dataset.image import ImagePlan
from gigaslice.core.dataset.listing import Listing
from gigaslice.core.dataset.request import Check
from gigaslice.core.dataset.source_spec import SourceSpec, dataset_key
from gigaslice.roles.dataset_node.fetching.progress import ProgressMeter
from gigaslice.roles.dataset_node.fetching.single_flight import Flight, SingleFlight
from gigaslice.roles.dataset_node.sources.listing_memory import ListingMemory
from gigaslice.roles.dataset_node.sources.protocol import DataSource
from gigaslice.roles.dataset_node.store import DatasetMetadata, DatasetStore, PartialImage, Volume
from gigaslice.roles.dataset_node.tasks.dataset_status import DatasetStatus, Stage
from gigaslice.roles.dataset_node.tasks.dataset_uses import DatasetUses
from gigaslice.roles.dataset_node.tasks.protocols import ResolvedDataset
from gigaslice.roles.dataset_node.tasks.shared_listings import ListedSource, OpenSource, SharedListings
from gigaslice.roles.dataset_node.tasks.shared_plans import SharedPlans
from gigaslice.roles.dataset_node.tasks.threads import Threads
from gigaslice.runtime.logs import get_logger

__all__ = ["DatasetCounters", "DatasetProvisioner", "Fetch"]

_MOST_LISTINGS = 5  # of a source that changes while it is fetched, before the task gives up for now


class Fetch(Protocol):
    """See `gigaslice.roles.dataset_node.fetching.engine.fetch`."""

    async def __call__(
        self,
        plan: ImagePlan,
        listing: Listing,
        source: DataSource,
        part: PartialImage,
        *,
        task: str,
        started: Callable[[ProgressMeter], None],
    ) -> str:
        """Fetches what is missing. Returns the BLAKE3 of the image."""
        ...


@dataclass(slots=True)
class DatasetCounters:
    """What the service has done since its start."""

    hits: int = 0
    misses: int = 0
    joins: int = 0
    fetched_bytes: int = 0
    fetched_files: int = 0
    fetch_seconds: float = 0.0
    fetches: int = 0
    failures: int = 0
    fallbacks: int = 0
    gate_waits: int = 0
    gate_wait_seconds: float = 0.0


class DatasetProvisioner:
    """Has datasets in STORE for the volumes that ask for them."""

    def __init__(
        self,
        store: DatasetStore,
        flights: SingleFlight[DatasetMetadata],
        open_source: OpenSource,
        fetch: Fetch,
        *,
        threads: Threads,
        counters: DatasetCounters,
        uses: DatasetUses,
        listings: ListingMemory | None = None,
        room_threads: Threads | None = None,
    ) -> None:
        """Initializes it. ROOM_THREADS: for the start of a fetch, which may wait for room; else THREADS."""
        self._store = store
        self._uses = uses
        self._flights = flights
        self._listings = SharedListings(open_source, listings or ListingMemory())
        self._plans = SharedPlans(threads)
        self._fetch = fetch
        self._threads = threads
        self._room_threads = room_threads or threads
        self._counters = counters
        self._log = get_logger("dataset")

    async def ensure(
        self,
        volume: Volume,
        dataset: ResolvedDataset,
        credentials: Mapping[str, str],
        status: DatasetStatus,
    ) -> DatasetMetadata:
        """Has a dataset in the cache, pinned for a volume.

        Args:
            volume: Whose task it is for.
            dataset: The dataset.
            credentials: Those that its source is read with.
            status: Is kept up to date.

        Raises:
            SourceError: The source cannot be read with these credentials.
            DatasetError: Anything else that keeps it away: no room, a quota, a listing that no image is made of.
        """
        metadata = await self._trusted_copy(volume, dataset) if dataset.trusted else None
        if metadata is not None:
            self._counters.hits += 1
        else:
            metadata = await self._provision_repeatedly(volume, dataset, credentials, status)
        status.metadata, status.stage = metadata, Stage.READY
        return metadata

    async def _trusted_copy(self, volume: Volume, dataset: ResolvedDataset) -> DatasetMetadata | None:
        """The version that a trusted object's pods get without a listing, if it is here."""
        key = ""
        if dataset.check is Check.PINNED:
            key = dataset_key(dataset.spec, bytes.fromhex(dataset.digest))
        elif dataset.check is Check.NEVER:
            key = await self._newest_key(dataset.spec)
        metadata = await self._threads.run(self._store.ready, key) if key else None
        if metadata is not None:
            await self._pin(volume, metadata, dataset)
        return metadata

    async def _newest_key(self, spec: SourceSpec) -> str:
        """Of the newest complete version of a source; empty where there is none."""
        complete = [
            stored.metadata for stored in await self._threads.run(self._store.stored) if stored.complete
        ]
        versions = [metadata for metadata in complete if metadata.source == spec.canonical]
        newest = max(versions, key=lambda metadata: metadata.created, default=None)
        return "" if newest is None else newest.key

    async def _pin(self, volume: Volume, metadata: DatasetMetadata, dataset: ResolvedDataset) -> None:
        """Pins a dataset for a volume; for no task that is cancelled meanwhile, since nobody would unpin it."""
        try:
            await self._threads.run(self._store.pin, volume, metadata)
        except asyncio.CancelledError:
            await self._threads.run(self._store.unpin, volume.id, metadata.key)
            raise
        self._uses.note(metadata.key, dataset.name, dataset.spec.canonical)

    async def _provision_repeatedly(
        self,
        volume: Volume,
        dataset: ResolvedDataset,
        credentials: Mapping[str, str],
        status: DatasetStatus,
    ) -> DatasetMetadata:
        """Begins anew with another listing, a few times, where the source changes meanwhile."""
        for attempt in range(1, _MOST_LISTINGS + 1):
            try:
                return await self._provision(volume, dataset, credentials, status)
            except SourceError as error:
                if not error.changed or attempt == _MOST_LISTINGS:
                    raise
                self._log.info(
                    "source changed; listed again", source=dataset.spec.canonical, detail=str(error)
                )
        raise AssertionError("the last attempt returns or raises")

    async def _provision(
        self,
        volume: Volume,
        dataset: ResolvedDataset,
        credentials: Mapping[str, str],
        status: DatasetStatus,
    ) -> DatasetMetadata:
        """Lists the source, and has what it lists in the cache."""
        status.stage = Stage.LISTING
        async with self._listings.listed(dataset.spec, credentials) as listed:
            spec = listed.source.spec
            _check_pinned_version(dataset, spec, listed.listing)
            key = dataset_key(spec, listed.listing.digest)
            cached = await self._threads.run(self._store.ready, key)
            if cached is not None:
                await self._pin(volume, cached, dataset)
                status.metadata = (
                    cached  # before the source is closed: who is cancelled meanwhile has to unpin it
                )
                self._counters.hits += 1
                return cached
            status.stage = Stage.PLANNING
            shared_plan = self._plans.of(key)  # held until the end, so that others find it
            layout = await self._plans.layout(shared_plan, listed.listing)
            listed.keep(layout.listing)  # equal, and one for all
            metadata = _metadata_of(key, layout, spec, dataset.spec)
            async with self._pinned(volume, metadata, dataset):
                status.metadata, status.stage = metadata, Stage.FETCHING
                return await self._fetch_once(volume, metadata, layout, listed, status)

    @contextlib.asynccontextmanager
    async def _pinned(
        self, volume: Volume, metadata: DatasetMetadata, dataset: ResolvedDataset
    ) -> AsyncIterator[None]:
        """Pins a dataset for a volume. The pin stays, but where the block fails."""
        await self._pin(volume, metadata, dataset)
        try:
            yield
        except BaseException:
            await self._threads.run(self._store.unpin, volume.id, metadata.key)
            raise

    async def _fetch_once(
        self,
        volume: Volume,
        metadata: DatasetMetadata,
        layout: ImagePlan,
        listed: ListedSource,
        status: DatasetStatus,
    ) -> DatasetMetadata:
        """Waits for the fetch of a key, and begins it where there is none. It may outlive the caller."""
        key = metadata.key
        status.flight = self._flights[key]
        if status.flight is not None:
            self._counters.joins += 1

        async def begin(flight: Flight[DatasetMetadata]) -> DatasetMetadata:
            status.flight = flight
            async with listed.shared() as source:
                try:
                    return await self._fetched(
                        metadata, layout, listed.listing, source, volume=volume, flight=flight
                    )
                finally:
                    await self._threads.run(self._store.end_fetch, key)

        try:
            return await self._flights.join(key, begin)
        finally:
            status.flight = None

    async def _fetched(
        self,
        metadata: DatasetMetadata,
        layout: ImagePlan,
        listing: Listing,
        source: DataSource,
        *,
        volume: Volume,
        flight: Flight[DatasetMetadata],
    ) -> DatasetMetadata:
        """Fetches a dataset, unless another flight has brought it while this task planned the image."""
        counters, begun = self._counters, time.monotonic()
        ready = await self._threads.run(self._store.ready, metadata.key)
        if ready is not None:
            counters.hits += 1
            return ready
        counters.misses += 1
        part = await self._room_threads.run(self._store.begin_fetch, metadata)
        self._log.info(
            "fetch started",
            key=metadata.key,
            source=metadata.source,
            bytes=metadata.bytes,
            files=metadata.files,
            resumed=part.resumed,
            pod=f"{volume.namespace}/{volume.pod}",
        )
        try:
            digest = await self._fetch(
                layout, listing, source, part, task=volume.pod_uid or volume.id, started=flight.started
            )
            metadata = await self._threads.run(self._store.complete, part, digest)
        except DatasetError as error:
            counters.failures += 1
            if _is_of_no_use_after(error):
                await self._threads.run(self._store.discard, metadata.key)
            self._log.warning("fetch failed", key=metadata.key, source=metadata.source, detail=str(error))
            raise
        finally:
            progress = flight.progress
            counters.fetched_bytes += progress.fetched if progress is not None else 0
        seconds = time.monotonic() - begun
        counters.fetches += 1
        counters.fetched_files += metadata.files
        counters.fetch_seconds += seconds
        self._log.info(
            "fetched",
            key=metadata.key,
            source=metadata.source,
            bytes=metadata.bytes,
            seconds=round(seconds, 3),
        )
        return metadata


def _check_pinned_version(dataset: ResolvedDataset, spec: SourceSpec, listing: Listing) -> None:
    if dataset.check is Check.PINNED and listing.digest.hex() != dataset.digest:
        raise SourceError(
            f"{spec.canonical} has other contents than the version that the Dataset pins; restore them, or "
            "pin the present version"
        )


def _metadata_of(key: str, layout: ImagePlan, spec: SourceSpec, requested: SourceSpec) -> DatasetMetadata:
    """Of a version that is to be fetched. REQUESTED is the source as the pod, or its Dataset, wrote it."""
    listing = layout.listing
    return DatasetMetadata(
        key,
        layout.size,
        spec.canonical,
        files=listing.files,
        bytes=listing.bytes,
        listing=listing.digest.hex(),
        requested=requested.canonical if requested.canonical != spec.canonical else "",
    )


def _is_of_no_use_after(error: DatasetError) -> bool:
    """Whether what has arrived cannot be a beginning of the next attempt."""
    changed = isinstance(error, SourceError) and error.changed
    return changed or isinstance(error, (ImageError, LostWritesError))
