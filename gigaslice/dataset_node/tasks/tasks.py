"""All tasks of the node: the one door for the kubelet's calls, the init-container form and the start gate.

One record per volume, however often it is asked for. What is published is answered from the mount table at once. A
volume is published early, as an empty placeholder that the data are mounted over, where every container that mounts it
waits at its start for this service; the images are pulled meanwhile. Any other call is held until the data are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gigaslice.dataset.errors import DatasetError, ImageError
from gigaslice.dataset.request import VolumeRequest, parse_attributes
from gigaslice.dataset_node.store import Record, Volume
from gigaslice.dataset_node.tasks.kept import KeptRequests, KeptVolume
from gigaslice.dataset_node.tasks.seams import Pods
from gigaslice.dataset_node.tasks.task import Task, TaskParts
from gigaslice.errors import GigasliceError
from gigaslice.model import DATASET_DRIVER, Pod
from gigaslice.runtime.logs import get_logger

__all__ = ["StillFetching", "Tasks", "volume_name"]

_SOON = 0.5  # seconds that data which are there already, and mistakes, have before a placeholder is mounted
_FORGET_SECONDS = (
    900.0  # a task that has not been asked about for so long: the kubelet asks every two minutes
)
_SWEEP_SECONDS = 30.0


class StillFetching(DatasetError):  # noqa: N818  (no error: the work goes on)
    """The call has been held as long as it may be, and the work goes on; the text says how far it is."""


@dataclass(frozen=True, slots=True)
class _Early:
    """Whether early publishing is possible at all, and for which resources."""

    resources: Callable[[], Sequence[str]]
    kept: KeptRequests
    keeps_secrets: bool
    mark: Callable[[], None]


@dataclass(slots=True)
class _VolumeLock:
    """users: calls that hold it or wait for it; it is forgotten after the last one."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Tasks:
    """The tasks of a node.

    Args:
        parts: What tasks share.
        pods: Shows the specification of a pod.
        guarded: The resources whose containers wait at their start for this service, as of now; empty while no agent
            is connected.
        kept: Where requests of early volumes are kept.
        keeps_secrets: Whether that place is in memory, so that credentials may be kept there.
        mark_early: Is called before a volume is published early. Blocking; raises OSError.
        detach: Unmounts storage of local mode that no task needs and no record names, given a way to the records.
    """

    def __init__(
        self,
        parts: TaskParts,
        pods: Pods,
        *,
        guarded: Callable[[], Sequence[str]],
        kept: KeptRequests,
        keeps_secrets: bool,
        mark_early: Callable[[], None] = lambda: None,
        detach: Callable[[Callable[[], Mapping[str, Record]]], Awaitable[None]] | None = None,
    ) -> None:
        self._parts = parts
        self._pods = pods
        self._early = _Early(guarded, kept, keeps_secrets, mark_early)
        self._detach = detach
        self._tasks: dict[str, Task] = {}
        self._locks: dict[str, _VolumeLock] = {}
        self._finishing: set[asyncio.Task[None]] = set()
        self._gates: dict[str, float] = {}  # when a pod's container first waited, by UID
        self._log = get_logger("dataset")

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Those under way, and those that failed and will be asked for again."""
        return tuple(self._tasks.values())

    async def restore(self) -> None:
        """Goes on with the early volumes of an earlier service."""
        for one in await self._parts.threads.run(self._early.kept.found):
            there = Path(one.volume.target).parent.exists()
            if not there or await self._published(one.volume.id):
                self._early.kept.forget(one.volume.id)
                continue
            try:
                task = Task(self._parts, one.volume, parse_attributes(one.attributes), one.credentials)
            except DatasetError:
                self._early.kept.forget(one.volume.id)
                continue
            task.early = True
            self._tasks[one.volume.id] = task
            task.begin()
            self._finish_later(task)

    async def publish(
        self,
        volume: Volume,
        attributes: Mapping[str, str],
        credentials: Mapping[str, str],
        seconds: float,
        *,
        hold: bool = False,
    ) -> None:
        """Publishes a volume, or says how far it is.

        Args:
            volume: The volume.
            attributes: Its volumeAttributes.
            credentials: Of its Secret.
            seconds: How long the caller waits.
            hold: Whether an empty placeholder is of no use to the caller.

        Raises:
            StillFetching: It takes longer; the work goes on.
            GigasliceError: It cannot be published; the text says what to do.
        """
        deadline = time.monotonic() + seconds
        if await self._published(volume.id) and self._is_at(volume):
            done = self._tasks.get(volume.id)
            if done is not None and done.done:
                self._over(done)
            return None
        request = parse_attributes(attributes)
        async with self._locked(volume.id):
            task = self._tasks.get(volume.id)
            if task is None and await self._again(volume, request):
                return None
            if task is None or (not task.running and task.failure is None):
                task = Task(self._parts, volume, request, credentials)
                self._tasks[volume.id] = task
                task.begin()
            task.called = time.monotonic()
            if task.early and task.renew(credentials):
                await self._keep(task, attributes, credentials)
            if await task.wait(min(_SOON, deadline - time.monotonic())):
                return self._over(task)
            if not hold and not task.early and await self._guarded(volume):
                await self._publish_early(task, attributes, credentials)
            if task.early:
                return None
        if await task.wait(deadline - time.monotonic()):
            return self._over(task)
        raise StillFetching(task.text())

    async def unpublish(self, volume_id: str, target: str) -> None:
        """Ends a volume: unmounts it, and stops what is under way for it alone. There may be none of it."""
        async with self._locked(volume_id):
            task = self._tasks.pop(volume_id, None)
            if task is not None:
                await task.stop()
            await self._parts.threads.run(self._parts.store.remove, volume_id, target)
            self._early.kept.forget(volume_id)
            if self._detach is not None:
                await self._detach(self._parts.store.records)
        if task is not None:
            self._gates.pop(task.volume.pod_uid, None)

    async def blocker(self, pod_uid: str, volumes: Sequence[str] | None) -> str | None:
        """Why a container may not start yet; None when it may.

        Args:
            pod_uid: Its pod.
            volumes: The volumes that it mounts; None where the caller does not know them.
        """
        reasons = []
        known: dict[str, str | None] = {}
        for record in self._parts.store.records().values():
            if record.volume.pod_uid == pod_uid:
                known[volume_name(record.volume)] = record.volume.id
        for task in self._tasks.values():
            if task.volume.pod_uid == pod_uid:
                known[volume_name(task.volume)] = task.volume.id
        for name in known if volumes is None else volumes:
            volume_id = known.get(name)
            if volume_id is None:
                reasons.append(f"volume {name} has not been published yet")
            elif not await self._published(volume_id):
                found = self._tasks.get(volume_id)
                reasons.append(
                    found.text()
                    if found is not None
                    else f"volume {name} is not mounted, which the kubelet mends; if it does not, delete the pod"
                )
        self._count_gate(pod_uid, blocked=bool(reasons))
        return f"waiting for {'; '.join(reasons)}" if reasons else None

    async def run(self) -> None:
        """Sweeps until cancelled: drops tasks that the kubelet has forgotten."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self.sweep()

    async def sweep(self) -> None:
        """Drops tasks whose pods are gone without a call, as after a forced deletion. What a pod has stays."""
        now = time.monotonic()
        for volume_id, task in list(self._tasks.items()):
            gone = not Path(task.volume.target).parent.exists()
            if task.done and not gone:  # a call was answered from the mount table before the task had noticed
                self._forget(task)
                continue
            silent = not task.early and now - task.called > _FORGET_SECONDS
            if not gone and (not silent or await self._published(volume_id)):
                continue
            self._log.info("task dropped", volume=volume_id, pod=f"{task.volume.namespace}/{task.volume.pod}")
            with contextlib.suppress(GigasliceError):
                await self.unpublish(volume_id, task.volume.target)

    async def close(self) -> None:
        """Stops everything; what has arrived is kept, what is mounted stays."""
        for task in list(self._tasks.values()):
            await task.stop()

    def _over(self, task: Task) -> None:
        """Answers for a task whose attempt has ended."""
        if task.done:
            self._forget(task)
            return
        failure = task.take_failure()
        if failure is not None:
            raise failure
        raise StillFetching(task.text())

    def _forget(self, task: Task) -> None:
        """Lets go of a task whose volume is mounted, unless another one is in its place."""
        if self._tasks.get(task.volume.id) is task:
            del self._tasks[task.volume.id]
            self._early.kept.forget(task.volume.id)

    async def _again(self, volume: Volume, request: VolumeRequest) -> bool:
        """Publishes what the volume had before a reboot or a restart, if it is all in the cache. The pod keeps it."""
        record = self._parts.store.records().get(volume.id)
        if record is None or record.volume != volume or not record.pieces:
            return False
        if any(not one.key for one in record.pieces) or len(record.pieces) != len(request.datasets):
            return False
        try:
            await self._parts.threads.run(self._parts.store.publish, volume, record.pieces)
        except ImageError:
            return False
        return True

    async def _guarded(self, volume: Volume) -> bool:
        """Whether every container that mounts the volume waits at its start for this service."""
        if not self._early.resources():
            return False
        pod = await self._pods.pod(volume)
        guarded = self._early.resources()
        return pod is not None and _all_wait(pod, volume_name(volume), guarded)

    async def _publish_early(
        self, task: Task, attributes: Mapping[str, str], credentials: Mapping[str, str]
    ) -> None:
        if credentials and not self._early.keeps_secrets:
            return
        run, store = self._parts.threads.run, self._parts.store
        try:
            await run(self._early.mark)
            await run(self._early.kept.keep, KeptVolume(task.volume, dict(attributes), dict(credentials)))
            await run(store.placeholder, task.volume, task.request.directories)
        except (OSError, DatasetError) as error:
            self._early.kept.forget(task.volume.id)
            self._log.warning("not published early", volume=task.volume.id, detail=str(error))
            return
        task.early = True
        task.begin()  # its first attempt may have failed in the meantime
        self._finish_later(task)
        self._log.info(
            "published early", volume=task.volume.id, pod=f"{task.volume.namespace}/{task.volume.pod}"
        )

    async def _keep(self, task: Task, attributes: Mapping[str, str], credentials: Mapping[str, str]) -> None:
        """Keeps what a later call of an early volume has brought: its Secret has been mended."""
        if credentials and not self._early.keeps_secrets:
            return
        try:
            kept = KeptVolume(task.volume, dict(attributes), dict(credentials))
            await self._parts.threads.run(self._early.kept.keep, kept)
        except OSError as error:
            self._log.warning("request not kept", volume=task.volume.id, detail=str(error))

    def _finish_later(self, task: Task) -> None:
        """Forgets an early task when its data are there: no call will come for it."""

        async def finish() -> None:
            await task.wait(None)
            if task.done:
                self._forget(task)

        one = asyncio.get_running_loop().create_task(finish())
        self._finishing.add(one)
        one.add_done_callback(self._finishing.discard)

    async def _published(self, volume_id: str) -> bool:
        return await self._parts.threads.run(self._parts.store.published, volume_id)

    def _is_at(self, volume: Volume) -> bool:
        record = self._parts.store.records().get(volume.id)
        return record is not None and record.volume.target == volume.target

    def _count_gate(self, pod_uid: str, *, blocked: bool) -> None:
        now = time.monotonic()
        if blocked:
            self._gates.setdefault(pod_uid, now)
        elif (since := self._gates.pop(pod_uid, None)) is not None:
            self._parts.counters.gate_waits += 1
            self._parts.counters.gate_wait_seconds += now - since

    @contextlib.asynccontextmanager
    async def _locked(self, volume_id: str) -> AsyncIterator[None]:
        """One call of a volume at a time."""
        one = self._locks.setdefault(volume_id, _VolumeLock())
        one.users += 1
        try:
            async with one.lock:
                yield
        finally:
            one.users -= 1
            if not one.users:
                del self._locks[volume_id]


def volume_name(volume: Volume) -> str:
    """The volume's name in its pod: the directory above the target."""
    return Path(volume.target).parent.name


def _all_wait(pod: Pod, name: str, guarded: Sequence[str]) -> bool:
    found = [one for one in pod.volumes_of(DATASET_DRIVER) if one.name == name]
    if not found or not found[0].mounted_by:
        return False
    requests = {one.name: one.requests for one in pod.containers}
    return all(
        any(
            asked == one or asked.startswith(f"{one}.")
            for asked in requests.get(container, {})
            for one in guarded
        )
        for container in found[0].mounted_by
    )
