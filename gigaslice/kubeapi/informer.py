# SPDX-License-Identifier: Apache-2.0
"""The objects of one resource, kept as the API server changes them: a list in pages, then a watch, again and again.

Every object is cut down to a small value as soon as it is read, one page at a time at most, so that a cluster of fifty
thousand pods never exists in full beside its values. Objects for which the cut gives None do not exist for the caller.

What goes wrong with watches: the server ends them (often, on purpose), forgets the version one was at (410, as a status
or as an event in an answer 200), falls silent without closing, is replaced by one with an older state, refuses, or says
what makes no sense. Each has its answer here; meanwhile the last known values stay. After every list the values are
compared with those before, so a deletion that no watch has shown is reported as one. A watch that ends is followed by
the next at once if it lived, else after pauses that grow, and never sooner than the server has asked for.

Objects are decoded in one place, by the parser that is given: what is called with them gets values only. Whatever a
parser makes of one object, the others and the program go on (docs/adr/0098). A decoder that reads as bytes come and a
bound of what is kept make an informer whose memory does not depend on the server (docs/adr/0109).
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gigaslice.core.errors import GigasliceError
from gigaslice.core.kube.object_reader import Document
from gigaslice.core.kube.weight import WeighedDict
from gigaslice.kubeapi.client import GONE, NOT_FOUND, ApiFailure, KubeClient
from gigaslice.kubeapi.documents import WHOLE, AnswerDecoder
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["Bound", "Informer", "Key"]

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace and name; the namespace is empty for objects of the whole cluster."""

_PAGE = 500
_MOST_PAGE_BYTES = 256 << 20
_LIST_SECONDS = 120.0
_WATCH_SECONDS = 300  # asked of the server
_BOOKMARK_SECONDS = 90.0  # the server sends one every minute
_OVERTIME = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 30.0
_LONGEST_VERSION = 128
_UNHEALTHY_FAILURES = 3  # in a row; before, a server is restarting


@dataclass(frozen=True, slots=True)
class Bound(Generic[T]):
    """How much memory the values may take.

    Attributes:
        weigh: Bytes of a value.
        kept: Of all; an object for which there is no room counts as one that cannot be read.
        unread: Of all, with the values of those. A server that names still more of them is not believed.
    """

    weigh: Callable[[T], int]
    kept: int
    unread: int


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    uid: str
    value: T


class Informer(Generic[T]):
    """The objects at PATH.

    Args:
        client: The API server.
        path: Path of the resource, such as "/api/v1/pods".
        parse: Makes the value of an object; None for one that does not matter. Raises ValueError or a GigasliceError
            for one that cannot be read, with the sentence for the log.
        on_change: Called for each value that is new or differs from the one before.
        on_drop: Called for the last value of each object that is gone, or that has become another one of its name.
        on_list: Called after every complete list, when its changes have been reported.
        query: Selectors.
        unread: Makes the value of an object that cannot be read, from its last value where it had one; None, which is
            the default, leaves it out.
        optional: Whether the resource may not be installed: no object exists then, and that counts as synced.
        decoder: Reads the answers.
        bound: Of the values; None: there is none, and the decoder reads each object whole.
        page: Objects of one page.
        most_pages: Pages of one list, after the first; a server that sends more is given up.
        list_seconds: The time for one page.
        cached: Whether the first list may be what the server has in memory. Later ones may not: another server's may be
            older than what was seen, and an object must not turn into the one that had its name before.
        watch_seconds: How long one watch lasts.
        overtime: Seconds that it may last beyond that.
        lived_seconds: A watch of that length was one, and the next may follow at once.
        absent_seconds: Until it is asked again whether a resource that is not installed exists.
        pause: The first pause after a failure.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        parse: Callable[[Mapping[str, Any]], T | None],
        on_change: Callable[[T], None],
        on_drop: Callable[[T], None],
        *,
        on_list: Callable[[], None] = lambda: None,
        query: Mapping[str, str] | None = None,
        unread: Callable[[Mapping[str, Any], T | None], T | None] = lambda document, last: None,
        optional: bool = False,
        decoder: AnswerDecoder = WHOLE,
        bound: Bound[T] | None = None,
        page: int = _PAGE,
        most_pages: int = 2000,
        list_seconds: float = _LIST_SECONDS,
        cached: bool = False,
        watch_seconds: int = _WATCH_SECONDS,
        overtime: float = _OVERTIME,
        lived_seconds: float = 10.0,
        absent_seconds: float = 15.0,
        pause: float = _FIRST_PAUSE,
    ) -> None:
        self.synced = asyncio.Event()
        """Set once all objects have been seen; never cleared (see `silent_seconds`)."""
        self.refusal = ""
        """Why the server refuses us, while it does."""
        self.refusals = 0
        """How often it has, in a row."""
        self.failures = 0
        """Failures since the last watch."""
        self.lists = 0
        self.heard_at = -math.inf
        """When a watch last brought anything, by the monotonic clock."""
        self._client = client
        self._path = path
        self._parse = parse
        self._unread = unread
        self._on_change = on_change
        self._on_drop = on_drop
        self._on_list = on_list
        self._query = dict(query or {})
        self._optional = optional
        self._decoder = decoder
        self._bound = bound
        self._page = page
        self._most_pages = most_pages
        self._list_seconds = list_seconds
        self._cached = cached
        self._watch_seconds = watch_seconds
        self._overtime = overtime
        self._lived_seconds = lived_seconds
        self._absent_seconds = absent_seconds
        self._pause = pause
        self._entries = self._no_entries()
        self._version = ""  # what has been seen; empty: nothing that a watch could go on from
        self._begun = math.inf  # when the watch was let in
        self._watching = False
        self._lost = -math.inf  # since when there has been no watch
        self._asked: list[tuple[int, asyncio.Future[None]]] = []  # those that wait for a list, and for which
        self._begun_lists = 0
        self._stream: asyncio.Task[None] | None = None
        self._short = 0  # attempts in a row that came to nothing, however they ended
        self._reported = LogOnce()
        self._unreadable: set[Key] = set()
        self._log = get_logger("kube")

    @property
    def values(self) -> list[T]:
        """Every value, as last seen."""
        return [entry.value for entry in self._entries.values()]

    @property
    def objects(self) -> dict[Key, T]:
        """The same by namespace and name."""
        return _values(self._entries)

    def get(self, namespace: str, name: str) -> T | None:
        """Returns the value of that object, as last seen."""
        entry = self._entries.get((namespace, name))
        return None if entry is None else entry.value

    def __len__(self) -> int:
        return len(self._entries)

    def silent_seconds(self, now: float) -> float:
        """Returns for how long, at the monotonic time NOW, no watch has been running; infinity before the first."""
        return 0.0 if self._watching else now - self._lost

    async def read(self) -> dict[Key, T]:
        """Returns the values as they are at this moment, past the watch. Raises ApiFailure."""
        entries, _ = await self._pages({})
        return _values(entries)

    async def refresh(self) -> None:
        """Has everything listed anew; returns once a list that was begun after this call has been taken."""
        taken = asyncio.get_running_loop().create_future()
        self._asked.append((self._begun_lists + 1, taken))
        if self._stream is not None:
            self._stream.cancel()
        await taken

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            wait = 0.0
            self._begun = math.inf
            try:
                while not self._version or self._asked:
                    await self._list()
                if not await self._watch_until_asked():
                    continue
            except ApiFailure as failure:
                wait = failure.retry_after
                if failure.status:
                    self._version = ""  # anything but a connection that broke: start anew
                if failure.status == NOT_FOUND and self._optional:
                    self._absent()
                    wait = max(wait, self._absent_seconds)
                elif failure.status != GONE:
                    self._failed(failure)
            finally:
                if self._watching:
                    self._watching, self._lost = False, time.monotonic()
            await self._rest(time.monotonic() - self._begun, wait)

    # --- list ---------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        self._begun_lists += 1
        self._unreadable = set()
        cached = self._cached and not self.lists and not self.failures
        entries, self._version = await self._pages({"resourceVersion": "0"} if cached else {})
        self._replace(entries)
        self._reported.keep(lambda subject: subject == "unreachable" or subject in self._unreadable)
        self.lists += 1
        self._on_list()
        self.synced.set()
        for number, taken in self._asked:
            if number <= self._begun_lists and not taken.done():
                taken.set_result(None)
        self._asked = [waiter for waiter in self._asked if not waiter[1].done()]

    async def _pages(self, first: Mapping[str, str]) -> tuple[dict[Key, _Entry[T]], str]:
        """Returns the entries of one list, and its version. FIRST: what else the first page is asked for with."""
        query = {**self._query, "limit": str(self._page)}
        entries = self._no_entries()
        version, more = await self._read_page({**query, **first}, entries)
        for _ in range(self._most_pages):
            if not more:
                return entries, version
            version, more = await self._read_page({**query, "continue": more}, entries)
        raise ApiFailure(f"list of {self._path}: more than {self._most_pages} pages", 200)

    async def _read_page(self, query: Mapping[str, str], entries: dict[Key, _Entry[T]]) -> tuple[str, str]:
        """Adds the page's values to ENTRIES; returns its version and what to ask for to continue."""
        reader = self._decoder.page()
        seconds = self._list_seconds
        async with self._client.stream("GET", self._path, query, idle=seconds, longest=seconds) as stream:
            if stream.status != 200:
                raise (await stream.answer()).failure(f"list of {self._path}")
            async for chunk in stream.chunks(_MOST_PAGE_BYTES):
                self._add(await self._documents(reader.feed(chunk)), entries)
            self._add(await self._documents(reader.end()), entries)
        return _list_state(reader.envelope)

    async def _documents(self, documents: Iterator[Document]) -> list[Document]:
        try:
            return await asyncio.to_thread(list, documents) if self._decoder.beside else list(documents)
        except ValueError as error:
            raise ApiFailure(f"answer of {self._path}: {error}", 200) from None

    def _add(self, documents: Iterable[Document], entries: dict[Key, _Entry[T]]) -> None:
        for document in documents:
            key = _key(document.value)
            entry = None if key is None else self._entry(key, document, entries)
            if key is not None and entry is not None:
                entries[key] = entry

    def _no_entries(self) -> dict[Key, _Entry[T]]:
        bound = self._bound
        return {} if bound is None else WeighedDict[Key, _Entry[T]](lambda entry: bound.weigh(entry.value))

    def _replace(self, entries: dict[Key, _Entry[T]]) -> None:
        before, self._entries = self._entries, entries
        for key, entry in before.items():
            if key not in entries or entries[key].uid != entry.uid:
                self._on_drop(entry.value)
        for key, entry in entries.items():
            last = before.get(key)
            if last is None or last.uid != entry.uid or last.value != entry.value:
                self._on_change(entry.value)

    def _absent(self) -> None:
        self._replace({})
        if not self.synced.is_set():
            self._log.info("resource not installed; none of it exists", path=self._path)
        self._on_list()
        self.synced.set()
        self._lost = time.monotonic()

    # --- watch --------------------------------------------------------------------------------------------------

    async def _watch_until_asked(self) -> bool:
        """Watches; returns whether the watch ended, and not for a list that `refresh` has asked for."""
        self._stream = asyncio.create_task(self._watch(), name=f"watch {self._path}")
        try:
            await asyncio.wait({self._stream})
            if self._stream.cancelled():
                return False
            self._stream.result()
            return True
        finally:
            stream, self._stream = self._stream, None
            stream.cancel()
            await asyncio.wait({stream})

    async def _watch(self) -> None:
        query = {
            **self._query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watch_seconds),
            "resourceVersion": self._version,
        }
        longest = self._watch_seconds + self._overtime
        events = 0
        async with self._client.stream("GET", self._path, query, idle=longest, longest=longest) as stream:
            if stream.status != 200:
                raise (await stream.answer()).failure(f"watch of {self._path}")
            self._begun = time.monotonic()
            self._watching = True
            self._recovered()
            reader = self._decoder.watch()
            async for chunk in stream.chunks():
                self.heard_at = time.monotonic()
                for document in await self._documents(reader.feed(chunk)):
                    self._apply(document)
                    events += 1
        if not events and time.monotonic() - self._begun >= min(_BOOKMARK_SECONDS, self._watch_seconds / 2):
            # A server whose state is older than what was seen (after a restore) waits silently for the version to come.
            self._version = ""

    def _apply(self, document: Document) -> None:
        event = document.value if isinstance(document.value, dict) else {}
        kind, content = event.get("type"), event.get("object")
        if not isinstance(kind, str) or not isinstance(content, dict):
            raise ApiFailure(f"watch of {self._path}: an event without a type or an object", 200)
        if kind == "ERROR":
            status = GONE if content.get("code") == GONE else 500
            message = str(content.get("message", ""))[:500] or "ended without a reason"
            raise ApiFailure(f"watch of {self._path}: {message}", status)
        version = _version(content.get("metadata"))
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._apply_to_object(kind, Document(content, document.complete))
        self._version = version

    def _apply_to_object(self, kind: str, document: Document) -> None:
        key = _key(document.value)
        if key is None:
            return
        last = self._entries.get(key)
        if kind == "DELETED":
            if last is not None and _uid(document.value) not in ("", last.uid):
                return  # of an object that had the name before
            self._reported.over(key)
            entry = None
        else:
            entry = self._entry(key, document, self._entries)
        if last is not None and (entry is None or last.uid != entry.uid):
            del self._entries[key]
            self._on_drop(last.value)
            last = None
        if entry is not None:
            self._entries[key] = entry
            if last is None or last.value != entry.value:
                self._on_change(entry.value)

    def _entry(self, key: Key, document: Document, entries: dict[Key, _Entry[T]]) -> _Entry[T] | None:
        """Reads one object, which there must be room for in ENTRIES. Whatever is wrong with it, the others go on."""
        uid = _uid(document.value)
        try:
            if not document.complete:
                raise ValueError("it is too large")
            value = self._parse(document.value)
            entry = None if value is None else _Entry(uid, value)
            if entry is not None and not self._fits(key, entry, entries):
                raise ValueError("there is no room for it")
        except (ValueError, GigasliceError) as error:
            self._note_unreadable(key, str(error), None)
        except Exception as error:  # noqa: BLE001  (a mistake in the parser, which one object must not end a role by)
            self._note_unreadable(key, "internal error", error)
        else:
            self._reported.over(key)
            return entry
        last = self._entries.get(key)
        if last is not None and uid not in ("", last.uid):
            last = None  # of an object that had the name before
        if last is not None and not self._fits(key, last, entries):
            last = None
        value = self._unread(document.value, None if last is None else last.value)
        if value is None:
            return None
        entry = _Entry(uid if last is None else last.uid, value)
        if not self._fits(key, entry, entries, unread=True):
            raise ApiFailure(f"{self._path}: the API server names more objects than can be kept", 200)
        return entry

    def _fits(
        self, key: Key, entry: _Entry[T], entries: dict[Key, _Entry[T]], *, unread: bool = False
    ) -> bool:
        if self._bound is None or not isinstance(entries, WeighedDict):
            return True
        return entries.weight_with(key, entry) <= (self._bound.unread if unread else self._bound.kept)

    def _note_unreadable(self, key: Key, sentence: str, error: Exception | None) -> None:
        self._unreadable.add(key)
        if self._reported.new(key, sentence):
            self._log.warning(
                "object cannot be read", path=self._path, key=key, detail=sentence, exc_info=error
            )

    # --- failures -----------------------------------------------------------------------------------------------

    def _recovered(self) -> None:
        self.refusal, self.refusals, self.failures = "", 0, 0
        if self._reported.over("unreachable") or self.heard_at == -math.inf:
            self._log.info("watching", path=self._path, objects=len(self._entries))
        self.heard_at = time.monotonic()

    def _failed(self, failure: ApiFailure) -> None:
        refused = failure.status in (401, 403)
        self.refusal, self.refusals = (str(failure), self.refusals + 1) if refused else ("", 0)
        self.failures += 1
        if self.failures < _UNHEALTHY_FAILURES and not self.refusal and self.synced.is_set():
            return  # servers restart
        if self._reported.new("unreachable", str(failure)):
            self._log.warning("API server unreachable; the last known objects stay", detail=str(failure))

    async def _rest(self, lasted: float, wait: float) -> None:
        """Waits before the next attempt, after one that LASTED so many seconds; at least WAIT seconds."""
        lived = min(self._lived_seconds, self._watch_seconds / 2)
        self._short = 0 if lasted >= lived else self._short + 1
        longest = min(_LONGEST_PAUSE, self._pause * 2 ** min(self._short - 1, 10)) if self._short else 0.0
        await asyncio.sleep(wait + longest * random.uniform(0.5, 1.0))


def _values(entries: Mapping[Key, _Entry[T]]) -> dict[Key, T]:
    return {key: entry.value for key, entry in entries.items()}


def _list_state(envelope: Any) -> tuple[str, str]:
    """Returns the version of a list, and what to ask for to go on with it, empty at its end."""
    if not isinstance(envelope, dict) or not isinstance(envelope.get("items"), list | None):
        raise ApiFailure("the API server's answer is no list", 200)
    metadata = envelope.get("metadata")
    more = metadata.get("continue") if isinstance(metadata, dict) else None
    return _version(metadata), more if isinstance(more, str) else ""


def _version(metadata: object) -> str:
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not 0 < len(version) <= _LONGEST_VERSION:
        raise ApiFailure("the API server's answer has no resourceVersion", 200)
    return version


def _key(document: object) -> Key | None:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(metadata, dict):
        return None
    namespace, name = metadata.get("namespace", ""), metadata.get("name")
    return (namespace, name) if isinstance(namespace, str) and isinstance(name, str) else None


def _uid(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    return uid if isinstance(uid, str) else ""
