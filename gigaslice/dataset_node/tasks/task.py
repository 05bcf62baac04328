"""One task: a volume of a pod on its way, however often the kubelet asks for it.

It resolves names, brings every dataset into the cache (several at a time), and publishes the volume. A task of a call
that is held ends with its first failure, which the caller gets. One whose volume was published early goes on trying
until its pod is gone, since its caller is gone already: the container waits at its start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from gigaslice.dataset.errors import CacheFullError, DatasetError, ImageError, RequestError, SourceError
from gigaslice.dataset.request import Check, DatasetRequest, Mode, VolumeRequest, check_local
from gigaslice.dataset.source_spec import MOUNTED_KINDS, SourceSpec
from gigaslice.dataset_node import events
from gigaslice.dataset_node.sources.panics import GOES_ON
from gigaslice.dataset_node.store import DatasetStore, Piece, Volume
from gigaslice.dataset_node.tasks.seams import DatasetObjects, Reporter, ResolvedDataset
from gigaslice.dataset_node.tasks.supply import DatasetCounters, Stage, Supply
from gigaslice.dataset_node.tasks.threads import Threads
from gigaslice.errors import GigasliceError
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.time_limit import set_within
from gigaslice.text import plain

__all__ = ["Task", "TaskParts"]

_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 120.0
_WATCH_SECONDS = 0.5
_QUIET_SECONDS = 10.0  # before a pod is told that nothing moves; then twice as long
_LONG = ("listing its source", "mounting its storage", "planning its image")
_QUARTERS = (0, 25, 50, 75)
_DAMAGED_TRIES = 3


@dataclass(frozen=True, slots=True)
class TaskParts:
    """What all tasks share.

    threads, storage: for work with the local disk, and for work that may wait for storage on a network.
    attach: mounts a source's storage for a volume and returns where; for local mode. release: ends that, when the
    volume is published or is not going to be. admit: raises RequestError for a source that pods of this node may not
    name.
    """

    store: DatasetStore
    supply: Supply
    objects: DatasetObjects
    reporter: Reporter
    threads: Threads
    storage: Threads
    counters: DatasetCounters
    attach: Callable[[SourceSpec, Mapping[str, str], str], Awaitable[str]]
    release: Callable[[str], None]
    admit: Callable[[SourceSpec], None]


class Task:
    """A volume on its way. Attributes are read by those who show it."""

    def __init__(
        self, parts: TaskParts, volume: Volume, request: VolumeRequest, credentials: Mapping[str, str]
    ) -> None:
        self.volume = volume
        self.request = request
        self.created = self.called = time.monotonic()
        self.stages = tuple(Stage(one.name) for one in request.datasets)
        self.failure: GigasliceError | None = None
        self.early = False
        self.done = False
        self._parts = parts
        self._credentials = dict(credentials)
        self._renewed = asyncio.Event()
        self._quarter = -1
        self._trying = False
        self._fallbacks: list[str] = []
        self._begun = time.monotonic()
        self._log = get_logger("dataset")
        self._runner: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether it is under way."""
        return self._runner is not None and not self._runner.done()

    def text(self) -> str:
        """Where it is, in one line."""
        waiting = [one.text() for one in self.stages if one.doing != "ready"]
        text = "; ".join(waiting) or f"dataset {self.request.name}: mounting"
        return f"{text} (last attempt: {self._why(self.failure)})" if self.failure is not None else text

    def begin(self) -> None:
        """Starts it, unless it runs."""
        if not self.running and not self.done:
            self._runner = asyncio.get_running_loop().create_task(self._run(), name=f"task {self.volume.id}")

    async def wait(self, seconds: float | None) -> bool:
        """Waits for the end of the present attempt, at most so long. Returns whether it has ended."""
        runner = self._runner
        if runner is None:
            return self.done
        await asyncio.wait([runner], timeout=None if seconds is None else max(0.0, seconds))
        return runner.done()

    def take_failure(self) -> GigasliceError | None:
        """Why the last attempt failed. It is told once: then the next call tries again."""
        found, self.failure = self.failure, None
        return found

    def renew(self, credentials: Mapping[str, str]) -> bool:
        """Takes the credentials of a later call, and tries again at once with them. Whether they are others."""
        if self._credentials == credentials:
            return False
        self._credentials = dict(credentials)
        self._renewed.set()
        return True

    async def stop(self) -> None:
        """Ends it; returns when nothing of it is under way any more."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            await asyncio.wait([runner])

    async def _run(self) -> None:
        watcher = asyncio.get_running_loop().create_task(self._watch())
        pause = _FIRST_PAUSE
        try:
            while True:
                try:
                    try:
                        self._trying = True
                        await self._attempt()
                    finally:
                        self._trying = False
                        self._parts.release(self.volume.id)
                except GigasliceError as error:
                    self._failed(error)
                except GOES_ON:
                    raise
                except BaseException as error:  # noqa: BLE001  (a mistake; the pod must be told something)
                    self._log.error("task failed", pod=self._pod, exc_info=error)
                    self._failed(
                        DatasetError(
                            f"internal error of the dataset service: {type(error).__name__}; see its log"
                        )
                    )
                else:
                    self.done, self.failure = True, None
                    return None
                if not self.early:
                    return await self._let_go()
                renewed = await set_within(self._renewed, pause)
                self._renewed.clear()
                pause = _FIRST_PAUSE if renewed else min(pause * 2, _LONGEST_PAUSE)
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    @property
    def _pod(self) -> str:
        return f"{self.volume.namespace}/{self.volume.pod}"

    def _failed(self, error: GigasliceError) -> None:
        self.failure = error
        self._log.warning("volume not published", pod=self._pod, volume=self.volume.id, detail=str(error))
        self._parts.reporter.say(self.volume, events.NOT_READY, self._why(error))

    def _why(self, error: GigasliceError) -> str:
        """An error, with what mends it: the kubelet sends no Secret again for a volume that is published early."""
        denied = self.early and isinstance(error, SourceError) and error.denied
        return (
            f"{error}; then delete the pod: a Secret is read when its volume is mounted"
            if denied
            else str(error)
        )

    async def _let_go(self) -> None:
        """Counts for nothing any more until it is asked for again."""
        for about in [one.about for one in self.stages if one.about is not None]:
            await self._parts.threads.run(self._parts.store.unpin, self.volume.id, about.key)

    async def _attempt(self) -> None:
        self._fallbacks.clear()
        for stage in self.stages:
            stage.doing = "waiting"
        for number in range(_DAMAGED_TRIES):
            pieces = await self._pieces()
            threads = self._parts.storage if any(one.path for one in pieces) else self._parts.threads
            try:
                await threads.run(self._parts.store.publish, self.volume, pieces)
            except ImageError:
                if number + 1 == _DAMAGED_TRIES:
                    raise
                continue
            break
        for text in self._fallbacks:
            self._parts.counters.fallbacks += 1
            self._parts.reporter.say(self.volume, events.NOT_CACHED, text)
        seconds = round(time.monotonic() - self._begun, 3)
        self._log.info(
            "published", pod=self._pod, volume=self.volume.id, datasets=self.request.name, seconds=seconds
        )
        if self._quarter >= 0 or self.early:
            text = f"dataset {self.request.name} is mounted, {seconds:.1f} s after it was asked for"
            self._parts.reporter.say(self.volume, events.READY, text)

    async def _pieces(self) -> list[Piece]:
        """All datasets, one task each; the first failure ends the others."""
        works = [
            asyncio.get_running_loop().create_task(self._piece(one, stage))
            for one, stage in zip(self.request.datasets, self.stages, strict=True)
        ]
        try:
            return list(await asyncio.gather(*works))
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _piece(self, one: DatasetRequest, stage: Stage) -> Piece:
        found = await self._resolved(one)
        if self.request.mode is Mode.LOCAL:
            if found.check is Check.PINNED:
                raise RequestError(
                    f"Dataset {one.dataset} pins a version, and mode: local shows what the storage has now, which "
                    "nothing compares; leave mode out, or write check: listing in volumeAttributes"
                )
            return await self._local(one, found, stage)
        try:
            about = await self._parts.supply.ensure(self.volume, found, self._credentials, stage)
        except CacheFullError as error:
            if found.check is Check.PINNED or (
                found.spec.kind != "file" and found.spec.kind not in MOUNTED_KINDS
            ):
                raise
            piece = await self._local(one, found, stage)
            # said when it is true: what is full for the data may be too full to publish anything
            self._fallbacks.append(f"{error}; the pod reads the storage itself (mode: local)")
            return piece
        return Piece(key=about.key, directory=one.directory, name=one.name)

    async def _resolved(self, one: DatasetRequest) -> ResolvedDataset:
        if one.spec is not None:
            self._parts.admit(one.spec)
            return ResolvedDataset(one.spec, self.request.check or Check.LISTING)
        found = await self._parts.objects.resolve(one.dataset, self.volume.namespace)
        self._parts.admit(found.spec)
        if self.request.check is Check.LISTING:
            return ResolvedDataset(found.spec, name=found.name)
        if self.request.check not in (None, found.check):
            raise RequestError(
                f"check is {self.request.check.value}, and Dataset {one.dataset} says {found.check.value}; "
                "leave it out of volumeAttributes"
            )
        if found.check is Check.NEVER and not found.trusted:
            raise RequestError(
                f"Dataset {one.dataset} says check: never, which only Datasets in the administrator's namespaces may "
                "(--trusted-namespaces); write check: listing"
            )
        return found

    async def _local(self, one: DatasetRequest, found: ResolvedDataset, stage: Stage) -> Piece:
        check_local(found.spec)
        stage.doing = "mounting its storage"
        path = await self._parts.attach(found.spec, self._credentials, self.volume.id)
        stage.doing = "ready"
        return Piece(path=path, directory=one.directory, name=one.name)

    async def _watch(self) -> None:
        """Says on the pod how far its fetches are."""
        quiet = _Quiet()
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._trying and (text := quiet.look(self.stages, time.monotonic())):
                self._parts.reporter.say(self.volume, events.FETCHING, text)
            under_way = [one for one in self.stages if one.progress is not None]
            if not under_way:
                continue
            total = sum(one.about.size if one.about else 0 for one in self.stages) or 1
            share = sum(one.fraction * (one.about.size if one.about else 0) for one in self.stages) / total
            quarter = max((one for one in _QUARTERS if one <= share * 100), default=0)
            if quarter > self._quarter:
                self._quarter = quarter
                text = plain("; ".join(one.text() for one in under_way))
                self._parts.reporter.say(self.volume, events.FETCHING, text)


class _Quiet:
    """Finds out that nothing moves: a listing that takes long, or storage that hangs."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, int]] = []
        self._since = 0.0
        self._next = 0.0

    def look(self, stages: Sequence[Stage], now: float) -> str:
        """What to tell at the time NOW; empty where something has moved, or was told not long ago."""
        seen = [(one.doing, one.progress.fetched if one.progress else -1) for one in stages]
        if seen != self._seen:
            self._seen, self._since, self._next = seen, now, _QUIET_SECONDS
            return ""
        seconds = now - self._since
        if seconds < self._next:
            return ""
        self._next *= 2
        texts = [f"{one.text()}, for {round(seconds)} s now" for one in stages if one.doing in _LONG]
        texts += [
            f"{one.text()}, and no byte has come for {round(seconds)} s; look after the storage"
            for one in stages
            if one.progress is not None
        ]
        return plain("; ".join(texts))
