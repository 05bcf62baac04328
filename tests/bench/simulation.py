# SPDX-License-Identifier: Apache-2.0
"""Gaia's choice of node and GPUs against others', on simulated clusters: a table for docs/simulation.md.

A discrete-event simulation: jobs arrive, start or wait, run and end. Waiting jobs are tried again whenever one has
ended, the oldest first, and none holds back those behind it, as in kube-scheduler. Equal seeds give equal tables.

    python -m tests.bench.simulation [--jobs N] [--seeds N] [--traces philly,pai] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import heapq
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from gigaslice.core.model import LinkLevel, NodeState
from tests.bench.simulation_policies import Chosen, FirstFit, Gigaslice, Hami, NodeSums, Scheduler
from tests.bench.simulation_traces import TRACES, Job, Trace, trace
from tests.steps import each

POLICIES: dict[str, Callable[[dict[str, NodeState]], Scheduler]] = {
    "gigaslice": Gigaslice,
    "first fit": FirstFit,
    "best fit by node sums": NodeSums,
    "HAMi binpack": lambda nodes: Hami(nodes, pack=True),
    "HAMi spread": lambda nodes: Hami(nodes, pack=False),
}
RUNS = (*((name, 0.0) for name in TRACES), ("philly", 0.5))
"""Traces, and how much longer a job of several GPUs runs over the farthest links."""
STEADY, QUEUE = 0.92, 4.0
"""What the jobs ask for while they arrive, as a part of what there is."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What came out of one run. utilisation: of all slices while jobs arrive. link: mean of the worst link level of
    jobs with several GPUs, 0 for NVLink to 50 for the link between sockets. blocked: jobs that waited though some node
    had as much memory free, in sum, as they asked for. stuck: jobs that waited on a node for a GPU of it.
    """

    utilisation: float
    makespan: float
    wait: float
    wait_large: float
    link: float
    blocked: int
    stuck: int


@dataclass(slots=True)
class _Run:
    trace: Trace
    scheduler: Scheduler
    ends: list[tuple[float, int, Job, Chosen]] = field(default_factory=list)
    waits: list[tuple[int, float]] = field(default_factory=list)
    links: list[int] = field(default_factory=list)
    busy: float = 0.0
    held: int = 0
    now: float = 0.0
    until: float = 0.0

    def go(self) -> Figures:
        self.until = max(job.arrival for job in self.trace.jobs)
        waiting: list[Job] = []
        blocked = 0
        for job in self.trace.jobs:
            self._end(job.arrival, waiting)
            self._pass(job.arrival)
            if not self._try(job):
                blocked += self._room(job)
                waiting.append(job)
        self._end(float("inf"), waiting)
        if waiting or self.held:
            raise AssertionError(f"{len(waiting)} jobs never started, {self.held} slices never came back")
        large = [wait for gpus, wait in self.waits if gpus > 1]
        return Figures(
            self.busy / (self.trace.capacity * self.until),
            self.now,
            statistics.fmean(wait for _, wait in self.waits),
            statistics.fmean(large) if large else 0.0,
            statistics.fmean(self.links) if self.links else 0.0,
            blocked,
            self.scheduler.stuck(),
        )

    def _pass(self, time: float) -> None:
        self.busy += self.held * max(0.0, min(time, self.until) - min(self.now, self.until))
        self.now = time

    def _end(self, time: float, waiting: list[Job]) -> None:
        while self.ends and self.ends[0][0] <= time:
            at, _, job, chosen = heapq.heappop(self.ends)
            self._pass(at)
            self.held -= job.gpus * job.slices
            for one, where in self.scheduler.end(job, chosen):
                self._run(one, where)
            hopeless: set[tuple[int, int]] = set()  # what has not fitted since the last end does not fit now
            for one in list(waiting):
                shape = (one.gpus, one.slices)
                if shape not in hopeless:
                    if self._try(one):
                        waiting.remove(one)
                    else:
                        hopeless.add(shape)

    def _try(self, job: Job) -> bool:
        chosen = self.scheduler.start(job)
        if chosen is None:
            return False
        if chosen[1]:
            self._run(job, chosen)
        return True

    def _run(self, job: Job, chosen: Chosen) -> None:
        seconds = job.seconds
        if job.gpus > 1:
            worst = worst_link(self.trace.nodes[chosen[0]], chosen[1])
            self.links.append(worst)
            seconds *= 1 + self.trace.sensitive * worst / LinkLevel.SYSTEM
        self.held += job.gpus * job.slices
        self.waits.append((job.gpus, self.now - job.arrival))
        heapq.heappush(self.ends, (self.now + seconds, job.number, job, chosen))

    def _room(self, job: Job) -> bool:
        used: dict[str, int] = {}
        for *_, one, (node, _) in self.ends:
            used[node] = used.get(node, 0) + one.gpus * one.slices
        return any(
            sum(gpu.slices for gpu in state.gpus) - used.get(name, 0) >= job.gpus * job.slices
            for name, state in self.trace.nodes.items()
        )


def worst_link(state: NodeState, gpus: Iterable[int]) -> int:
    """The level of the farthest pair; a pair with NVLink counts 0."""
    topology = state.topology
    return max(0 if topology.nvlinks[i][j] else int(topology.levels[i][j]) for i, j in combinations(gpus, 2))


def simulate(one: Trace, policy: str) -> Figures:
    """Runs a trace under a policy of `POLICIES`."""
    return _Run(one, POLICIES[policy](one.nodes)).go()


def table(seeds: int, jobs: int, runs: Iterable[tuple[str, float]] = RUNS) -> str:
    """The means over the seeds, as a table of Markdown. Each trace runs twice: in its time, and as one long queue."""
    lines = [
        "| trace | policy | used | wait s | of several GPUs s | worst link | blocked | stuck | queue's makespan h |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = [(name, sensitive, policy) for name, sensitive in runs for policy in POLICIES]
    for name, sensitive, policy in each(rows, lambda row: f"{row[0]} under {row[2]}"):
        steady, queue = (
            [simulate(trace(name, seed, jobs, load, sensitive), policy) for seed in range(1, seeds + 1)]
            for load in (STEADY, QUEUE)
        )
        cells = [
            f"{name}, links matter" if sensitive else name,
            policy,
            f"{statistics.fmean(one.utilisation for one in steady):.1%}",
            f"{statistics.fmean(one.wait for one in steady):.0f}",
            f"{statistics.fmean(one.wait_large for one in steady):.0f}",
            f"{statistics.fmean(one.link for one in steady):.1f}",
            f"{statistics.fmean(one.blocked for one in steady):.0f}",
            f"{statistics.fmean(one.stuck for one in steady):.0f}",
            f"{statistics.fmean(one.makespan for one in queue) / 3600:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the table, or writes it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--traces", default="")
    parser.add_argument("--markdown", type=Path)
    known = parser.parse_args()
    names = known.traces.split(",") if known.traces else None
    runs = [run for run in RUNS if names is None or run[0] in names]
    text = table(known.seeds, known.jobs, runs)
    if known.markdown:
        known.markdown.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
