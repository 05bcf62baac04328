"""Finds what uses the cards without the library or beyond its limit, says so, counts it, and by policy ends it.

Runs with every measuring round: looks at the processes that NVML shows and no ledger knows, tells the measurer what
they hold in each container, and speaks up about what lasts longer than a moment. What is said when, and what ends a
pod, is decided in `policy`; a pod ends through the API server's evictions alone, which disruption budgets can forbid,
and never without an event before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from agent import units
from agent.audit.policy import Kind, Offence, Policy, Watches, due, follow
from agent.audit.processes import PROC, Sighting, sight
from agent.audit.rules import Finding, Survey, examine
from agent.kube import Cluster
from agent.model import Pod
from agent.state.ledgers import Reading
from agent.state.records import Grant
from agent.state.store import Store
from agent.telemetry.counters import Counters
from agent.telemetry.logs import get_logger

__all__ = ["Auditor"]

_EVICT_AGAIN = 60.0
_NOT_ATTACHED_SECONDS = 600.0  # from this process's first sight of the grant


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
        self._log = get_logger("audit")

    def look(self, measured: Mapping[str, Mapping[int, int]]) -> tuple[Sighting, ...]:
        """Looks at every process that was MEASURED. Reads files; for the thread that has measured."""
        pids = {pid for processes in measured.values() for pid in processes if pid > 0}
        return tuple(seen for pid in sorted(pids) if (seen := sight(pid, self._proc)))

    def judge(
        self,
        measured: Mapping[str, Mapping[int, int]],
        sightings: tuple[Sighting, ...],
        owners: Mapping[int, str],
        readings: Mapping[str, Reading],
    ) -> Mapping[str, Mapping[str, int]]:
        """What processes without the library hold, by grant id and GPU. OWNERS: grant ids by PID of all others."""
        grants = self._store.book.grants
        pods = {pod.uid: name for name, pod in self._cluster.pods.items()}
        limits = {key: reading.limits for key, reading in readings.items()}
        self.survey = examine(measured, owners, sightings, grants, pods, limits=limits)
        self._weigh(self.survey, readings)
        self._report_silent(grants, readings)
        return self.survey.strangers

    def _weigh(self, survey: Survey, readings: Mapping[str, Reading]) -> None:
        """Speaks of what lasts, and has evicted what lasts too long."""
        findings = {one.grant.id: one for one in survey.findings}
        beyond = {key: found for key, reading in readings.items() if (found := _beyond_limit(reading))}
        offences = [Offence(key, Kind.UNHOOKED) for key in findings]
        offences += [
            Offence(key, Kind.OVER, sum(one.over.values())) for key, one in findings.items() if one.over
        ]
        offences += [Offence(key, Kind.LIMIT, sum(found.values())) for key, found in beyond.items()]
        now = self._now()
        self._watches, fresh = follow(self._watches, offences, now)
        for offence in fresh:
            if offence.kind is Kind.UNHOOKED:
                self._say_unhooked(findings[offence.grant])
            elif offence.kind is Kind.OVER:
                self._say_over(findings[offence.grant])
            else:
                self._say_beyond(offence.grant, beyond[offence.grant])
        for offence in due(self._policy, self._watches, offences, now):
            grant = self._store.book.find(offence.grant)
            if grant is not None:
                self._evict(grant, offence.excess)

    def _say_unhooked(self, finding: Finding) -> None:
        text = finding.text(units.format_bytes)
        self._log.warning("process without the library", allocation=finding.grant.id,
                          container=finding.grant.name, detail=text)  # fmt: skip
        self._event(
            finding.grant,
            "Warning",
            "GigasliceUnhooked",
            f"{text} without the library (a static program, musl, or an environment that keeps it out); it counts "
            "against the container's quota, and nothing limits it",
        )

    def _say_over(self, finding: Finding) -> None:
        text = _amounts(finding.over)
        self._log.error("container uses more than it may", allocation=finding.grant.id,
                        container=finding.grant.name, over=text, policy=self._policy.mode)  # fmt: skip
        ends = self._threat(Kind.OVER, finding.over) or "its neighbours may run out of memory"
        self._event(finding.grant, "Warning", "GigasliceOveruse", f"holds {text} beyond its quota; {ends}")

    def _say_beyond(self, grant_id: str, beyond: Mapping[str, int]) -> None:
        grant = self._store.book.find(grant_id)
        if grant is None:
            return
        text = _amounts(beyond)
        self._log.warning("container holds more than its limit of now", allocation=grant.id,
                          container=grant.name, over=text, policy=self._policy.mode)  # fmt: skip
        ends = self._threat(Kind.LIMIT, beyond) or "nothing is ended"
        self._event(
            grant,
            "Warning",
            "GigasliceOverLimit",
            f"holds {text} beyond its limit, which was lowered or is passed by memory that no call declares; its "
            f"programs get no more until they have freed as much; {ends}",
        )

    def _threat(self, kind: Kind, over: Mapping[str, int]) -> str:
        policy = self._policy
        if not policy.evicts(kind) or sum(over.values()) <= policy.above:
            return ""
        would = "is" if policy.mode == "evict" else "would be (dry run)"
        return f"the pod {would} evicted if that lasts {policy.grace:g} seconds more"

    def _report_silent(self, grants: tuple[Grant, ...], readings: Mapping[str, Reading]) -> None:
        """Says once of each container that it has held slices for long and no process has attached."""
        now = self._now()
        self._first_seen = {grant.id: self._first_seen.get(grant.id, now) for grant in grants}
        self._silent &= self._first_seen.keys()
        for grant in grants:
            reading = readings.get(grant.id)
            if (
                reading is None
                or grant.id in self._silent
                or grant.container is None
                or grant.waiting
                or grant.whole
                or grant.gone
                or reading.attached
                or reading.problem
                or now - self._first_seen[grant.id] < _NOT_ATTACHED_SECONDS
            ):
                continue
            self._silent.add(grant.id)
            minutes = round(_NOT_ATTACHED_SECONDS / 60)
            self._log.info(
                "container has not attached", allocation=grant.id, container=grant.name, minutes=minutes
            )
            self._event(
                grant,
                "Normal",
                "GigasliceNotAttached",
                f"holds {units.format_bytes(sum(grant.quota().values()))} of GPU memory, and no program has used CUDA "
                f"under the library for {minutes} minutes: none has begun yet, or the library cannot be loaded "
                "(static programs, musl)",
            )

    def _evict(self, grant: Grant, excess: int) -> None:
        pod = self._pod(grant)
        now = self._now()
        if pod is None:
            if grant.id not in self._asked:
                self._asked[grant.id] = now
                self._log.warning("pod not evicted", container=grant.name, detail="the pod is not known")
            return
        if pod.ending or now - self._asked.get(pod.uid, now - _EVICT_AGAIN) < _EVICT_AGAIN:
            return
        self._asked[pod.uid] = now
        if self._policy.mode == "evict":
            size = units.format_bytes(excess)
            text = f"evicted: holds {size} more than it may for {self._policy.grace:g} seconds"
            self._event(grant, "Warning", "GigasliceEvicting", text)
        task = asyncio.get_running_loop().create_task(self._have_evicted(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _have_evicted(self, pod: Pod) -> None:
        trial = self._policy.mode == "dry-run"
        refusal = await self._cluster.evict(pod, dry_run=trial)
        if refusal is not None:
            if self._refusals.get(pod.uid) != refusal:  # it is asked again for as long as it lasts
                self._refusals[pod.uid] = refusal
                self._log.warning("pod not evicted", pod=str(pod), detail=refusal)
            return
        self._refusals.pop(pod.uid, None)
        if trial:
            self._asked[pod.uid] = float("inf")  # said once
            self._log.warning("pod would be evicted for overuse", pod=str(pod), detail="--overuse=dry-run")
        else:
            self._counters.evictions += 1
            self._log.warning("pod evicted for overuse", pod=str(pod))

    def _pod(self, grant: Grant) -> Pod | None:
        return self._cluster.pod(grant.ref.namespace, grant.ref.pod) if grant.ref else None

    def _event(self, grant: Grant, kind: str, reason: str, text: str) -> None:
        pod = self._pod(grant)
        if pod is not None and grant.ref is not None:
            self._cluster.event(pod, kind, reason, text, grant.ref.container)


def _beyond_limit(reading: Reading) -> dict[str, int]:
    """Bytes that the container's own processes hold beyond what its page says, by GPU."""
    if reading.problem is not None or not reading.pids:
        return {}
    over = {gpu: count - reading.limits[gpu] for gpu, count in reading.used.items() if gpu in reading.limits}
    return {gpu: count for gpu, count in over.items() if count > 0}


def _amounts(over: Mapping[str, int]) -> str:
    return ", ".join(f"{units.format_bytes(count)} of {gpu}" for gpu, count in over.items())
