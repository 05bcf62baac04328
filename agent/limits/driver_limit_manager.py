# SPDX-License-Identifier: Apache-2.0
"""Has the driver keep a limit for every pod of the node: at the start of a container, at every change, and each round.

The rules are `gigaslice.core.limits.driver_limits`. Another process sets limits, `gigaslice driver-limits`, which alone
has the right. What the driver says afterwards is the truth here: a limit below present use follows the use
downwards, and one that a restart of the driver has lost is set again. Nothing is kept: an agent or that other process
that is killed at any point leaves limits that the next round makes right.

A limit grows before the limits page of its container does, and shrinks after it: else the driver would refuse what the
library has just promised. So pages ask `most_for` (`agent.limits.manager`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from agent.apiserver.consumer_pods import ConsumerPods
from agent.inventory.holder import GpusNow
from agent.limits.driver_limit_client import DriverLimitsAwayError
from agent.limits.driver_limit_report import DriverLimitReport, PodWall, write_report
from agent.limits.driver_limit_setter import DriverLimitSetter, Limiter
from agent.limits.driver_limit_states import has_failed, has_grown, problem_of
from agent.limits.pod_users import PodUsers
from agent.persistence.store import Store
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.errors import StorageError
from gigaslice.core.limits import driver_limits, live_limits
from gigaslice.core.limits.driver_limit_messages import GpuLimitState, Leaf, PodLimitState, SupportAnswer
from gigaslice.core.units import format_bytes
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import all_of
from gigaslice.runtime.time_limit import set_within
from gigaslice.runtime.wakeup import Alarm

__all__ = ["DriverLimitManager", "DriverLimitTimes"]

_UNKNOWN_POD = "its pod is not known before its first process runs, and its limit is to stand before that"
_CONNECT_POLL = 0.05
Limits = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class DriverLimitTimes:
    """In seconds.

    support: between two questions whether limits can be set, while they cannot or one has failed: the driver is opened
    anew for an answer. absence: how long nobody may answer until a node that
    requires limits lists no devices. connect: how long the first round waits for a connection, and a start for that
    round. retry: between two attempts to watch.
    """

    support: float = 60.0
    absence: float = 10.0
    connect: float = 2.0
    retry: float = 1.0


class DriverLimitManager:
    """Keeps the driver's limits of the node's pods.

    Attributes:
        report: The state of now.
        states: What the driver said in the last round, by pod.
        watchers: Called when limits have grown, and pages may follow.
    """

    def __init__(
        self,
        store: Store,
        gpus: GpusNow,
        users: PodUsers,
        limiter: Limiter,
        pods: ConsumerPods,
        *,
        mode: str,
        margin: int,
        interval: float,
        usable: Callable[[bool], None] = lambda usable: None,
        times: DriverLimitTimes | None = None,
    ) -> None:
        """Initializes the manager.

        Args:
            store: The allocation table.
            gpus: The GPUs.
            users: Which pods use an allocation.
            limiter: Who sets limits.
            pods: Where events go.
            mode: "auto": where it can be had. "required": nothing is listed or started without it.
            margin: Bytes that a limit is larger than what was promised.
            interval: Seconds between two rounds without news.
            usable: Told whether devices may be listed, when that changes.
            times: See there.
        """
        self.report = DriverLimitReport(mode, reason="not asked yet")
        self.states: dict[str, PodLimitState] = {}
        self.watchers: list[Callable[[], None]] = []
        self._store = store
        self._gpus = gpus
        self._users = users
        self._limiter = limiter
        self._pods = pods
        self._mode = mode
        self._margin = margin
        self._interval = interval
        self._usable = usable
        self._times = times or DriverLimitTimes()
        self._setter = DriverLimitSetter(limiter, self._container_limit, self._report_replaced)
        self._support: SupportAnswer | None = None
        self._asked_at = 0.0
        self._failing = False  # in the last round, some limit
        self._setting = asyncio.Lock()  # what is set last is what was worked out last
        self._answered_at: float | None = None
        self._told_usable: bool | None = None
        self._written: DriverLimitReport | None = None
        self._first_round = asyncio.Event()
        self._alarm = Alarm()
        self._reported = LogOnce()
        self._log = get_logger("driver_limits")

    @property
    def active(self) -> bool:
        """Whether the driver keeps limits now."""
        return self._limiter.connected and self._support is not None and self._support.backend != "none"

    async def run(self) -> None:
        """Works until cancelled."""
        self._store.watchers.append(self._alarm.ring)
        try:
            await all_of(self._limiter.run(self._alarm.ring), self._work(), self._watch_cgroups())
        finally:
            self._store.watchers.remove(self._alarm.ring)

    async def settled(self, seconds: float) -> None:
        """Returns after the first round, or after SECONDS: what it finds decides whether devices are listed."""
        await set_within(self._first_round, seconds)

    async def blocker(self, allocation: Allocation) -> str | None:
        """Sets the limits of the pods of ALLOCATION, which is about to start. Returns why it may not start yet, None
        when it may.
        """
        await self.settled(self._times.connect)
        if not self.active:
            return self._unless_auto(self.report.reason)
        users = self._users.of(allocation)
        if not users:
            return self._unless_auto(_UNKNOWN_POD)
        try:
            async with self._setting:
                limits = {uid: by_gpu for uid, by_gpu in self._limits().items() if uid in users}
                states = await self._setter.set(limits)
                self.states |= states
        except DriverLimitsAwayError as error:
            self._alarm.ring()
            return self._unless_auto(str(error))
        problems = [problem_of(limits[uid], states.get(uid)) for uid in sorted(limits)]
        problem = next(filter(None, problems), "")
        if problem:
            self._report_problem(allocation, problem)
        else:
            self._reported.over((allocation.id, "not set"))
        return self._unless_auto(problem)

    def most_for(self, allocation: Allocation, gpu: str) -> int | None:
        """Returns how large the limits page of ALLOCATION may be on GPU; None where the driver does not limit it."""
        device = next((device for device in self._gpus.now.gpus if device.uuid == gpu), None)
        if not self.active or allocation.whole or device is None:
            return None
        table = self._store.table
        users = {other.id: self._users.of(other) for other in table.allocations}
        hard = {
            uid: {name: gpu_state.hard for name, gpu_state in state.gpus.items()}
            for uid, state in self.states.items()
        }
        return driver_limits.page_room(table, allocation, users, hard, gpu=device, margin=self._margin)

    async def round(self) -> None:
        """Sets every limit that is not what it is to be, and tells how it is."""
        try:
            support = await self._asked_support()
            if support.backend == "none":
                self._tell(DriverLimitReport(self._mode, "none", support.reason, support.driver))
            else:
                async with self._setting:
                    before = self.states
                    await self._set_all(support)
                self._tell_grown(before)
        except DriverLimitsAwayError as error:
            self._support = None
            self._tell(DriverLimitReport(self._mode, reason=str(error)))
        self._tell_usable()
        self._first_round.set()

    def states_of(self, allocation: Allocation, gpu: str) -> list[GpuLimitState]:
        """Returns what the driver said of the pods of an allocation on a GPU."""
        states = [self.states[uid] for uid in sorted(self._users.of(allocation)) if uid in self.states]
        return [state.gpus[gpu] for state in states if gpu in state.gpus]

    def room(self, gpu: str) -> int:
        """Returns the bytes of a GPU that no pod holds, by what the driver counts for them."""
        held = sum(state.gpus[gpu].used or 0 for state in self.states.values() if gpu in state.gpus)
        return sum(device.memory_bytes for device in self._gpus.now.gpus if device.uuid == gpu) - held

    def used_by(self, allocation: Allocation, gpu: str) -> int | None:
        """Returns the bytes of a GPU that the driver counts for an allocation; None where its pod has another one."""
        beside = any(
            other.id != allocation.id
            and gpu in other.quota()
            and self._users.of(other) & self._users.of(allocation)
            for other in self._store.table.allocations
        )
        states = self.states_of(allocation, gpu)
        return states[0].used if len(states) == 1 and not beside else None

    def pod_states(self) -> Iterator[tuple[str, str, PodLimitState]]:
        """Yields namespace, name and state of each pod that uses an allocation, where its names are known."""
        for uid, refs in self._refs().items():
            if uid in self.states and len(refs) == 1:
                namespace, pod = next(iter(refs))
                yield namespace, pod, self.states[uid]

    async def _work(self) -> None:
        until = time.monotonic() + self._times.connect
        while self._limiter.expected and not self._limiter.connected and time.monotonic() < until:
            await asyncio.sleep(_CONNECT_POLL)
        while True:
            await self.round()
            await self._alarm.wait(self._interval)

    async def _watch_cgroups(self) -> None:
        sequence = 0
        while True:
            try:
                answer = await self._limiter.watch(sequence)
            except DriverLimitsAwayError:
                await asyncio.sleep(self._times.retry)
                continue
            if answer.sequence != sequence:
                sequence, self._users.present = answer.sequence, frozenset(answer.uids)
                self._alarm.ring()

    async def _asked_support(self) -> SupportAnswer:
        now = time.monotonic()
        doubtful = self._support is None or self._support.backend == "none" or self._failing
        if self._support is None or (doubtful and now - self._asked_at >= self._times.support):
            support = await self._limiter.support()
            self._asked_at = now
            if self._reported.new("support", f"{support.backend} {support.reason}"):
                self._log.info(
                    "driver limits", backend=support.backend, driver=support.driver, detail=support.reason
                )
            self._support = support
        return self._support

    async def _set_all(self, support: SupportAnswer) -> None:
        own = self._limits()
        totals = {gpu: gpu_support.total for gpu, gpu_support in support.gpus.items()}
        pods, identified = self._users.node_pods(), self._users.identified
        wanted = driver_limits.limits_of_node(own, pods, totals, identified=identified)
        self._users.closed([uid for uid in wanted if uid not in own and not any(wanted[uid].values())])
        self.states = states = await self._setter.set(wanted)
        self._failing = any(has_failed(state) for state in states.values())
        self._forget({*wanted, *(allocation.id for allocation in self._store.table.allocations)})
        self._tell(
            DriverLimitReport(
                self._mode,
                support.backend,
                driver=support.driver,
                pods=len(own),
                excess=driver_limits.excess_bytes(own, self._gpus.now.gpus),
                walls=tuple(self._walls(own, states)),
            )
        )

    def _forget(self, subjects: Collection[str]) -> None:
        """Forgets what was reported, but of SUBJECTS: pods and allocations."""
        self._reported.keep(lambda key: not isinstance(key, tuple) or key[0] in subjects)

    def _tell_grown(self, before: Mapping[str, PodLimitState]) -> None:
        if any(has_grown(before.get(uid), state) for uid, state in self.states.items()):
            for watcher in self.watchers:
                watcher()

    def _limits(self) -> dict[str, dict[str, int]]:
        """The limits of all pods that use an allocation."""
        return driver_limits.pod_limits(
            self._store.table, self._users.node_pods(), self._gpus.now.gpus, self._held(), self._margin
        )

    def _held(self) -> live_limits.Present:
        """What living processes hold, which only elastic limits depend on."""
        if not any(allocation.policy.elastic for allocation in self._store.table.allocations):
            return {}
        return {key: reading.present() for key, reading in self._store.readings().items()}

    def _container_limit(self, allocation_id: str, gpu: str) -> int | None:
        allocation = self._store.table.find(allocation_id)
        if allocation is None:
            return None
        gpus = self._gpus.now.gpus
        page = live_limits.limits_now(self._store.table, gpus, self._held())[allocation_id]
        sizes = {name: count for name, (count, _) in page.items()}
        return driver_limits.container_limit(allocation, gpus, sizes, gpu, self._margin)

    def _walls(self, limits: Limits, states: Mapping[str, PodLimitState]) -> list[PodWall]:
        """The limits that are not what they are to be."""
        walls = []
        for uid, by_gpu in limits.items():
            state = states.get(uid)
            if state is None or not state.present:
                continue  # not made yet, or gone
            for gpu, wanted in by_gpu.items():
                gpu_state = state.gpus.get(gpu) or GpuLimitState(None, None)
                if gpu_state.hard != wanted:
                    problem = state.problem or gpu_state.problem
                    walls.append(
                        PodWall(self._name(uid), gpu, wanted, gpu_state.hard, gpu_state.used, problem)
                    )
        return walls

    def _refs(self) -> dict[str, set[tuple[str, str]]]:
        """Namespaces and names by UID, of the pods that use an allocation."""
        refs: dict[str, set[tuple[str, str]]] = {}
        for allocation in self._store.table.allocations:
            for uid, namespace, pod in self._users.named(allocation):
                refs.setdefault(uid, set()).add((namespace, pod))
        return refs

    def _name(self, uid: str) -> str:
        names = self._refs().get(uid, set())
        return "/".join(next(iter(names))) if len(names) == 1 else f"pod {uid}"

    def _tell(self, report: DriverLimitReport) -> None:
        self.report = report
        if report.backend != "none":
            self._answered_at = time.monotonic()
        elif report.reason and self._reported.new("reason", report.reason):
            self._log.info("no driver limits", detail=report.reason)
        if report == self._written:
            return
        try:
            write_report(self._store.state_dir, report)
            self._written = report
        except StorageError as error:
            if self._reported.new("report", str(error)):
                self._log.error("report not written", detail=str(error))

    def _tell_usable(self) -> None:
        """Tells whether devices may be listed. Who sets limits may restart: that alone changes nothing."""
        if self._mode != "required":
            return
        recent = self._answered_at is not None and (
            time.monotonic() - self._answered_at < self._times.absence and self._support is None
        )
        usable = self.report.backend != "none" or recent
        if usable != self._told_usable:
            if not usable:
                self._log.error(
                    "no devices are listed", detail=f"--driver-limits=required: {self.report.reason}"
                )
            self._told_usable = usable
            self._usable(usable)

    def _unless_auto(self, problem: str) -> str | None:
        return f"waiting for the driver's limit: {problem}" if problem and self._mode == "required" else None

    def _report_problem(self, allocation: Allocation, problem: str) -> None:
        if self._reported.new((allocation.id, "not set"), problem):
            self._log.warning(
                "driver limit not set", allocation=allocation.id, container=allocation.name, detail=problem
            )
            if self._mode != "required":
                text = f"the driver does not limit the pod, only the library does: {problem}"
                self._pods.event(allocation, "Warning", "DriverLimitNotSet", text)

    def _report_replaced(self, uid: str, allocation_id: str, leaf: Leaf, wanted: int) -> None:
        was = "no limit" if leaf.hard is None else f"a limit of {format_bytes(leaf.hard)}"
        text = (
            f"a container's own cgroup had {was} on {leaf.gpu}, as NVIDIA_GPU_MEMORY_LIMIT or a cgroup that is gone "
            f"leave it; it is {format_bytes(wanted)} now"
        )
        if not self._reported.new((uid, leaf.container, leaf.gpu), text):
            return
        self._log.warning("driver limit replaced", pod=self._name(uid), container=leaf.container, detail=text)
        allocation = self._store.table.find(allocation_id)
        if allocation is not None:
            self._pods.event(allocation, "Warning", "DriverLimitReplaced", text)
