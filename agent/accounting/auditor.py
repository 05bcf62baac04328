# SPDX-License-Identifier: Apache-2.0
"""Finds containers that use GPUs without the library or beyond their limit; reports, counts and by policy evicts them.

It runs with every round of the memory monitor: it attributes the processes that NVML shows and no ledger has, returns
what they hold in each container, and reports what lasts longer than a moment. `overuse` decides what is reported when,
and what evicts a pod. A pod ends only through the API server's evictions, which disruption budgets can forbid, and
never without an event before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from agent.accounting.attribution import (
    LibraryBypass,
    Survey,
    credible_owners,
    examine,
    undeclared_overuse,
)
from agent.accounting.overuse import Histories, Offence, OffenceKind, OverusePolicy, due, track
from agent.accounting.presence import own_pod
from agent.accounting.processes import PROC, ProcessInfo, read_process
from agent.apiserver import Cluster
from agent.apiserver.consumer_pods import ConsumerPods
from agent.ledgers.usage import Reading
from agent.persistence.store import Store
from agent.telemetry.counters import Counters
from gigaslice.core import units
from gigaslice.core.allocation.consumer import labels_of
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.model import Pod
from gigaslice.runtime.logs import get_logger

__all__ = ["Auditor"]

_EVICT_AGAIN = 60.0
_NOT_ATTACHED_SECONDS = 600.0  # since this agent first saw the allocation


class Auditor:
    """Audits the containers of a node."""

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        policy: OverusePolicy,
        counters: Counters,
        *,
        now: Callable[[], float] = time.monotonic,
        proc: Path = PROC,
        driver_used: Callable[[Allocation, str], int | None] = lambda allocation, gpu: None,
    ) -> None:
        """Initializes the auditor.

        Args:
            store: The allocation table.
            cluster: The pods of this node.
            policy: What evicts.
            counters: Where evictions and totals are counted.
            now: A monotonic clock.
            proc: Where processes are looked up.
            driver_used: Returns the bytes of a GPU that the driver counts for an allocation; None where it does not.
        """
        self.survey = Survey({}, {}, ())
        self._store = store
        self._cluster = cluster
        self._consumer_pods = ConsumerPods(cluster)
        self._policy = policy
        self._counters = counters
        self._now = now
        self._proc = proc
        self._driver_used = driver_used
        self._histories: Histories = {}
        self._first_seen: dict[str, float] = {}
        self._not_attached: set[str] = set()
        self._evictions_requested: dict[str, float] = {}
        self._refusals: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._before = {allocation.id for allocation in store.table.allocations}  # and not counted yet
        self._log = get_logger("audit")

    def read_processes(
        self, measured: Mapping[str, Mapping[int, int]], claimed: Collection[int] = ()
    ) -> tuple[ProcessInfo, ...]:
        """Reads every process that was MEASURED or is CLAIMED by a ledger. Reads files; for the measuring thread.

        A process in the agent's own pod is in a node that is a pod itself, and in which of its containers is not known.
        """
        own = own_pod(self._proc)
        pids = {pid for by_pid in measured.values() for pid in by_pid if pid > 0} | {*claimed}
        processes = [process for pid in sorted(pids) if (process := read_process(pid, self._proc))]
        return tuple(
            replace(process, place=None) if process.place and process.place.uid == own else process
            for process in processes
        )

    def owners(
        self, claims: Mapping[int, Collection[str]], processes: tuple[ProcessInfo, ...]
    ) -> Mapping[int, str]:
        """Returns the allocation IDs of the processes that hold slots: see `attribution.credible_owners`."""
        return credible_owners(claims, processes, self._store.table.allocations, self._pods())

    def audit(
        self,
        measured: Mapping[str, Mapping[int, int]],
        processes: tuple[ProcessInfo, ...],
        owners: Mapping[int, str],
        readings: Mapping[str, Reading],
    ) -> Mapping[str, Mapping[str, int]]:
        """Reports and counts; returns what processes without the library hold, by allocation ID and GPU.

        OWNERS: allocation IDs by PID of all other processes.
        """
        allocations = self._store.table.allocations
        limits = {key: reading.limits for key, reading in readings.items()}
        self.survey = examine(measured, owners, processes, allocations, self._pods(), limits=limits)
        self._handle_overuse(self.survey, readings, measured)
        self._report_not_attached(allocations, readings)
        self._count(allocations, readings)
        return self.survey.without_library

    def _count(self, allocations: tuple[Allocation, ...], readings: Mapping[str, Reading]) -> None:
        """Adds up the containers' counters; a container whose name is unknown counts once it is known."""
        totals = self._counters.totals
        for allocation in allocations:
            reading = readings.get(allocation.id)
            if reading is None or reading.problem is not None or not allocation.consumers:
                continue
            labels = labels_of(allocation.origin)
            refused = {
                (process.slot, process.pid_inside, process.generation): process.refused
                for process in reading.processes
            }
            totals.note(
                "gigaslice_container_oom_errors_total",
                labels,
                allocation.id,
                refused,
                begin=allocation.id in self._before,
            )
            self._before.discard(allocation.id)
            for gpu, use in reading.shares.items():
                if reading.cores.get(gpu):
                    with_gpu = (gpu, *labels)
                    totals.note(
                        "gigaslice_container_compute_seconds_total", with_gpu, allocation.id, {"": use.spent}
                    )
                    totals.note(
                        "gigaslice_container_compute_throttled_seconds_total",
                        with_gpu,
                        allocation.id,
                        {"": use.throttled},
                    )
        totals.keep({allocation.id for allocation in allocations})

    def _pods(self) -> dict[str, tuple[str, str]]:
        return {pod.uid: name for name, pod in self._cluster.pods.items()}

    def _handle_overuse(
        self, survey: Survey, readings: Mapping[str, Reading], measured: Mapping[str, Mapping[int, int]]
    ) -> None:
        """Reports the overuse that lasts, and evicts the pods for which it lasts too long."""
        allocations = {allocation.id: allocation for allocation in self._store.table.allocations}
        readings = {key: reading for key, reading in readings.items() if key in allocations}
        bypasses = {bypass.allocation.id: bypass for bypass in survey.bypasses}
        over = {key: bypass.over for key, bypass in bypasses.items() if bypass.over}
        for key, reading in readings.items():
            if undeclared := undeclared_overuse(allocations[key], reading, measured):
                # Where the container has processes without the library too, `over` counts both already.
                over[key] = {**undeclared, **over.get(key, {})}
        over = {
            key: self._as_driver_counts(allocations[key], sizes, readings.get(key))
            for key, sizes in over.items()
        }
        beyond = {
            key: sizes
            for key, reading in readings.items()
            if key not in over and (sizes := _beyond_limit(reading))
        }
        offences = [Offence(key, OffenceKind.WITHOUT_LIBRARY) for key in bypasses]
        offences += [Offence(key, OffenceKind.OVER, sum(sizes.values())) for key, sizes in over.items()]
        offences += [Offence(key, OffenceKind.LIMIT, sum(sizes.values())) for key, sizes in beyond.items()]
        offences += [
            Offence(key, OffenceKind.GROWTH, reading.grew)
            for key, reading in readings.items()
            if reading.grew
        ]
        now = self._now()
        self._histories, fresh = track(self._histories, offences, now)
        for offence in fresh:
            key, allocation = offence.allocation, allocations[offence.allocation]
            if offence.kind is OffenceKind.WITHOUT_LIBRARY:
                self._report_bypass(bypasses[key])
            elif offence.kind is OffenceKind.OVER:
                self._report_over(allocation, offence, _amounts(over[key]), with_library=key not in bypasses)
            elif offence.kind is OffenceKind.GROWTH:
                self._report_growth(allocation, offence)
            else:
                self._report_beyond(allocation, offence, _amounts(beyond[key]))
        for offence in due(self._policy, self._histories, offences, now):
            self._evict(allocations[offence.allocation], offence)

    def _as_driver_counts(
        self, allocation: Allocation, over: Mapping[str, int], reading: Reading | None
    ) -> dict[str, int]:
        """Bytes OVER the limit by GPU, more where the driver counts more: NVML does not show every process.

        What was taken before the driver's limit was set is not in its count, so the larger number is the true one.
        """
        sizes = dict(over)
        for gpu, count in over.items():
            used = self._driver_used(allocation, gpu)
            limits = (reading.limits if reading is not None else None) or allocation.quota()
            if used is not None and gpu in limits:
                sizes[gpu] = max(count, used - limits[gpu])
        return sizes

    def _report_bypass(self, bypass: LibraryBypass) -> None:
        text = bypass.text()
        self._log.warning("process without the library", allocation=bypass.allocation.id,
                          container=bypass.allocation.name, detail=text)  # fmt: skip
        self._consumer_pods.event(
            bypass.allocation,
            "Warning",
            "ProcessWithoutLibrary",
            f"{text} without the library (a static program, musl, or an environment without it); it counts "
            "against the container's quota, and nothing limits it",
        )

    def _report_over(
        self, allocation: Allocation, offence: Offence, text: str, *, with_library: bool
    ) -> None:
        self._log.error("container exceeds its quota", allocation=allocation.id, container=allocation.name,
                        over=text, policy=self._policy.mode)  # fmt: skip
        why = (
            ", used by a part of its programs that bypasses the library (a plug-in opened with dlmopen or "
            "RTLD_DEEPBIND)"
            if with_library
            else ""
        )
        ends = self._consequence(offence) or "its neighbours may run out of memory"
        self._consumer_pods.event(
            allocation, "Warning", "GPUMemoryOveruse", f"holds {text} beyond its quota{why}; {ends}"
        )

    def _report_beyond(self, allocation: Allocation, offence: Offence, text: str) -> None:
        self._log.warning("container exceeds its current limit", allocation=allocation.id,
                          container=allocation.name, over=text, policy=self._policy.mode)  # fmt: skip
        ends = self._consequence(offence) or "no pod is evicted"
        self._consumer_pods.event(
            allocation,
            "Warning",
            "GPULimitExceeded",
            f"holds {text} beyond its limit: the limit was lowered, or the memory is undeclared; its "
            f"programs get no more until they have freed as much; {ends}",
        )

    def _report_growth(self, allocation: Allocation, offence: Offence) -> None:
        size = units.format_bytes(offence.bytes_over)
        ends = self._consequence(offence) or "no pod is evicted"
        self._consumer_pods.event(
            allocation,
            "Warning",
            "LedgerTruncated",
            f"keeps making its ledger grow on the node's disk, by up to {size}; the agent truncates it each time; "
            f"{ends}",
        )

    def _consequence(self, offence: Offence) -> str:
        policy = self._policy
        if not policy.evicts(offence.kind) or offence.bytes_over <= policy.above:
            return ""
        would = "is" if policy.mode == "evict" else "would be (dry run)"
        return f"the pod {would} evicted if that lasts {policy.grace:g} seconds more"

    def _report_not_attached(
        self, allocations: tuple[Allocation, ...], readings: Mapping[str, Reading]
    ) -> None:
        """Reports once each container that has held slices for long without an attached process."""
        now = self._now()
        self._first_seen = {
            allocation.id: self._first_seen.get(allocation.id, now) for allocation in allocations
        }
        self._not_attached &= self._first_seen.keys()
        for allocation in allocations:
            reading = readings.get(allocation.id)
            if (
                reading is None
                or allocation.id in self._not_attached
                or not any(consumer.confirmed for consumer in allocation.consumers)
                or allocation.waiting
                or allocation.whole
                or allocation.ended
                or reading.attached
                or reading.problem
                or now - self._first_seen[allocation.id] < _NOT_ATTACHED_SECONDS
            ):
                continue
            self._not_attached.add(allocation.id)
            minutes = round(_NOT_ATTACHED_SECONDS / 60)
            self._log.info(
                "container has not attached",
                allocation=allocation.id,
                container=allocation.name,
                minutes=minutes,
            )
            self._consumer_pods.event(
                allocation,
                "Normal",
                "LibraryNotAttached",
                f"holds {units.format_bytes(sum(allocation.quota().values()))} of GPU memory, and no program has used "
                f"CUDA under the library for {minutes} minutes: none has begun yet, or the library cannot be loaded "
                "(static programs, musl)",
            )

    def _evict(self, allocation: Allocation, offence: Offence) -> None:
        """Requests the eviction of the pods that use an allocation."""
        now = self._now()
        pods = {pod.uid: pod for _, pod in self._consumer_pods.of(allocation)}
        if not pods:
            if allocation.id not in self._evictions_requested:
                self._evictions_requested[allocation.id] = now
                self._log.warning("pod not evicted", container=allocation.name, detail="the pod is not known")
            return
        due_pods = [
            pod
            for uid, pod in pods.items()
            if not pod.ending and now - self._evictions_requested.get(uid, now - _EVICT_AGAIN) >= _EVICT_AGAIN
        ]
        if not due_pods:
            return
        if self._policy.mode == "evict":
            size = units.format_bytes(offence.bytes_over)
            what = (
                f"has made its ledger grow by {size}"
                if offence.kind is OffenceKind.GROWTH
                else f"holds {size} more than it may"
            )
            text = f"evicted: {what} for {self._policy.grace:g} seconds"
            self._consumer_pods.event(allocation, "Warning", "EvictionPending", text)
        for pod in due_pods:
            self._evictions_requested[pod.uid] = now
            task = asyncio.get_running_loop().create_task(self._request_eviction(pod))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _request_eviction(self, pod: Pod) -> None:
        dry_run = self._policy.mode == "dry-run"
        eviction = await self._cluster.evict(pod, dry_run=dry_run)
        if eviction.problem:
            if (
                self._refusals.get(pod.uid) != eviction.problem
            ):  # the eviction is requested again while it lasts
                self._refusals[pod.uid] = eviction.problem
                self._log.warning("pod not evicted", pod=str(pod), detail=eviction.problem)
            return
        self._refusals.pop(pod.uid, None)
        if eviction.gone:
            self._log.info("pod to be evicted is gone", pod=str(pod))
        elif dry_run:
            self._evictions_requested[pod.uid] = float("inf")  # reported once
            self._log.warning("pod would be evicted for overuse", pod=str(pod), detail="--overuse=dry-run")
        else:
            self._counters.evictions += 1
            self._log.warning("pod evicted for overuse", pod=str(pod))


def _beyond_limit(reading: Reading) -> dict[str, int]:
    """Bytes that the container's own processes hold beyond its page's limit, by GPU."""
    if reading.problem is not None or not reading.living:
        return {}
    over = {gpu: count - reading.limits[gpu] for gpu, count in reading.used.items() if gpu in reading.limits}
    return {gpu: count for gpu, count in over.items() if count > 0}


def _amounts(over: Mapping[str, int]) -> str:
    return ", ".join(f"{units.format_bytes(count)} of {gpu}" for gpu, count in over.items())
