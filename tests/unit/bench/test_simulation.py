# SPDX-License-Identifier: Apache-2.0
"""The simulation's own rules, for every policy: all jobs run, no GPU is given twice, equal seeds give equal figures."""

from __future__ import annotations

import pytest

from tests.bench import simulation
from tests.bench.simulation_policies import Chosen, Scheduler
from tests.bench.simulation_traces import TRACES, Job, trace


class Watched:
    """Counts what a scheduler gives out, by GPU, on its own."""

    def __init__(self, scheduler: Scheduler, sizes: dict[tuple[str, int], int]) -> None:
        self.inner, self.left = scheduler, dict(sizes)
        self.running: set[int] = set()

    def _take(self, job: Job, chosen: Chosen) -> None:
        node, gpus = chosen
        assert len(set(gpus)) == job.gpus
        self.running.add(job.number)
        for gpu in gpus:
            self.left[node, gpu] -= job.slices
            assert self.left[node, gpu] >= 0

    def start(self, job: Job) -> Chosen | None:
        chosen = self.inner.start(job)
        if chosen is not None and chosen[1]:
            self._take(job, chosen)
        return chosen

    def end(self, job: Job, chosen: Chosen):
        for gpu in chosen[1]:
            self.left[chosen[0], gpu] += job.slices
        self.running.remove(job.number)
        for one, where in self.inner.end(job, chosen):
            self._take(one, where)
            yield one, where

    def stuck(self) -> int:
        return self.inner.stuck()


@pytest.mark.parametrize("policy", simulation.POLICIES)
@pytest.mark.parametrize("name", ["gaia", "6+6"])
def test_every_job_runs_and_no_gpu_is_given_twice(name: str, policy: str) -> None:
    one = trace(name, jobs=80, load=2.0)
    sizes = {(node, gpu.index): gpu.slices for node, state in one.nodes.items() for gpu in state.gpus}
    watched = Watched(simulation.POLICIES[policy](one.nodes), sizes)
    run = simulation._Run(one, watched)
    figures = run.go()
    assert watched.left == sizes
    assert not watched.running
    assert sorted(gpus for gpus, _ in run.waits) == sorted(job.gpus for job in one.jobs)
    assert 0 < figures.utilisation <= 1
    assert figures == simulation.simulate(trace(name, jobs=80, load=2.0), policy)


def test_sums_mislead() -> None:
    """Six and six GiB are free, and eight are asked for: a scheduler that counts by node binds the job all the same."""
    one = trace("6+6", jobs=300, load=1.0)
    assert simulation.simulate(one, "best fit by node sums").stuck > 0
    assert simulation.simulate(one, "gigaslice").stuck == 0


def test_traces_are_drawn_by_their_seed() -> None:
    for name in TRACES:
        assert trace(name, 1, 50) == trace(name, 1, 50)
        assert trace(name, 1, 50).jobs != trace(name, 2, 50).jobs
