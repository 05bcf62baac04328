"""Brings a dataset into the node's cache: lists its source, and fetches what is not there yet.

The listing is taken with the asking pod's own credentials, every time, and a little is read with them: only who may
list and read a source learns whether the node has it. Pods that ask at once with equal credentials share one. With the
listing the dataset's key is known: a key that is in the cache is there, one that is being fetched is waited for, and
any other is fetched. The one exception are Dataset objects of administrators that say so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gigaslice.dataset.errors import DatasetError, ImageError, LostWritesError, SourceError
from gigaslice.dataset.image import ImagePlan
from gigaslice.dataset.listing import Listing
from gigaslice.dataset.request import Check
from gigaslice.dataset.source_spec import dataset_key
from gigaslice.dataset_node.fetching.flights import Flight, Flights
from gigaslice.dataset_node.fetching.progress import Meter, Progress
from gigaslice.dataset_node.sources.listing_memory import ListingMemory
from gigaslice.dataset_node.sources.seam import DataSource
from gigaslice.dataset_node.store import About, DatasetStore, Part, Volume
from gigaslice.dataset_node.tasks.listings import Listings, OpenSource
from gigaslice.dataset_node.tasks.plans import Plans
from gigaslice.dataset_node.tasks.seams import ResolvedDataset
from gigaslice.dataset_node.tasks.threads import Threads
from gigaslice.dataset_node.tasks.uses import DatasetUses
from gigaslice.runtime.logs import get_logger
from gigaslice.units import format_bytes

__all__ = ["DatasetCounters", "Fetch", "Stage", "Supply"]

_CHANGES = 5  # of a source while it is fetched, before the task gives up for now


class Fetch(Protocol):
    """See `gigaslice.dataset_node.fetching.engine.fetch`."""

    async def __call__(
        self,
        plan: ImagePlan,
        listing: Listing,
        source: DataSource,
        part: Part,
        *,
        task: str,
        started: Callable[[Meter], None],
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


@dataclass(slots=True)
class Stage:
    """Where a dataset of a task is; read by those who show it."""

    name: str
    doing: str = "waiting"
    about: About | None = None
    flight: Flight[About] | None = field(default=None, repr=False)

    @property
    def progress(self) -> Progress | None:
        """Of the fetch; None where nothing is fetched for it."""
        return self.flight.progress if self.flight is not None else None

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        if self.doing == "ready":
            return 1.0
        progress = self.progress
        return progress.fraction if progress is not None else 0.0

    def text(self) -> str:
        """One clause for people."""
        progress = self.progress
        if self.doing != "fetching":
            return f"dataset {self.name}: {self.doing}"
        if progress is None:
            return f"dataset {self.name}: waiting for a place among the fetches of this node"
        eta = progress.eta
        left = f", {_duration(eta)} left" if eta is not None and progress.rate > 0 else ""
        return (
            f"dataset {self.name}: fetching {int(progress.fraction * 100)} % of "
            f"{format_bytes(progress.total_bytes)} ({format_bytes(int(progress.rate))}/s{left})"
        )


class Supply:
    """The way of datasets into STORE."""

    def __init__(
        self,
        store: DatasetStore,
        flights: Flights[About],
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
        self._listings = Listings(open_source, listings or ListingMemory())
        self._plans = Plans(threads)
        self._fetch = fetch
        self._threads = threads
        self._room_threads = room_threads or threads
        self._counters = counters
        self._log = get_logger("dataset")

    async def ensure(
        self, volume: Volume, found: ResolvedDataset, credentials: Mapping[str, str], stage: Stage
    ) -> About:
        """Has a dataset in the cache, pinned for a volume.

        Args:
            volume: Whose task it is for.
            found: The dataset.
            credentials: Those that its source is read with.
            stage: Is kept up to date.

        Raises:
            SourceError: The source cannot be read with these credentials.
            DatasetError: Anything else that keeps it away: no room, a quota, a listing that no image is made of.
        """
        if found.trusted:
            about = await self._known(volume, found)
            if about is not None:
                stage.about, stage.doing = about, "ready"
                self._counters.hits += 1
                return about
        for attempt in range(_CHANGES):
            try:
                about = await self._listed(volume, found, credentials, stage)
            except SourceError as error:
                if not error.changed or attempt + 1 == _CHANGES:
                    raise
                self._log.info("source changed; listed again", source=found.spec.canonical, detail=str(error))
                continue
            stage.about, stage.doing = about, "ready"
            return about
        raise AssertionError("the last attempt returns or raises")

    async def _known(self, volume: Volume, found: ResolvedDataset) -> About | None:
        """The version that a trusted object's pods get without a listing, if it is here."""
        if found.check is Check.PINNED:
            key = dataset_key(found.spec, bytes.fromhex(found.digest))
            about = await self._threads.run(self._store.ready, key)
        elif found.check is Check.NEVER:
            stored = await self._threads.run(self._store.stored)
            mine = [one for one in stored if one.complete and one.about.source == found.spec.canonical]
            newest = max(mine, key=lambda one: one.about.created, default=None)
            about = None if newest is None else await self._threads.run(self._store.ready, newest.about.key)
        else:
            about = None
        if about is not None:
            await self._pin(volume, about, found)
        return about

    async def _pin(self, volume: Volume, about: About, found: ResolvedDataset) -> None:
        await self._threads.run(self._store.pin, volume, about)
        self._uses.note(about.key, found.name, found.spec.canonical)

    async def _listed(
        self, volume: Volume, found: ResolvedDataset, credentials: Mapping[str, str], stage: Stage
    ) -> About:
        stage.doing = "listing its source"
        listed = await self._listings.take(found.spec, credentials)
        source, listing = listed.source, listed.listing
        spec = source.spec
        fetching = False
        try:
            if found.check is Check.PINNED and listing.digest.hex() != found.digest:
                raise SourceError(
                    f"{spec.canonical} has other contents than the version that the Dataset pins; restore them, or "
                    "pin the present version"
                )
            key = dataset_key(spec, listing.digest)
            about = await self._threads.run(self._store.ready, key)
            if about is not None:
                await self._pin(volume, about, found)
                self._counters.hits += 1
                return about
            stage.doing = "planning its image"
            planned = self._plans.of(key)  # held until the end, so that others find it
            layout = await self._plans.layout(planned, listing)
            listed.keep(layout.listing)
            listing = layout.listing  # equal, and one for all
            about = About(
                key,
                layout.size,
                spec.canonical,
                files=listing.files,
                bytes=listing.bytes,
                listing=listing.digest.hex(),
                requested=found.spec.canonical if found.spec.canonical != spec.canonical else "",
            )
            await self._pin(volume, about, found)
            stage.about, stage.doing = about, "fetching"
            flight = self._flights[key]
            if flight is not None:
                self._counters.joins += 1
                stage.flight = flight
            try:
                wanted = about

                async def start(begun: Flight[About]) -> About:
                    nonlocal fetching
                    fetching, stage.flight = True, begun
                    try:
                        return await self._fetched(
                            wanted, layout, listing, source, volume=volume, flight=begun
                        )
                    finally:
                        try:
                            await self._threads.run(self._store.rest, key)
                        finally:
                            await listed.give_back()

                return await self._flights.join(key, start)
            except BaseException:
                await self._threads.run(self._store.unpin, volume.id, key)
                raise
            finally:
                stage.flight = None
        finally:
            if not fetching:
                await listed.give_back()

    async def _fetched(
        self,
        about: About,
        layout: ImagePlan,
        listing: Listing,
        source: DataSource,
        *,
        volume: Volume,
        flight: Flight[About],
    ) -> About:
        counters, begun = self._counters, time.monotonic()
        ready = await self._threads.run(self._store.ready, about.key)
        if (
            ready is not None
        ):  # another flight has ended since this task found nothing, while it planned the image
            counters.hits += 1
            return ready
        counters.misses += 1
        part = await self._room_threads.run(self._store.begin, about)
        self._log.info(
            "fetch started",
            key=about.key,
            source=about.source,
            bytes=about.bytes,
            files=about.files,
            resumed=part.resumed,
            pod=f"{volume.namespace}/{volume.pod}",
        )
        try:
            digest = await self._fetch(
                layout, listing, source, part, task=volume.pod_uid or volume.id, started=flight.started
            )
            about = await self._threads.run(self._store.complete, part, digest)
        except (SourceError, ImageError) as error:
            counters.failures += 1
            if isinstance(error, ImageError) or error.changed:
                await self._threads.run(self._store.discard, about.key)
            self._log.warning("fetch failed", key=about.key, source=about.source, detail=str(error))
            raise
        except DatasetError as error:
            counters.failures += 1
            if isinstance(error, LostWritesError):
                await self._threads.run(self._store.discard, about.key)
            self._log.warning("fetch failed", key=about.key, source=about.source, detail=str(error))
            raise
        finally:
            progress = flight.progress
            counters.fetched_bytes += progress.fetched if progress is not None else 0
        seconds = time.monotonic() - begun
        counters.fetches += 1
        counters.fetched_files += about.files
        counters.fetch_seconds += seconds
        self._log.info(
            "fetched", key=about.key, source=about.source, bytes=about.bytes, seconds=round(seconds, 3)
        )
        return about


def _duration(seconds: float) -> str:
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
