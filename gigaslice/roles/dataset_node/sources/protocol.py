# SPDX-License-Identifier: Apache-2.0
"""What every source of data can do: list itself, and read ranges of what it has listed.

Reading is blocking and is called from threads. Every library that reads from storage releases the interpreter's lock
while it waits, and a thread that waits costs nothing else: reading small objects took 110 to 190 µs of CPU each from
threads and 300 µs through futures of an event loop. The event loop of the role is never used for data at all, so that
a slow disk delays no answer to the kubelet.

A source never returns other bytes than those of its listing. A file that has changed since, that is shorter or longer
than listed, or that is gone, is a `SourceError` with `changed` set: the caller takes a new listing, which is a new
version of the dataset, instead of a mixture of two.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.listing import Entry, Limits, Listing, shown

__all__ = [
    "CancelFlag",
    "DataSource",
    "ImageReader",
    "Sink",
    "SourceBusyError",
    "changed",
    "give_range",
    "in_thread",
    "read_bytes",
]

T = TypeVar("T")

Sink = Callable[[int, "bytes | bytearray | memoryview"], None]
"""Takes bytes of a file: the offset in the file, and the bytes. It must be done with them when it returns."""


class SourceBusyError(SourceError):
    """The source is overloaded. `retry_after`: seconds that it asks to be left alone, 0 where it says none."""

    def __init__(self, text: str, retry_after: float = 0.0) -> None:
        super().__init__(text, retry=True)
        self.retry_after = retry_after


class ImageReader(Protocol):
    """An image somewhere else, of which a node takes the files' bytes by large ranges, and no other."""

    def read_into(self, offset: int, size: int, sink: Sink) -> None:
        """Gives SINK a range of the image, with offsets in the image. Raises as `DataSource.read_into`."""

    def check(self, digest: str, read: Callable[[int, int], bytes]) -> None:
        """Compares the copy, whose digest and bytes these are, with what it should be.

        Raises:
            SourceError: It differs; the text says where.
        """


class DataSource(Protocol):
    """A place that data is read from."""

    @property
    def parallel(self) -> int:
        """How many reads at once make it faster."""

    @property
    def image(self) -> ImageReader | None:
        """The dataset's image, where the source has it laid out as a node lays it out; none for most."""

    @property
    def weak(self) -> bool:
        """Whether a read may miss that a file has changed, so that the listing is taken again after the last one."""

    async def list(self, limits: Limits = ...) -> Listing:
        """Lists everything.

        Raises:
            SourceError: It cannot be listed, or contains what no dataset may.
            ListingError: What it lists is no dataset.
        """

    def read_into(self, entry: Entry, offset: int, size: int, sink: Sink) -> None:
        """Gives SINK the SIZE bytes of ENTRY that begin at OFFSET, in order. Blocking, and called from many threads.

        Raises:
            SourceError: The file cannot be read, or is not what was listed.
        """

    async def close(self) -> None:
        """Ends connections and processes, and unmounts; reads under way fail."""


class CancelFlag:
    """Ends blocking work from outside: its loops check it between two steps. It is set too once OUTER is."""

    def __init__(self, outer: CancelFlag | None = None) -> None:
        self._event = threading.Event()
        self._set = False  # checked for every file, and the event's own method takes three times as long
        self._outer = outer

    def set(self) -> None:
        """Ends the work at its next step."""
        self._set = True
        self._event.set()

    def __bool__(self) -> bool:
        return self._set or (self._outer is not None and bool(self._outer))

    def wait(self, seconds: float) -> bool:
        """Waits SECONDS, less when the work is to end. Returns whether it is."""
        return self._event.wait(seconds) or bool(self._outer)


async def in_thread(name: str, work: Callable[[CancelFlag], T], *, patience: float = 0.0) -> T:
    """Runs WORK in a thread of its own. A caller that is cancelled sets WORK's flag, and waits PATIENCE seconds for it.

    Not `asyncio.to_thread`: its few threads are shared by everything, and one storage server that hangs would take
    them all. These are daemons, so that such a server does not delay the end of the process either.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    # a failure that comes after the caller has gone is no one's, and asyncio would log it
    done.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
    stop = CancelFlag()

    def tell(set_it: Callable[[], None]) -> None:
        def unless_gone() -> None:
            if not done.done():
                set_it()

        try:
            loop.call_soon_threadsafe(unless_gone)
        except RuntimeError:
            return  # the loop has ended, and with it the caller that waited

    def run() -> None:
        try:
            result = work(stop)
        except BaseException as error:  # noqa: BLE001  (it is the waiting caller's)
            failure = error
            tell(lambda: done.set_exception(failure))
        else:
            tell(lambda: done.set_result(result))

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        stop.set()
        if patience > 0:
            await asyncio.wait({done}, timeout=patience)
        done.cancel()
        raise
    finally:
        stop.set()


def give_range(
    entry: Entry,
    span: tuple[int, int],
    chunks: Iterable[bytes | bytearray | memoryview],
    sink: Sink,
    who: str,
) -> None:
    """Gives SINK the CHUNKS that WHO sends as the SPAN (offset and size) of ENTRY.

    Raises:
        SourceError: They are more than that, or end early.
    """
    offset, size = span
    at = 0
    for data in chunks:
        if at + len(data) > size:
            raise changed(entry.path, "became longer")
        sink(offset + at, data)
        at += len(data)
    if at < size:  # a cut connection looks the same as a shorter file, which the next try's head tells apart
        raise SourceError(f"{who} ended {shown(entry.path)} after {at} of {size} bytes", retry=True)


def read_bytes(source: DataSource, entry: Entry, offset: int, size: int) -> bytes:
    """A range of ENTRY. Raises as `DataSource.read_into`."""
    chunks: list[bytes] = []
    source.read_into(entry, offset, size, lambda _, data: chunks.append(bytes(data)))
    return b"".join(chunks)


def changed(path: bytes, how: str) -> SourceError:
    """The error for the file PATH, which is not what was listed; HOW completes the sentence."""
    return SourceError(
        f"file {shown(path)} {how} while the dataset was fetched; it is listed again as a new version",
        changed=True,
    )
