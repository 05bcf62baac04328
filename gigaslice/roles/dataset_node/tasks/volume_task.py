# SPDX-License-Identifier: Apache-2.0
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

from gigaslice.core.dataset.errors import CacheFullError, DatasetError, ImageError, RequestError, SourceError
from gigaslice.core.dataset.request import Check, DatasetRequest, Mode, VolumeRequest, check_local
from gigaslice.core.dataset.source_spec import MOUNTED_KINDS, SourceSpec
from gigaslice.core.errors import GigasliceError
from gigaslice.core.text import plain
from gigaslice.roles.dataset_node import events
from gigaslice.roles.dataset_node.sources.panics import GOES_ON
from gigaslice.roles.dataset_node.store import DatasetStore, Volume, VolumeSource
from gigaslice.roles.dataset_node.tasks.dataset_status import DatasetStatus, Stage
from gigaslice.roles.dataset_node.tasks.protocols import DatasetObjects, Reporter, ResolvedDataset
from gigaslice.roles.dataset_node.tasks.provisioner import DatasetCounters, DatasetProvisioner
from gigaslice.roles.dataset_node.tasks.threads import Threads
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import all_of
from gigaslice.runtime.time_limit import set_within

__all__ = ["TaskDependencies", "TaskTimes", "VolumeTask"]

_QUARTERS = (0, 25, 50, 75)
_DAMAGED_TRIES = 3


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """When a task tries again, and how often it is reported on. Seconds.

    Attributes:
        retry: Until a volume that was published early is tried again, after the first failure. Then twice as long.
        longest_retry: The same at most.
        watch: Between two looks at how far the fetches are.
        quiet: Until a pod is told that nothing moves. Then twice as long.
    """

    retry: float = 5.0
    longest_retry: float = 120.0
    watch: float = 0.5
    quiet: float = 10.0


@dataclass(frozen=True, slots=True)
class TaskDependencies:
    """What all tasks share.

    threads, storage: for work with the local disk, and for work that may wait for storage on a network.
    attach: mounts a source's storage for a volume and returns where; for local mode. release: ends that, when the
    volume is published or is not going to be. admit: raises RequestError for a source that pods of this node may not
    name.
    """

    store: DatasetStore
    provisioner: DatasetProvisioner
    objects: DatasetObjects
    reporter: Reporter
    threads: Threads
    storage: Threads
    counters: DatasetCounters
    attach: Callable[[SourceSpec, Mapping[str, str], str], Awaitable[str]]
    release: Callable[[str], None]
    admit: Callable[[SourceSpec], None]
    times: TaskTimes = TaskTimes()


class VolumeTask:
    """A volume on its way. Attributes are read by those who show it."""

    def __init__(
        self,
        dependencies: TaskDependencies,
        volume: Volume,
        request: VolumeRequest,
        credentials: Mapping[str, str],
    ) -> None:
        self.volume = volume
        self.request = request
        self.created = self.called = time.monotonic()
        self.statuses = tuple(DatasetStatus(dataset.name) for dataset in request.datasets)
        self.failure: GigasliceError | None = None
        self.early = False
        self.done = False
        self._dependencies = dependencies
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
        waiting = [status.text() for status in self.statuses if status.stage is not Stage.READY]
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
        failure, self.failure = self.failure, None
        return failure

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
        times = self._dependencies.times
        pause = times.retry
        try:
            while True:
                try:
                    try:
                        self._trying = True
                        await self._attempt()
                    finally:
                        self._trying = False
                        self._dependencies.release(self.volume.id)
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
                pause = times.retry if renewed else min(pause * 2, times.longest_retry)
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    @property
    def _pod(self) -> str:
        return f"{self.volume.namespace}/{self.volume.pod}"

    def _failed(self, error: GigasliceError) -> None:
        self.failure = error
        self._log.warning("volume not published", pod=self._pod, volume=self.volume.id, detail=str(error))
        self._dependencies.reporter.say(self.volume, events.NOT_READY, self._why(error))

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
        for metadata in [status.metadata for status in self.statuses if status.metadata is not None]:
            await self._dependencies.threads.run(self._dependencies.store.unpin, self.volume.id, metadata.key)

    async def _attempt(self) -> None:
        self._fallbacks.clear()
        for status in self.statuses:
            status.stage = Stage.WAITING
        for number in range(_DAMAGED_TRIES):
            sources = await self._volume_sources()
            on_network = any(source.path for source in sources)
            threads = self._dependencies.storage if on_network else self._dependencies.threads
            try:
                await threads.run(self._dependencies.store.publish, self.volume, sources)
            except ImageError:
                if number + 1 == _DAMAGED_TRIES:
                    raise
                continue
            break
        for text in self._fallbacks:
            self._dependencies.counters.fallbacks += 1
            self._dependencies.reporter.say(self.volume, events.NOT_CACHED, text)
        seconds = round(time.monotonic() - self._begun, 3)
        self._log.info(
            "published", pod=self._pod, volume=self.volume.id, datasets=self.request.name, seconds=seconds
        )
        if self._quarter >= 0 or self.early:
            text = f"dataset {self.request.name} is mounted, {seconds:.1f} s after it was asked for"
            self._dependencies.reporter.say(self.volume, events.READY, text)

    async def _volume_sources(self) -> list[VolumeSource]:
        """All datasets, one task each; the first failure ends the others."""
        pairs = zip(self.request.datasets, self.statuses, strict=True)
        return await all_of(*(self._volume_source(request, status) for request, status in pairs))

    async def _volume_source(self, request: DatasetRequest, status: DatasetStatus) -> VolumeSource:
        dataset = await self._resolved(request)
        if self.request.mode is Mode.LOCAL:
            if dataset.check is Check.PINNED:
                raise RequestError(
                    f"Dataset {request.dataset} pins a version, and mode: local shows what the storage has now, which "
                    "nothing compares; leave mode out, or write check: listing in volumeAttributes"
                )
            return await self._local(request, dataset, status)
        try:
            metadata = await self._dependencies.provisioner.ensure(
                self.volume, dataset, self._credentials, status
            )
        except CacheFullError as error:
            if dataset.check is Check.PINNED or (
                dataset.spec.kind != "file" and dataset.spec.kind not in MOUNTED_KINDS
            ):
                raise
            source = await self._local(request, dataset, status)
            # reported when it is true: what is full for the data may be too full to publish anything
            self._fallbacks.append(f"{error}; the pod reads the storage itself (mode: local)")
            return source
        return VolumeSource(key=metadata.key, directory=request.directory, name=request.name)

    async def _resolved(self, request: DatasetRequest) -> ResolvedDataset:
        if request.spec is not None:
            self._dependencies.admit(request.spec)
            return ResolvedDataset(request.spec, self.request.check or Check.LISTING)
        dataset = await self._dependencies.objects.resolve(request.dataset, self.volume.namespace)
        self._dependencies.admit(dataset.spec)
        if self.request.check is Check.LISTING:
            return ResolvedDataset(dataset.spec, name=dataset.name)
        if self.request.check not in (None, dataset.check):
            raise RequestError(
                f"check is {self.request.check.value}, and Dataset {request.dataset} says {dataset.check.value}; "
                "leave it out of volumeAttributes"
            )
        if dataset.check is Check.NEVER and not dataset.trusted:
            raise RequestError(
                f"Dataset {request.dataset} says check: never, which only Datasets in the administrator's namespaces "
                "may (--trusted-namespaces); write check: listing"
            )
        return dataset

    async def _local(
        self, request: DatasetRequest, dataset: ResolvedDataset, status: DatasetStatus
    ) -> VolumeSource:
        check_local(dataset.spec)
        status.stage = Stage.MOUNTING
        path = await self._dependencies.attach(dataset.spec, self._credentials, self.volume.id)
        status.stage = Stage.READY
        return VolumeSource(path=path, directory=request.directory, name=request.name)

    async def _watch(self) -> None:
        """Says on the pod how far its fetches are."""
        times = self._dependencies.times
        stalls = _StallDetector(times.quiet)
        while True:
            await asyncio.sleep(times.watch)
            if self._trying and (text := stalls.look(self.statuses, time.monotonic())):
                self._dependencies.reporter.say(self.volume, events.FETCHING, text)
            under_way = [status for status in self.statuses if status.progress is not None]
            if not under_way:
                continue
            sizes = [status.metadata.size if status.metadata else 0 for status in self.statuses]
            arrived = sum(status.fraction * size for status, size in zip(self.statuses, sizes, strict=True))
            percent = arrived * 100 / (sum(sizes) or 1)
            quarter = max((quarter for quarter in _QUARTERS if quarter <= percent), default=0)
            if quarter > self._quarter:
                self._quarter = quarter
                text = plain("; ".join(status.text() for status in under_way))
                self._dependencies.reporter.say(self.volume, events.FETCHING, text)


class _StallDetector:
    """Notices that nothing moves: a listing that takes long, or storage that hangs."""

    def __init__(self, quiet: float) -> None:
        """QUIET: seconds before the first report."""
        self._quiet = quiet
        self._last: list[tuple[Stage, int]] = []
        self._since = 0.0
        self._next_report = 0.0

    def look(self, statuses: Sequence[DatasetStatus], now: float) -> str:
        """What to report at the time NOW; empty where something has moved, or was reported not long ago."""
        present = [(status.stage, status.progress.fetched if status.progress else -1) for status in statuses]
        if present != self._last:
            self._last, self._since, self._next_report = present, now, self._quiet
            return ""
        seconds = now - self._since
        if seconds < self._next_report:
            return ""
        self._next_report *= 2
        texts = [
            f"{status.text()}, for {round(seconds)} s now"
            for status in statuses
            if status.stage.reports_no_progress
        ]
        texts += [
            f"{status.text()}, and no byte has come for {round(seconds)} s; look after the storage"
            for status in statuses
            if status.progress is not None
        ]
        return plain("; ".join(texts))
