"""Finds what uses the cards without the library, says so, counts it, and by policy ends it.

Runs with every measuring round: looks at the processes that NVML shows and no ledger knows, tells the measurer what
they hold in each container, and speaks up about what lasts longer than a moment. A process that has just begun or is
about to end is no news: what is found must be there in several rounds in a row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from agent import units
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

_ROUNDS = 3  # in a row until something is said
_EVICT_AGAIN = 60.0
_NOT_ATTACHED_SECONDS = 600.0  # from the grant, or from this agent's start


class Auditor:
    """Audits the containers of STORE. POLICY: "report" or "evict". NOW gives Unix time in seconds."""

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        policy: str,
        counters: Counters,
        *,
        now: Callable[[], float] = time.time,
        proc: Path = PROC,
    ) -> None:
        self.survey = Survey({}, {}, ())
        self._store = store
        self._cluster = cluster
        self._policy = policy
        self._counters = counters
        self._now = now
        self._proc = proc
        self._started = now()
        self._rounds: dict[tuple[str, str], int] = {}
        self._silent: set[str] = set()
        self._asked: dict[str, float] = {}
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
        self._report(self.survey)
        self._report_silent(grants, readings)
        return self.survey.strangers

    def _report(self, survey: Survey) -> None:
        lasting = {("unhooked", one.grant.id): one for one in survey.findings}
        lasting |= {("over", one.grant.id): one for one in survey.findings if one.over}
        self._rounds = {key: self._rounds.get(key, 0) + 1 for key in lasting}
        for key, finding in lasting.items():
            kind, rounds = key[0], self._rounds[key]
            if rounds == _ROUNDS:
                (self._say_unhooked if kind == "unhooked" else self._say_over)(finding)
            if kind == "over" and rounds >= _ROUNDS and self._policy == "evict":
                self._evict(finding)

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
        text = ", ".join(f"{units.format_bytes(count)} of {gpu}" for gpu, count in finding.over.items())
        self._log.error("container uses more than it may", allocation=finding.grant.id,
                        container=finding.grant.name, over=text, policy=self._policy)  # fmt: skip
        ends = "the pod is evicted" if self._policy == "evict" else "its neighbours may run out of memory"
        self._event(finding.grant, "Warning", "GigasliceOveruse", f"holds {text} beyond its quota; {ends}")

    def _report_silent(self, grants: tuple[Grant, ...], readings: Mapping[str, Reading]) -> None:
        """Says once of each container that it has held slices for long and no process has attached."""
        known = {grant.id for grant in grants}
        self._silent &= known
        for grant in grants:
            reading = readings.get(grant.id)
            since = max(grant.created, self._started)
            if (
                reading is None
                or grant.id in self._silent
                or grant.container is None
                or grant.waiting
                or grant.whole
                or grant.gone
                or reading.attached
                or reading.problem
                or self._now() - since < _NOT_ATTACHED_SECONDS
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

    def _evict(self, finding: Finding) -> None:
        pod = self._pod(finding.grant)
        now = self._now()
        if pod is None:
            if finding.grant.id not in self._asked:
                self._asked[finding.grant.id] = now
                self._log.warning(
                    "pod not evicted", container=finding.grant.name, detail="the pod is not known"
                )
            return
        if pod.ending or now - self._asked.get(pod.uid, -_EVICT_AGAIN) < _EVICT_AGAIN:
            return
        self._asked[pod.uid] = now
        task = asyncio.get_running_loop().create_task(self._have_evicted(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _have_evicted(self, pod: Pod) -> None:
        refusal = await self._cluster.evict(pod)
        if refusal is None:
            self._counters.evictions += 1
            self._log.warning("pod evicted for overuse", pod=str(pod))
        else:
            self._log.warning("pod not evicted", pod=str(pod), detail=refusal)

    def _pod(self, grant: Grant) -> Pod | None:
        return self._cluster.pod(grant.ref.namespace, grant.ref.pod) if grant.ref else None

    def _event(self, grant: Grant, kind: str, reason: str, text: str) -> None:
        pod = self._pod(grant)
        if pod is not None and grant.ref is not None:
            self._cluster.event(pod, kind, reason, text, grant.ref.container)
