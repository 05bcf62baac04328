"""Finds what uses the GPUs without the library or beyond its limit, says so, counts it, and by policy ends it.

Runs with every measuring round: looks at the processes that NVML shows and no ledger knows, tells the measurer what
they hold in each container, and speaks up about what lasts longer than a moment. What is said when, and what ends a
pod, is decided in `policy`; a pod ends through the API server's evictions alone, which disruption budgets can forbid,
and never without an event before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from agent.accounting.findings import Finding, Survey, credible, examine, named, undeclared_overuse
from agent.accounting.overuse import Kind, Offence, Policy, Watches, due, follow
from agent.accounting.processes import PROC, Sighting, sight
from agent.apiserver import Cluster
from agent.ledgers.usage import Reading
from agent.persistence.store import Store
from agent.telemetry.counters import Counters
from gigaslice import units
from gigaslice.allocation.table import Allocation
from gigaslice.model import Pod
from gigaslice.runtime.logs import get_logger

__all__ = ["Auditor"]

_EVICT_AGAIN = 60.0
_NOT_ATTACHED_SECONDS = 600.0  # from this process's first sight of the allocation


class Auditor:
    """Audits the containers of STORE by POLICY. NOW gives seconds that only go forward."""

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        policy: Policy,
        counters: Counters,
        *,
        now: Callable[[], float] = time.monotonic,
        proc: Path = PROC,
    ) -> None:
        self.survey = Survey({}, {}, ())
        self._store = store
        self._cluster = cluster
        self._policy = policy
        self._counters = counters
        self._now = now
        self._proc = proc
        self._watches: Watches = {}
        self._first_seen: dict[str, float] = {}
        self._silent: set[str] = set()
        self._asked: dict[str, float] = {}
        self._refusals: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._before = {allocation.id for allocation in store.table.allocations}  # and not counted yet
        self._log = get_logger("audit")

    def look(
        self, measured: Mapping[str, Mapping[int, int]], claimed: Collection[int] = ()
    ) -> tuple[Sighting, ...]:
        """Looks at every process that was MEASURED, or is CLAIMED by a ledger. Reads files; for the thread that has
        measured."""
        pids = {pid for processes in measured.values() for pid in processes if pid > 0} | {*claimed}
        return tuple(seen for pid in sorted(pids) if (seen := sight(pid, self._proc)))

    def named(
        self, readings: Mapping[str, Reading], sightings: tuple[Sighting, ...], claimed: Collection[int]
    ) -> Mapping[str, Reading]:
        """READINGS with the PIDs of owners that locks do not name: see `rules.named`."""
        return named(readings, sightings, claimed)

    def owners(
        self, claims: Mapping[int, Collection[str]], sightings: tuple[Sighting, ...]
    ) -> Mapping[int, str]:
        """Whose the processes are that hold slots, by PID: see `rules.credible`."""
        return credible(claims, sightings, self._store.table.allocations, self._pods())

    def judge(
        self,
        measured: Mapping[str, Mapping[int, int]],
        sightings: tuple[Sighting, ...],
        owners: Mapping[int, str],
        readings: Mapping[str, Reading],
    ) -> Mapping[str, Mapping[str, int]]:
        """What processes without the library hold, by allocation id and GPU. OWNERS: allocation ids by PID of all
        others.
        """
        allocations = self._store.table.allocations
        limits = {key: reading.limits for key, reading in readings.items()}
        self.survey = examine(measured, owners, sightings, allocations, self._pods(), limits=limits)
        self._weigh(self.survey, readings, measured)
        self._report_silent(allocations, readings)
        self._count(allocations, readings)
        return self.survey.without_library

    def _count(self, allocations: tuple[Allocation, ...], readings: Mapping[str, Reading]) -> None:
        """Adds up what the containers' processes count; those of one nobody knows yet count once it is known."""
        totals = self._counters.totals
        for allocation in allocations:
            reading = readings.get(allocation.id)
            if reading is None or reading.problem is not None or allocation.ref is None:
                continue
            who = (allocation.ref.namespace, allocation.ref.pod, allocation.ref.container)
            refused = {(one.slot, one.pid_inside, one.generation): one.refused for one in reading.processes}
            totals.note(
                "gigaslice_container_oom_errors_total",
                who,
                allocation.id,
                refused,
                begin=allocation.id in self._before,
            )
            self._before.discard(allocation.id)
            for gpu, use in reading.shares.items():
                if reading.cores.get(gpu):
                    labels = (gpu, *who)
                    totals.note(
                        "gigaslice_container_compute_seconds_total", labels, allocation.id, {"": use.spent}
                    )
                    totals.note(
                        "gigaslice_container_compute_throttled_seconds_total",
                        labels,
                        allocation.id,
                        {"": use.throttled},
                    )
        totals.keep({allocation.id for allocation in allocations})

    def _pods(self) -> dict[str, tuple[str, str]]:
        return {pod.uid: name for name, pod in self._cluster.pods.items()}

    def _weigh(
        self, survey: Survey, readings: Mapping[str, Reading], measured: Mapping[str, Mapping[int, int]]
    ) -> None:
        """Speaks of what lasts, and has evicted what lasts too long."""
        findings = {one.allocation.id: one for one in survey.findings}
        over = {key: one.over for key, one in findings.items() if one.over}
        for one in self._store.table.allocations:
            silent = undeclared_overuse(one, readings[one.id], measured) if one.id in readings else {}
            if silent:  # with processes without the library besides, what is known already counts both
                over[one.id] = {**silent, **over.get(one.id, {})}
        beyond = {
            key: found
            for key, reading in readings.items()
            if key not in over and (found := _beyond_limit(reading))
        }
        offences = [Offence(key, Kind.UNHOOKED) for key in findings]
        offences += [Offence(key, Kind.OVER, sum(found.values())) for key, found in over.items()]
        offences += [Offence(key, Kind.LIMIT, sum(found.values())) for key, found in beyond.items()]
        offences += [
            Offence(key, Kind.GROWTH, reading.grew) for key, reading in readings.items() if reading.grew
        ]
        now = self._now()
        self._watches, fresh = follow(self._watches, offences, now)
        for offence in fresh:
            if offence.kind is Kind.UNHOOKED:
                self._say_unhooked(findings[offence.allocation])
            elif offence.kind is Kind.OVER:
                self._say_over(
                    offence.allocation,
                    over[offence.allocation],
                    with_library=offence.allocation not in findings,
                )
            elif offence.kind is Kind.GROWTH:
                self._say_growth(offence)
            else:
                self._say_beyond(offence.allocation, beyond[offence.allocation])
        for offence in due(self._policy, self._watches, offences, now):
            allocation = self._store.table.find(offence.allocation)
            if allocation is not None:
                self._evict(allocation, offence)

    def _say_unhooked(self, finding: Finding) -> None:
        text = finding.text(units.format_bytes)
        self._log.warning("process without the library", allocation=finding.allocation.id,
                          container=finding.allocation.name, detail=text)  # fmt: skip
        self._event(
            finding.allocation,
            "Warning",
            "ProcessWithoutLibrary",
            f"{text} without the library (a static program, musl, or an environment that keeps it out); it counts "
            "against the container's quota, and nothing limits it",
        )

    def _say_over(self, allocation_id: str, over: Mapping[str, int], *, with_library: bool) -> None:
        allocation = self._store.table.find(allocation_id)
        if allocation is None:
            return
        text = _amounts(over)
        self._log.error("container exceeds its quota", allocation=allocation.id, container=allocation.name,
                        over=text, policy=self._policy.mode)  # fmt: skip
        why = (
            ", taken by a part of its programs that passes the library by (a plug-in opened with dlmopen or "
            "RTLD_DEEPBIND)"
            if with_library
            else ""
        )
        ends = self._threat(Kind.OVER, over) or "its neighbours may run out of memory"
        self._event(allocation, "Warning", "GPUMemoryOveruse", f"holds {text} beyond its quota{why}; {ends}")

    def _say_beyond(self, allocation_id: str, beyond: Mapping[str, int]) -> None:
        allocation = self._store.table.find(allocation_id)
        if allocation is None:
            return
        text = _amounts(beyond)
        self._log.warning("container exceeds its current limit", allocation=allocation.id,
                          container=allocation.name, over=text, policy=self._policy.mode)  # fmt: skip
        ends = self._threat(Kind.LIMIT, beyond) or "nothing is ended"
        self._event(
            allocation,
            "Warning",
            "GPULimitExceeded",
            f"holds {text} beyond its limit, which was lowered or is passed by memory that no call declares; its "
            f"programs get no more until they have freed as much; {ends}",
        )

    def _say_growth(self, offence: Offence) -> None:
        allocation = self._store.table.find(offence.allocation)
        if allocation is None:
            return
        size = units.format_bytes(offence.bytes_over)
        ends = self._threat(Kind.GROWTH, {"": offence.bytes_over}) or "nothing is ended"
        self._event(
            allocation,
            "Warning",
            "LedgerTruncated",
            f"makes its ledger grow on the node's disk again and again, by up to {size}; it is cut back each time; "
            f"{ends}",
        )

    def _threat(self, kind: Kind, over: Mapping[str, int]) -> str:
        policy = self._policy
        if not policy.evicts(kind) or sum(over.values()) <= policy.above:
            return ""
        would = "is" if policy.mode == "evict" else "would be (dry run)"
        return f"the pod {would} evicted if that lasts {policy.grace:g} seconds more"

    def _report_silent(self, allocations: tuple[Allocation, ...], readings: Mapping[str, Reading]) -> None:
        """Says once of each container that it has held slices for long and no process has attached."""
        now = self._now()
        self._first_seen = {
            allocation.id: self._first_seen.get(allocation.id, now) for allocation in allocations
        }
        self._silent &= self._first_seen.keys()
        for allocation in allocations:
            reading = readings.get(allocation.id)
            if (
                reading is None
                or allocation.id in self._silent
                or allocation.container is None
                or allocation.waiting
                or allocation.whole
                or allocation.gone
                or reading.attached
                or reading.problem
                or now - self._first_seen[allocation.id] < _NOT_ATTACHED_SECONDS
            ):
                continue
            self._silent.add(allocation.id)
            minutes = round(_NOT_ATTACHED_SECONDS / 60)
            self._log.info(
                "container has not attached",
                allocation=allocation.id,
                container=allocation.name,
                minutes=minutes,
            )
            self._event(
                allocation,
                "Normal",
                "LibraryNotAttached",
                f"holds {units.format_bytes(sum(allocation.quota().values()))} of GPU memory, and no program has used "
                f"CUDA under the library for {minutes} minutes: none has begun yet, or the library cannot be loaded "
                "(static programs, musl)",
            )

    def _evict(self, allocation: Allocation, offence: Offence) -> None:
        pod = self._pod(allocation)
        now = self._now()
        if pod is None:
            if allocation.id not in self._asked:
                self._asked[allocation.id] = now
                self._log.warning("pod not evicted", container=allocation.name, detail="the pod is not known")
            return
        if pod.ending or now - self._asked.get(pod.uid, now - _EVICT_AGAIN) < _EVICT_AGAIN:
            return
        self._asked[pod.uid] = now
        if self._policy.mode == "evict":
            size = units.format_bytes(offence.bytes_over)
            what = (
                f"has made its ledger grow by {size}"
                if offence.kind is Kind.GROWTH
                else f"holds {size} more than it may"
            )
            text = f"evicted: {what} for {self._policy.grace:g} seconds"
            self._event(allocation, "Warning", "EvictionPending", text)
        task = asyncio.get_running_loop().create_task(self._have_evicted(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _have_evicted(self, pod: Pod) -> None:
        trial = self._policy.mode == "dry-run"
        eviction = await self._cluster.evict(pod, dry_run=trial)
        if eviction.problem:
            if self._refusals.get(pod.uid) != eviction.problem:  # it is asked again for as long as it lasts
                self._refusals[pod.uid] = eviction.problem
                self._log.warning("pod not evicted", pod=str(pod), detail=eviction.problem)
            return
        self._refusals.pop(pod.uid, None)
        if eviction.gone:
            self._log.info("pod to be evicted is gone", pod=str(pod))
        elif trial:
            self._asked[pod.uid] = float("inf")  # said once
            self._log.warning("pod would be evicted for overuse", pod=str(pod), detail="--overuse=dry-run")
        else:
            self._counters.evictions += 1
            self._log.warning("pod evicted for overuse", pod=str(pod))

    def _pod(self, allocation: Allocation) -> Pod | None:
        return self._cluster.pod(allocation.ref.namespace, allocation.ref.pod) if allocation.ref else None

    def _event(self, allocation: Allocation, kind: str, reason: str, text: str) -> None:
        pod = self._pod(allocation)
        if pod is not None and allocation.ref is not None:
            self._cluster.event(pod, kind, reason, text, allocation.ref.container)


def _beyond_limit(reading: Reading) -> dict[str, int]:
    """Bytes that the container's own processes hold beyond what its page says, by GPU."""
    if reading.problem is not None or not reading.living:
        return {}
    over = {gpu: count - reading.limits[gpu] for gpu, count in reading.used.items() if gpu in reading.limits}
    return {gpu: count for gpu, count in over.items() if count > 0}


def _amounts(over: Mapping[str, int]) -> str:
    return ", ".join(f"{units.format_bytes(count)} of {gpu}" for gpu, count in over.items())
