# SPDX-License-Identifier: Apache-2.0
"""Fetches every unit of a dataset that is missing from its image, by many threads, and hashes the image meanwhile.

Threads take batches of units: few while there is much latency to hide, many files at once when files are small, since
handing work over costs as much as reading a small file. There are as many threads as help: their number doubles while
the process leaves its core idle, up to the bound. (Threads that compete for the interpreter's lock make each other
slower: 64 of them read a local directory at half the speed of 8.)

A unit counts once all of its bytes are in the file. What fails is tried again later than what was never tried, and a
server that is busy is left alone by all threads at once. A file that is not what was listed ends the fetch: there is
nothing to resume, the caller lists again. Everything else that ends it, cancellation too, keeps what has arrived.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import threading
import time
from collections.abc import Callable, Iterator

from gigaslice.core.dataset.errors import CacheFullError, DatasetError, SourceError
from gigaslice.core.dataset.listing import Listing
from gigaslice.roles.dataset_node.fetching.bitmap import Bitmap
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits, Flow
from gigaslice.roles.dataset_node.fetching.hash_frontier import HashFrontier
from gigaslice.roles.dataset_node.fetching.image_runs import read_run, runs_of
from gigaslice.roles.dataset_node.fetching.layout import Layout, PartialFiles
from gigaslice.roles.dataset_node.fetching.progress import ProgressMeter
from gigaslice.roles.dataset_node.fetching.units import UNIT_BYTES, FetchUnit, Units
from gigaslice.roles.dataset_node.fetching.write_coalescer import WriteCoalescer
from gigaslice.roles.dataset_node.sources.protocol import (
    CancelFlag,
    DataSource,
    ImageReader,
    SourceBusyError,
    in_thread,
)
from gigaslice.roles.dataset_node.sources.retry import TRIES, backoff

__all__ = ["fetch"]

_BATCH_UNITS, _BATCH_BYTES = 64, 1 << 20
_IMAGE_UNITS = 4096
_IMAGE_LEAST, _IMAGE_MOST, _IMAGE_RANGES = 1 << 20, 8 << 20, 128
_FIRST_THREADS = 4
_GROW_SECONDS = 0.05
_BUSY_CORES = 0.7
_SMALL = 256 << 10  # bytes per unit below which the interpreter is what is scarce
_SYNC_SECONDS, _SYNC_BYTES = 5.0, 512 << 20


async def fetch(
    plan: Layout,
    listing: Listing,
    source: DataSource,
    part: PartialFiles,
    *,
    bounds: FetchLimits,
    task: str = "",
    started: Callable[[ProgressMeter], None] | None = None,
    unit_bytes: int = UNIT_BYTES,
    flush_seconds: float = 0.02,
    patience: float = 5.0,
) -> str:
    """Fetches what is missing of a dataset.

    Args:
        plan: The layout of LISTING's image.
        listing: What SOURCE has.
        source: Is left open.
        part: Where it is written. It is kept, whatever happens.
        bounds: The node's.
        task: Who it is for: places are shared fairly between tasks.
        started: Is given the meter of the fetch, in a thread, when reading begins.
        unit_bytes: Must be the same in every attempt.
        flush_seconds: For so long a thread collects what it has read before it is written and counts.
        patience: Seconds that a fetch that is given up waits for its threads.

    Returns:
        The BLAKE3 of the whole image, 64 hexadecimal digits. The image is not synced: that is who keeps it.

    Raises:
        SourceError: The source cannot be read; with `changed` set, it must be listed again.
        CacheFullError: The disk is full all the same.
        LostWritesError: The node's disk has not kept what was written; none of it counts for the next attempt.
        DatasetError: The image cannot be written.
    """
    async with bounds.place(task):

        def work(stop: CancelFlag) -> str:
            units = Units(listing.entries, plan.extents(), unit_bytes)
            fetching = _Fetch(
                plan, units, source, part, bounds=bounds, stop=stop, flush_seconds=flush_seconds
            )
            return fetching.run(started)

        digest = await in_thread("dataset-fetch", work, patience=patience)
        if source.weak and (await source.list()).digest != listing.digest:
            raise SourceError(
                "the source changed while the dataset was fetched; it is listed again as a new version",
                changed=True,
            )
        return digest


class _Fetch:
    def __init__(
        self,
        plan: Layout,
        units: Units,
        source: DataSource,
        part: PartialFiles,
        *,
        bounds: FetchLimits,
        stop: CancelFlag,
        flush_seconds: float,
    ) -> None:
        self._plan = plan
        self._source = source
        self._from_image = source.image
        self._most_bytes = _BATCH_BYTES
        if source.image is not None:
            self._most_bytes = min(_IMAGE_MOST, max(_IMAGE_LEAST, units.bytes // _IMAGE_RANGES))
        self._part = part
        self._bounds = bounds
        self._flush_seconds = flush_seconds
        self._flow = Flow()
        self._outer_stop = stop
        self._stop = CancelFlag(stop)
        self._units = units
        self._small = self._units.bytes < _SMALL * max(1, self._units.count)
        self._image = -1
        self._bitmap: Bitmap
        self._meter: ProgressMeter
        self._wake = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._cursor = 0
        self._again: list[tuple[float, int, int]] = []
        self._pause_until = 0.0
        self._left = 0
        self._failure: BaseException | None = None

    def run(self, started: Callable[[ProgressMeter], None] | None) -> str:
        with self._opened():
            have = self._bitmap.count
            self._left = self._units.count - have
            self._meter = ProgressMeter(self._units.bytes, self._have_bytes(have))
            if started is not None:
                started(self._meter)
            self._write_metadata()
            frontier = HashFrontier(self._image, self._plan.size, self._units, self._bitmap)
            frontier.start()
            try:
                self._read_all()
                if self._failure is not None:
                    raise self._failure
                if self._outer_stop:
                    raise DatasetError("the fetch was given up; what has arrived is kept")
                digest = frontier.finish()
                self._check(digest)
                self._bitmap.sync(self._image)
                return digest
            except BaseException:
                with contextlib.suppress(DatasetError):
                    self._bitmap.sync(self._image)
                raise
            finally:
                frontier.stop()

    def _check(self, digest: str) -> None:
        if self._from_image is None:
            return
        try:
            self._from_image.check(digest, lambda offset, size: os.pread(self._image, size, offset))
        except SourceError:
            with contextlib.suppress(OSError):
                self._part.bits.unlink()  # nothing of it is to be trusted by the next attempt
            raise

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        part, size = self._part, self._plan.size
        try:
            self._image = os.open(part.image, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            actual_size = os.fstat(self._image).st_size
        except OSError as error:
            raise _disk(error) from None
        try:
            if actual_size != size:
                raise DatasetError(f"the file of the image has {actual_size} bytes, and the plan {size}")
            self._bitmap = Bitmap(
                part.bits,
                self._image,
                self._units.count,
                resumed=part.resumed,
                layout=self._units.fingerprint,
            )
            try:
                yield
            finally:
                self._bitmap.close()
        finally:
            for thread in self._threads:
                thread.join()
            os.close(self._image)

    def _have_bytes(self, have: int) -> int:
        if not have:
            return 0
        if have == self._units.count:
            return self._units.bytes
        return sum(self._units[number].size for number in range(self._units.count) if number in self._bitmap)

    def _write_metadata(self) -> None:
        for offset, data in self._plan.metadata():
            if self._stop:
                return
            self._write(offset, data)

    def _write(self, place: int, data: bytes | bytearray | memoryview) -> None:
        written = os.pwrite(self._image, data, place)
        if written != len(data):
            view = memoryview(data)
            while written < len(view):
                written += os.pwrite(self._image, view[written:], place + written)

    # The coordinator

    def _read_all(self) -> None:
        try:
            self._coordinate()
        finally:
            self._stop.set()
            with self._wake:
                self._wake.notify_all()
            for thread in self._threads:
                thread.join()

    def _coordinate(self) -> None:
        most = max(1, min(self._bounds.reads, self._source.parallel, self._left))
        self._more_threads(min(_FIRST_THREADS, most))
        clock, cpu = time.monotonic(), time.process_time()
        synced_at, synced_bytes = clock, 0
        syncing: threading.Thread | None = None
        while True:
            with self._wake:
                if self._failure is not None or self._left <= 0 or self._outer_stop:
                    break
                self._wake.wait(_GROW_SECONDS)
            now, used = time.monotonic(), time.process_time()
            if len(self._threads) < most and now - clock >= _GROW_SECONDS:
                if not self._small or used - cpu < _BUSY_CORES * (now - clock):
                    self._more_threads(min(len(self._threads), most - len(self._threads)))
                clock, cpu = now, used
            read = self._meter.now().fetched
            due = now - synced_at >= _SYNC_SECONDS or read - synced_bytes >= _SYNC_BYTES
            if due and read > synced_bytes and (syncing is None or not syncing.is_alive()):
                synced_at, synced_bytes = now, read
                syncing = threading.Thread(target=self._sync, name="dataset-sync", daemon=True)
                syncing.start()
        if syncing is not None:
            syncing.join()

    def _sync(self) -> None:
        try:
            self._bitmap.sync(self._image)
        except DatasetError as error:
            self._fail(error)

    def _more_threads(self, count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._work, name="dataset-read", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _fail(self, error: BaseException) -> None:
        with self._wake:
            if self._failure is None:
                self._failure = error
            self._stop.set()
            self._wake.notify_all()

    # The threads

    def _work(self) -> None:
        joined = WriteCoalescer(self._write, self._plan.block_size)
        try:
            while batch := self._take():
                self._read_batch(batch, joined)
        except OSError as error:
            self._fail(_disk(error))
        except BaseException as error:  # noqa: BLE001  (a mistake in a source must end the fetch, not hang it)
            self._fail(error)

    def _take(self) -> list[tuple[FetchUnit, int]]:
        """The next units to read, with how often each has failed. Empty at the end."""
        with self._wake:
            while not self._stop and self._left > 0:
                now = time.monotonic()
                wait = self._pause_until - now
                if wait <= 0:
                    batch = self._batch(now)
                    if batch:
                        return batch
                    wait = self._again[0][0] - now if self._again else 1.0
                self._wake.wait(min(max(wait, 0.001), 1.0))
        return []

    def _batch(self, now: float) -> list[tuple[FetchUnit, int]]:
        if self._again and self._again[0][0] <= now:
            _, number, failures = heapq.heappop(self._again)
            return [(self._units[number], failures)]
        count = self._units.count
        left = count - self._cursor
        most = max(1, min(_BATCH_UNITS, left // (4 * len(self._threads)))) if left else 0
        if self._from_image is not None:
            most = _IMAGE_UNITS
        batch: list[tuple[FetchUnit, int]] = []
        size = 0
        while len(batch) < most and size < self._most_bytes:
            self._cursor = self._bitmap.missing(self._cursor)
            if self._cursor >= count:
                break
            unit = self._units[self._cursor]
            self._cursor += 1
            batch.append((unit, 0))
            size += unit.size
        return batch

    def _read_batch(self, batch: list[tuple[FetchUnit, int]], joined: WriteCoalescer) -> None:
        self._bounds.pace.acquire(self._flow, sum(unit.size for unit, _ in batch), self._stop)
        if self._from_image is not None:
            self._read_runs(self._from_image, batch)
            return
        arrived: list[FetchUnit] = []
        flushed = time.monotonic()
        for unit, failures in batch:
            if self._stop:
                break
            try:
                self._read(unit, joined)
            except SourceError as error:
                joined.undo()
                self._try_again(unit, failures + 1, error)
                continue
            arrived.append(unit)
            now = time.monotonic()
            if now - flushed > self._flush_seconds:
                joined.flush()
                self._count(arrived)
                arrived, flushed = [], now
        joined.flush()
        self._count(arrived)

    def _count(self, written: list[FetchUnit]) -> None:
        """Notes units all of whose bytes are in the file."""
        if not written:
            return
        self._bitmap.mark([unit.number for unit in written])
        self._bitmap.flush()
        self._meter.arrived(sum(unit.size for unit in written))
        with self._wake:
            self._left -= len(written)
            if self._left <= 0:
                self._wake.notify_all()

    def _read(self, unit: FetchUnit, joined: WriteCoalescer) -> None:
        start, end, shift = unit.offset, unit.offset + unit.size, unit.place - unit.offset
        expected = start
        joined.begin(unit.place)

        def sink(offset: int, data: bytes | bytearray | memoryview) -> None:
            nonlocal expected
            after = offset + len(data)
            if offset != expected or after > end:
                raise SourceError("the source gave other bytes than asked; this is a mistake of the service")
            if self._stop:
                raise SourceError("the fetch was given up", retry=True)
            joined.add(shift + offset, data)
            expected = after

        try:
            self._source.read_into(unit.entry, start, unit.size, sink)
        finally:
            self._meter.read(expected - start)
        if expected != end:
            raise SourceError("the source gave fewer bytes than asked; this is a mistake of the service")

    def _read_runs(self, image: ImageReader, batch: list[tuple[FetchUnit, int]]) -> None:
        for run in runs_of(batch):
            units = [unit for unit, _ in run]
            try:
                read_run(image, units, self._write, self._stop, self._meter.read)
            except SourceError as error:
                for unit, failures in run:
                    self._try_again(unit, failures + 1, error)
            else:
                self._count(units)

    def _try_again(self, unit: FetchUnit, failures: int, error: SourceError) -> None:
        if self._stop:
            return
        if not error.retry or failures >= TRIES:
            self._fail(error if not error.retry else SourceError(f"{error} ({failures} tries)", retry=True))
            return
        busy = isinstance(error, SourceBusyError)
        delay = backoff(failures, error.retry_after if isinstance(error, SourceBusyError) else 0.0)
        with self._wake:
            now = time.monotonic()
            heapq.heappush(self._again, (now + delay, unit.number, failures))
            if busy:
                self._pause_until = max(self._pause_until, now + delay)
            self._wake.notify()


def _disk(error: OSError) -> DatasetError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CacheFullError(
            "the node's disk is full though room was reserved; free space below the state directory"
        )
    return DatasetError(f"the image cannot be written: {error.strerror}; look after the node's disk")
