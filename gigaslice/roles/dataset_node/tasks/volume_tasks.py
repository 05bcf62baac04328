# SPDX-License-Identifier: Apache-2.0
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

from gigaslice.core.dataset.errors import DatasetError, ImageError
from gigaslice.core.dataset.request import VolumeRequest, parse_attributes
from gigaslice.core.errors import GigasliceError
from gigaslice.core.model import DATASET_DRIVER, Pod
from gigaslice.roles.dataset_node.store import Volume, VolumeRecord
from gigaslice.roles.dataset_node.tasks.early_requests import EarlyRequest, EarlyRequests
from gigaslice.roles.dataset_node.tasks.protocols import Pods
from gigaslice.roles.dataset_node.tasks.volume_task import TaskDependencies, VolumeTask
from gigaslice.runtime.logs import get_logger

__all__ = ["EarlyPublishing", "StillFetching", "VolumeTasks", "volume_name"]

_SOON = 0.5  # seconds that data which are there already, and mistakes, have before a placeholder is mounted
_FORGET_SECONDS = (
    900.0  # a task that has not been asked about for so long: the kubelet asks every two minutes
)
_SWEEP_SECONDS = 30.0


class StillFetching(DatasetError):  # noqa: N818  (no error: the work goes on)
    """The call has been held as long as it may be, and the work goes on; the text says how far it is."""


@dataclass(frozen=True, slots=True)
class EarlyPublishing:
    """Whether early publishing is possible at all, and for which resources.

    resources: whose containers wait at their start for this service, as of now; empty while no agent is connected.
    kept: where requests of early volumes are kept. keeps_secrets: whether that place is in memory, so that credentials
    may be kept there. mark: is called before a volume is published early; blocking; raises OSError.
    """

    resources: Callable[[], Sequence[str]]
    kept: EarlyRequests
    keeps_secrets: bool
    mark: Callable[[], None]


@dataclass(slots=True)
class _VolumeLock:
    """users: calls that hold it or wait for it; it is forgotten after the last one."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class VolumeTasks:
    """The tasks of a node.

    Args:
        dependencies: What tasks share.
        pods: Shows the specification of a pod.
        early: What early publishing needs.
        detach: Unmounts storage of local mode that no task needs and no record names, given a way to the records.
    """

    def __init__(
        self,
        dependencies: TaskDependencies,
        pods: Pods,
        *,
        early: EarlyPublishing,
        detach: Callable[[Callable[[], Mapping[str, VolumeRecord]]], Awaitable[None]],
    ) -> None:
        self._dependencies = dependencies
        self._pods = pods
        self._early = early
        self._detach = detach
        self._tasks: dict[str, VolumeTask] = {}
        self._locks: dict[str, _VolumeLock] = {}
        self._finishing: set[asyncio.Task[None]] = set()
        self._gate_waits_since: dict[str, float] = {}  # when a pod's container first waited, by UID
        self._log = get_logger("dataset")

    @property
    def tasks(self) -> tuple[VolumeTask, ...]:
        """Those under way, and those that failed and will be asked for again."""
        return tuple(self._tasks.values())

    async def restore(self) -> None:
        """Goes on with the early volumes of an earlier service."""
        for request in await self._dependencies.threads.run(self._early.kept.requests):
            pod_is_there = Path(request.volume.target).parent.exists()
            if not pod_is_there or await self._published(request.volume.id):
                self._early.kept.forget(request.volume.id)
                continue
            try:
                task = VolumeTask(
                    self._dependencies,
                    request.volume,
                    parse_attributes(request.attributes),
                    request.credentials,
                )
            except DatasetError:
                self._early.kept.forget(request.volume.id)
                continue
            task.early = True
            self._tasks[request.volume.id] = task
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
                self._forget_or_raise(done)
            return None
        request = parse_attributes(attributes)
        async with self._locked(volume.id):
            task = self._tasks.get(volume.id)
            if task is None and await self._publish_again(volume, request):
                return None
            if task is None or (not task.running and task.failure is None):
                task = VolumeTask(self._dependencies, volume, request, credentials)
                self._tasks[volume.id] = task
                task.begin()
            task.called = time.monotonic()
            if task.early and task.renew(credentials):
                await self._keep_request(task, attributes, credentials)
            if await task.wait(min(_SOON, deadline - time.monotonic())):
                return self._forget_or_raise(task)
            if not hold and not task.early and await self._guarded(volume):
                await self._publish_early(task, attributes, credentials)
            if task.early:
                return None
        if await task.wait(deadline - time.monotonic()):
            return self._forget_or_raise(task)
        raise StillFetching(task.text())

    async def unpublish(self, volume_id: str, target: str) -> None:
        """Ends a volume: unmounts it, and stops what is under way for it alone. There may be none of it."""
        async with self._locked(volume_id):
            task = self._tasks.pop(volume_id, None)
            if task is not None:
                await task.stop()
            await self._dependencies.threads.run(self._dependencies.store.remove, volume_id, target)
            self._early.kept.forget(volume_id)
            await self._detach(self._dependencies.store.records)
        if task is not None:
            self._gate_waits_since.pop(task.volume.pod_uid, None)

    async def blocker(self, pod_uid: str, volumes: Sequence[str] | None) -> str | None:
        """Why a container may not start yet; None when it may.

        Args:
            pod_uid: Its pod.
            volumes: The volumes that it mounts; None where the caller does not know them.
        """
        reasons = []
        volume_ids: dict[str, str | None] = {}
        for record in self._dependencies.store.records().values():
            if record.volume.pod_uid == pod_uid:
                volume_ids[volume_name(record.volume)] = record.volume.id
        for task in self._tasks.values():
            if task.volume.pod_uid == pod_uid:
                volume_ids[volume_name(task.volume)] = task.volume.id
        for name in volume_ids if volumes is None else volumes:
            volume_id = volume_ids.get(name)
            if volume_id is None:
                reasons.append(f"volume {name} has not been published yet")
            elif not await self._published(volume_id):
                under_way = self._tasks.get(volume_id)
                reasons.append(
                    under_way.text()
                    if under_way is not None
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

    def _forget_or_raise(self, task: VolumeTask) -> None:
        """Answers for a task whose attempt has ended."""
        if task.done:
            self._forget(task)
            return
        failure = task.take_failure()
        if failure is not None:
            raise failure
        raise StillFetching(task.text())

    def _forget(self, task: VolumeTask) -> None:
        """Lets go of a task whose volume is mounted, unless another one is in its place."""
        if self._tasks.get(task.volume.id) is task:
            del self._tasks[task.volume.id]
            self._early.kept.forget(task.volume.id)

    async def _publish_again(self, volume: Volume, request: VolumeRequest) -> bool:
        """Publishes what the volume had before a reboot or a restart, if it is all in the cache. The pod keeps it."""
        record = self._dependencies.store.records().get(volume.id)
        if record is None or record.volume != volume or not record.volume_sources:
            return False
        if any(not source.key for source in record.volume_sources) or len(record.volume_sources) != len(
            request.datasets
        ):
            return False
        try:
            await self._dependencies.threads.run(
                self._dependencies.store.publish, volume, record.volume_sources
            )
        except ImageError:
            return False
        return True

    async def _guarded(self, volume: Volume) -> bool:
        """Whether every container that mounts the volume waits at its start for this service."""
        if not self._early.resources():
            return False
        pod = await self._pods.pod(volume)
        guarded = self._early.resources()
        return pod is not None and _all_wait_for_gate(pod, volume_name(volume), guarded)

    async def _publish_early(
        self, task: VolumeTask, attributes: Mapping[str, str], credentials: Mapping[str, str]
    ) -> None:
        if credentials and not self._early.keeps_secrets:
            return
        run, store = self._dependencies.threads.run, self._dependencies.store
        try:
            await run(self._early.mark)
            await run(self._early.kept.keep, EarlyRequest(task.volume, dict(attributes), dict(credentials)))
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

    async def _keep_request(
        self, task: VolumeTask, attributes: Mapping[str, str], credentials: Mapping[str, str]
    ) -> None:
        """Keeps what a later call of an early volume has brought: its Secret has been mended."""
        if credentials and not self._early.keeps_secrets:
            return
        try:
            kept = EarlyRequest(task.volume, dict(attributes), dict(credentials))
            await self._dependencies.threads.run(self._early.kept.keep, kept)
        except OSError as error:
            self._log.warning("request not kept", volume=task.volume.id, detail=str(error))

    def _finish_later(self, task: VolumeTask) -> None:
        """Forgets an early task when its data are there: no call will come for it."""

        async def finish() -> None:
            await task.wait(None)
            if task.done:
                self._forget(task)

        runner = asyncio.get_running_loop().create_task(finish())
        self._finishing.add(runner)
        runner.add_done_callback(self._finishing.discard)

    async def _published(self, volume_id: str) -> bool:
        return await self._dependencies.threads.run(self._dependencies.store.published, volume_id)

    def _is_at(self, volume: Volume) -> bool:
        record = self._dependencies.store.records().get(volume.id)
        return record is not None and record.volume.target == volume.target

    def _count_gate(self, pod_uid: str, *, blocked: bool) -> None:
        now = time.monotonic()
        if blocked:
            self._gate_waits_since.setdefault(pod_uid, now)
        elif (since := self._gate_waits_since.pop(pod_uid, None)) is not None:
            self._dependencies.counters.gate_waits += 1
            self._dependencies.counters.gate_wait_seconds += now - since

    @contextlib.asynccontextmanager
    async def _locked(self, volume_id: str) -> AsyncIterator[None]:
        """One call of a volume at a time."""
        volume_lock = self._locks.setdefault(volume_id, _VolumeLock())
        volume_lock.users += 1
        try:
            async with volume_lock.lock:
                yield
        finally:
            volume_lock.users -= 1
            if not volume_lock.users:
                del self._locks[volume_id]


def volume_name(volume: Volume) -> str:
    """The volume's name in its pod: the directory above the target."""
    return Path(volume.target).parent.name


def _all_wait_for_gate(pod: Pod, name: str, guarded: Sequence[str]) -> bool:
    volumes = [volume for volume in pod.volumes_of(DATASET_DRIVER) if volume.name == name]
    if not volumes or not volumes[0].mounted_by:
        return False
    waiting = {container.name for container in pod.containers if container.asks_for(guarded)}
    return waiting.issuperset(volumes[0].mounted_by)
