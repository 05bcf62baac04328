# SPDX-License-Identifier: Apache-2.0
"""Listings of sources, shared by the pods that ask for the same source at once with the same credentials.

Eight pods of one job start together. If each of them listed 50,000 files for itself, the listings would cost as much
processor time as the fetch. So a pod that asks for a source while it is being listed waits for the next listing, and
all pods that wait get that one. One listing runs, and at most one is to follow.

The pods of one job ask within some hundredths of a second, mostly before the first listing is complete. The second
listing would then run beside the fetch, and slow it down. So a listing that has just begun is given up once when
another pod asks. It begins anew a moment later, for all pods that have asked by then.

No pod gets a listing that was begun before the pod asked: what had changed when the pod was created is in its listing.
No pod gets a listing that was taken with other credentials. Source and credentials are compared as a whole, by a keyed
hash, so that neither stands in a key. The proof that files may be read is shared with the listing, and so is the
source, which holds what it has listed. When a listing fails, it fails for all who waited for it. A listing that
nothing waits for any more is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.listing import Listing
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.sources.listing_memory import AccountedLimits, ListingAccount, ListingMemory
from gigaslice.roles.dataset_node.sources.protocol import DataSource
from gigaslice.roles.dataset_node.sources.readability import check_readable

__all__ = ["IdentifiedSource", "ListedSource", "OpenSource", "SharedListings"]

T = TypeVar("T")

_YOUNG_SECONDS, _GATHER_SECONDS = 0.1, 0.03


class IdentifiedSource(DataSource, Protocol):
    """An open source, which says what it really is: a Secret may name an endpoint, which is part of its identity."""

    @property
    def spec(self) -> SourceSpec:
        """What a key is made of."""
        ...


OpenSource = Callable[[SourceSpec, Mapping[str, str]], Awaitable[IdentifiedSource]]
"""Opens a source with credentials. Raises SourceError and RequestError."""


class ListedSource:
    """A source with its listing, which several pods and a fetch may share. The last of them closes the source."""

    def __init__(
        self, source: IdentifiedSource, listing: Listing, account: ListingAccount, run: _ListingRun
    ) -> None:
        self.source = source
        self.listing = listing
        self._account = account
        self._run = run

    def keep(self, listing: Listing) -> None:
        """Has LISTING, an equal one that is in memory already, in place of its own."""
        if self.listing is not listing:
            self.listing = listing
            self._account.close()

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[IdentifiedSource]:
        """Keeps the source open for the block, also where whoever asked for the listing is done before.

        Raises:
            SourceError: Everyone else was done already, and the source is closed.
        """
        self._run.join()
        try:
            yield self.source
        finally:
            await self._run.leave()

    async def release(self) -> None:
        """To be called once by each who has got it from `SharedListings.take`."""
        await self._run.leave()

    async def close(self) -> None:
        """Not to be called by those who share it."""
        self._account.close()
        await self.source.close()


class _ListingRun:
    """One listing: it waits for its turn, is under way, or is done and in use."""

    def __init__(self) -> None:
        self.users = 0
        self.task: asyncio.Task[ListedSource]
        self._young_until = 0.0  # in the event loop's time
        self._renewed = self._given_up = False
        self._listing: asyncio.Task[Listing] | None = None

    def begin(self, young: float) -> None:
        """Begins, or begins anew. For YOUNG seconds from now on it may be given up for a later one."""
        self._given_up = False
        self._young_until = asyncio.get_running_loop().time() + young

    def renew(self) -> bool:
        """Gives up what has just begun, so that it begins anew; once. Returns whether it does."""
        if not self.users or self._renewed or asyncio.get_running_loop().time() >= self._young_until:
            return False
        self._renewed = self._given_up = True
        if self._listing is not None:
            self._listing.cancel()
        return True

    async def list(self, source: IdentifiedSource, limits: AccountedLimits) -> Listing | None:
        """The listing of SOURCE; none where it was given up, now or while the source was opened."""
        if self._given_up:
            return None
        self._listing = listing = asyncio.get_running_loop().create_task(source.list(limits))
        try:
            await asyncio.wait([listing])
        except asyncio.CancelledError:
            listing.cancel()
            await asyncio.wait([listing])
            raise
        finally:
            self._listing, self._young_until = None, 0.0
            listing.add_done_callback(_note_failure)
        return None if self._given_up else listing.result()

    def join(self) -> None:
        """One user more of a listing that is in use. Raises SourceError where it is not."""
        if not self.users:
            raise SourceError("the pod that had listed the source is gone; it is listed again", retry=True)
        self.users += 1

    async def leave(self) -> None:
        """One user less. The last one ends what is left of it, and returns when nothing of it is."""
        self.users -= 1
        if self.users:
            return
        task = self.task
        # It has the listing, which has this: a circle that would keep them in memory for a while.
        del self.task
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await task.result().close()


class _ListingQueue:
    """The listings of one source with one set of credentials."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.next: _ListingRun | None = None
        self.begun: _ListingRun | None = None
        self.users = 0


class SharedListings:
    """All listings of a node that pods wait for.

    Args:
        open_source: Opens a source.
        memory: Bounds what all of them take.
        young: Seconds for which a listing has just begun.
        gather: Seconds that one which begins anew waits for other pods.
    """

    def __init__(
        self,
        open_source: OpenSource,
        memory: ListingMemory,
        *,
        young: float = _YOUNG_SECONDS,
        gather: float = _GATHER_SECONDS,
    ) -> None:
        self._young = young
        self._gather = gather
        self._open = open_source
        self._memory = memory
        self._secret = secrets.token_bytes(32)
        self._lines: dict[bytes, _ListingQueue] = {}

    def __len__(self) -> int:
        """Of how many sources listings are under way."""
        return len(self._lines)

    @contextlib.asynccontextmanager
    async def listed(self, spec: SourceSpec, credentials: Mapping[str, str]) -> AsyncIterator[ListedSource]:
        """As `take`, for the block."""
        listed = await self.take(spec, credentials)
        try:
            yield listed
        finally:
            await listed.release()

    async def take(self, spec: SourceSpec, credentials: Mapping[str, str]) -> ListedSource:
        """A listing that is begun now or later, and some files of which could be read.

        Args:
            spec: The source as it was asked for.
            credentials: Those of who asks.

        Raises:
            SourceError: It cannot be listed or read with these credentials.
            DatasetError: What it lists is no dataset, or it cannot be opened with what the Secret says.
        """
        key = self._key(spec, credentials)
        line = self._lines.setdefault(key, _ListingQueue())
        run = line.next
        if run is None and line.begun is not None and line.begun.renew():
            run = line.next = line.begun
        if run is None:
            run = line.next = _ListingRun()
            run.task = asyncio.get_running_loop().create_task(
                self._list(line, run, spec, dict(credentials)), name="dataset listing"
            )
            run.task.add_done_callback(_note_failure)
        line.users += 1
        run.users += 1
        try:
            return await asyncio.shield(run.task)
        except BaseException:
            if run.users == 1 and line.next is run:
                line.next = None  # it is given up, and not for a task that comes now
            await run.leave()
            raise
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[key]

    async def _list(
        self, line: _ListingQueue, run: _ListingRun, spec: SourceSpec, credentials: Mapping[str, str]
    ) -> ListedSource:
        async with line.turn:
            line.begun = run
            try:
                run.begin(self._young)
                listed = await self._attempt(line, run, spec, credentials)
                if listed is None:
                    await asyncio.sleep(self._gather)
                    run.begin(0.0)
                    listed = await self._attempt(line, run, spec, credentials)
                assert listed is not None, "it is given up once at most"
                return listed
            finally:
                line.begun = None

    async def _attempt(
        self, line: _ListingQueue, run: _ListingRun, spec: SourceSpec, credentials: Mapping[str, str]
    ) -> ListedSource | None:
        """Lists once; none where it was given up."""
        line.next = None  # a pod that asks from here on could miss a change that this listing misses
        source = await self._open(spec, credentials)
        account = self._memory.account()
        try:
            listing = await run.list(source, account.limits)
            if listing is not None:
                account.listed()
                await check_readable(source, listing)
                return ListedSource(source, listing, account, run)
        except BaseException:
            account.close()
            await source.close()
            raise
        account.close()
        await source.close()
        return None

    def _key(self, spec: SourceSpec, credentials: Mapping[str, str]) -> bytes:
        """Equal only for an equal source and equal credentials, each byte of them."""
        digest = hashlib.blake2b(key=self._secret, digest_size=32)
        given = [text for pair in sorted(credentials.items()) for text in pair]
        asked = [spec.kind, spec.location, *(text for pair in spec.options for text in pair)]
        for texts in (asked, given):
            digest.update(b"%d:" % len(texts))
            for text in texts:
                data = text.encode("utf-8", "surrogatepass")
                digest.update(b"%d:" % len(data) + data)
        return digest.digest()


def _note_failure(done: asyncio.Task[T]) -> None:
    if not done.cancelled():
        done.exception()  # the tasks that waited for it may be gone
