# SPDX-License-Identifier: Apache-2.0
"""Time slices in simulated time: a GPU that moves pages, and containers with kernels to run."""

from __future__ import annotations

import itertools
import random

import pytest

from gigaslice.core.limits import time_slicing
from gigaslice.core.limits.time_slicing import TimeSlicer, TimeSliceSample
from tests.unit.gigaslice.core.limits.time_slicing_rounds import (
    GIB,
    PASS,
    Host,
    Job,
    SimulatedGpu,
    in_sequence,
    pair,
    total,
)


def test_twice_the_gpu_costs_little_more_than_one_after_the_other():
    alone, ours = in_sequence(pair(work=12000)), total(pair(work=12000), TimeSlicer())
    assert ours <= 1.15 * alone
    assert total(pair(work=100), None) > 5 * in_sequence(pair(work=100))


@pytest.mark.parametrize("gib", [9, 12, 16])
@pytest.mark.parametrize("kernel", [0.005, 0.02, 0.2])
def test_whatever_the_kernels_and_sets_are(gib, kernel):
    work = int(120 / kernel)
    alone, ours = in_sequence(pair(gib, work, kernel)), total(pair(gib, work, kernel), TimeSlicer())
    assert ours <= 1.15 * alone


@pytest.mark.parametrize("ahead", [1, 20])
@pytest.mark.parametrize("speed", [600, 100, 40, 10])
def test_whatever_the_bus_is(speed, ahead):
    """Pages that come within a pass, and pages that take seconds; queues that are long when it begins."""
    kernel = 0.01 if speed > 20 else 0.05
    gpu = SimulatedGpu(pair(kernel=kernel, work=10**9, ahead=ahead), speed=speed * GIB)
    gpu.run(240)  # what is queued in the beginning takes up to two minutes
    before = sum(job.done for job in gpu.jobs.values())
    gpu.run(300)
    done = sum(job.done for job in gpu.jobs.values()) - before
    assert done * kernel >= 300 / 1.15


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("late", [0.1, 0.5])
def test_a_host_that_is_late_costs_no_more(late, seed):
    """Passes and programs are delayed at random; the jobs one after the other suffer from it as well."""
    host = {"load": 0.002, "late": late, "seed": seed}
    alone = in_sequence(pair(work=6000, kernel=0.005), speed=200 * GIB, host=Host(**host))
    ours = total(pair(work=6000, kernel=0.005), TimeSlicer(), speed=200 * GIB, host=Host(**host))
    assert ours <= 1.15 * alone


def test_kernels_of_different_lengths():
    """What one does alone is not taken from its few short kernels."""
    lengths = [1.0] + [0.005] * 100
    jobs = {name: Job(16 * GIB, 0.5, lengths=itertools.cycle(lengths)) for name in "ab"}
    gpu = SimulatedGpu(jobs, speed=32 * GIB)
    gpu.run(400)
    served = sum(job.done for job in jobs.values()) / len(lengths) * sum(lengths)
    assert served >= 400 / 1.2


def test_queues_are_kept_short_before_there_are_time_slices():
    jobs = pair(work=10**9, ahead=50)
    gpu = SimulatedGpu(jobs)
    gpu.run(0.2)
    assert gpu.arbiter is not None and gpu.arbiter.mode == "together"
    assert gpu.decision.short == {"a", "b"} and not gpu.decision.held


def test_a_turn_begins_when_what_others_have_queued_is_done():
    jobs = pair(work=10**9, ahead=2)
    gpu = SimulatedGpu(jobs)
    gpu.run(60)
    before = gpu.decision
    while gpu.decision.holder == before.holder:
        gpu.run(PASS)
        if gpu.decision.holder is None and gpu.decision.held:
            assert gpu.decision.held == {"a", "b"}
            assert gpu.arbiter is not None and gpu.arbiter.urgent
    assert not jobs[next(iter(gpu.decision.held))].queued


def test_nobody_gains_by_saying_that_its_work_still_runs():
    """A container that says so without end costs the others a quarter of a second for each time slice, and no more."""
    jobs = pair(work=10**9)
    gpu = SimulatedGpu(jobs, speed=100 * GIB)
    honest = gpu.sighting

    def lie(name: str, job: Job) -> TimeSliceSample:
        one = honest(name, job)
        return (
            one if name == "b" else TimeSliceSample(one.progress, one.waiting, one.managed, True, one.alive)
        )

    gpu.sighting = lie  # type: ignore[method-assign]
    gpu.run(300)
    assert jobs["b"].done * 0.01 > 0.35 * 300
    assert jobs["b"].longest_wait < 2 * time_slicing.LONGEST + 5


def test_while_everything_fits_nothing_happens():
    arbiter = TimeSlicer()
    jobs = pair(8)
    ours = total(jobs, arbiter)
    assert ours == pytest.approx(total(pair(8), None), rel=1e-6)
    assert arbiter.changes == 0


def test_sets_that_are_allocated_and_not_used_are_given_no_turns_for_long():
    """What is allocated does not fit, what is used does: before long they compute together again."""
    jobs = pair(8, work=6000, said=16 * GIB)
    gpu = SimulatedGpu(jobs)
    gpu.run()
    assert gpu.time_slice_seconds < 0.3 * gpu.now
    assert max(job.finished or 1e9 for job in jobs.values()) <= 1.1 * total(pair(8, work=6000), None)


def test_time_slices_that_do_not_help_are_tried_ever_more_seldom():
    """Two that do as much together as one after the other, until the pauses grow no more."""
    arbiter, decision = TimeSlicer(), time_slicing.TimeSliceDecision()
    begins, mode, progress = [], "free", dict.fromkeys("ab", 0)
    for tenth in range(11_000):
        for name in progress:
            progress[name] += 0 if name in decision.held else 2 if decision.holder else 1
        samples = {
            name: TimeSliceSample(done, name in decision.held, 16 * GIB) for name, done in progress.items()
        }
        decision = arbiter.decide(tenth / 10, 16 * GIB, samples)
        if mode != arbiter.mode == "slicing":
            begins.append(tenth / 10)
        mode = arbiter.mode
    pauses = [later - earlier for earlier, later in itertools.pairwise(begins)]
    again, most = time_slicing.AGAIN, time_slicing.AGAIN_MOST
    assert pauses == pytest.approx([again, 2 * again, 4 * again, most, most], rel=0.1)


def test_one_that_was_not_watched_counts_for_nothing_together():
    """It came after the window, with kernels of a second: the others do as well together as they did before."""
    gpu = SimulatedGpu(pair(5, work=10**9, said=16 * GIB))
    assert gpu.arbiter is not None
    gpu.run(20)
    while gpu.arbiter.mode != "slicing":
        gpu.run(PASS)
    gpu.jobs["c"] = Job(5 * GIB, 1.0, said=16 * GIB)
    changes = gpu.arbiter.changes
    while gpu.arbiter.mode == "slicing" and gpu.now < 200:
        gpu.run(PASS)
    assert gpu.arbiter.changes - changes <= 3, "one round tells it"


def test_where_the_first_window_was_slow_no_second_one_is_watched():
    """What it was worth is known when the first round has told what each does alone: another one would cost seconds."""
    gpu = SimulatedGpu(pair(work=10**9), speed=200 * GIB)
    assert gpu.arbiter is not None
    while gpu.arbiter.mode != "slicing":
        gpu.run(PASS)
    while gpu.now < time_slicing.SOON:
        gpu.run(PASS)
        assert gpu.arbiter.mode == "slicing", gpu.now


def test_where_the_driver_says_that_no_pages_move_no_turn_is_tried():
    jobs = pair(8, work=6000, said=16 * GIB)
    gpu = SimulatedGpu(jobs, counted=True)
    gpu.run()
    assert gpu.arbiter is not None and gpu.arbiter.changes == 0
    assert total(jobs, None) <= total(pair(8, work=6000), None) * 1.01


@pytest.mark.parametrize("speed", [200, 20])
def test_where_the_driver_says_that_pages_move_turns_are_as_without(speed):
    found = []
    for counted in (False, True):
        gpu = SimulatedGpu(pair(work=3000), speed=speed * GIB, counted=counted)
        gpu.run()
        found.append(gpu.now)
    assert found[1] == pytest.approx(found[0], rel=0.02)


def test_a_count_that_begins_anew_says_nothing():
    """The last process went, and another one came: the driver's numbers are small again."""
    arbiter, now = TimeSlicer(), 0.0
    for step in range(60):
        now += PASS
        seen = {name: TimeSliceSample(step, False, 16 * GIB, busy=True) for name in "ab"}
        arbiter.decide(now, 16 * GIB, seen, 10 * GIB if step % 10 < 5 else 0)
    assert arbiter.mode == "slicing"


def test_three_of_them_get_equal_parts():
    jobs = {name: Job(12 * GIB) for name in "abc"}
    SimulatedGpu(jobs).run(3000)
    done = [job.done for job in jobs.values()]
    assert max(done) < 1.3 * min(done)
    assert sum(done) * 0.01 > 0.85 * 3000


@pytest.mark.parametrize("end", ["killed", "stopped", "asleep"])
def test_a_holder_that_does_nothing_loses_its_turn_at_once(end):
    jobs = pair(work=10**9)
    gpu = SimulatedGpu(jobs)
    gpu.run(60)
    for _ in range(10000):
        gpu.run(PASS)
        if gpu.decision.holder == "a":
            break
    assert gpu.decision.holder == "a"
    gpu.run(0.2)
    before = jobs["b"].done
    if end == "killed":
        jobs["a"].alive, jobs["a"].resident = False, 0
    elif end == "stopped":
        jobs["a"].stopped = True
    else:
        jobs["a"].ready = gpu.now + 1000
    gpu.run(3.5)
    assert jobs["b"].done > before + 50
    assert gpu.decision.holder != "a"
    if end == "killed":
        assert gpu.decision.holder is None


def test_it_lets_go_when_the_sets_fit_again():
    jobs = pair(work=10**9)
    gpu = SimulatedGpu(jobs)
    gpu.run(60)
    assert gpu.arbiter is not None and gpu.arbiter.mode == "slicing"
    for job in jobs.values():
        job.set = job.resident = 4 * GIB
    gpu.run(2 * PASS)
    assert (gpu.decision.holder, gpu.decision.held) == (None, frozenset())


def test_a_quantum_grows_with_what_moving_costs():
    found = []
    for speed in (800 * GIB, 100 * GIB, 16 * GIB):
        gpu = SimulatedGpu(pair(work=10**9), speed=speed)
        gpu.run(900)
        assert gpu.arbiter is not None
        found.append(gpu.arbiter.quantum("a"))
    assert found == sorted(found)
    assert time_slicing.SHORTEST <= found[0] < 4
    assert found[2] > 3 * found[1]
    assert found[2] <= time_slicing.LONGEST


@pytest.mark.parametrize("more", [0, 1])
def test_what_fills_the_gpu_to_the_last_byte_fits(more):
    seen = {name: TimeSliceSample(100, False, 8 * GIB, busy=True) for name in "ab"}
    found = TimeSlicer().decide(1.0, 16 * GIB - more, seen)
    assert (found.contending, found.fits) == (2, not more)


def test_what_was_learned_of_a_container_ends_with_it():
    gpu = SimulatedGpu(pair(work=10**9), room=16 * GIB, speed=8 * GIB)
    gpu.run(200)
    before = gpu.arbiter.quantum("a")
    gpu.arbiter.decide(1000.0, 16 * GIB, {})
    assert gpu.arbiter.quantum("a") == time_slicing.FIRST != before


def test_one_that_wants_none_is_neither_held_nor_counted():
    seen = {name: TimeSliceSample(100, False, 16 * GIB, willing=name != "c") for name in "abc"}
    arbiter = TimeSlicer()
    held = set()
    for step in range(1, 400):
        seen = {
            name: TimeSliceSample(100 + (step if name == "c" or arbiter.mode != "slicing" else step // 2), False,
                                  16 * GIB, willing=name != "c")
            for name in "abc"
        }  # fmt: skip
        held |= arbiter.decide(step * PASS, 16 * GIB, seen).held
    assert "c" not in held


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 25))]
)
def test_no_job_starves(seed):
    """Random jobs that come, pause, stop and die: each that waits runs within one long round."""
    luck = random.Random(seed)
    jobs: dict[str, Job] = {}
    gpu = SimulatedGpu(jobs, room=16 * GIB, speed=luck.choice([8, 16, 60]) * GIB)
    for step in range(60):
        roll = luck.random()
        running = [name for name, job in jobs.items() if job.unfinished]
        if len(running) < 2 or (roll < 0.2 and len(running) < 5):
            rest = luck.choice([0.0, 0.0, 0.05, 0.5])
            jobs[f"j{step}"] = Job(
                luck.randint(2, 16) * GIB, luck.choice([0.001, 0.01, 0.1]), luck.choice([500, 10**9]), rest
            )
        elif roll < 0.35:
            victim = jobs[luck.choice(running)]
            victim.alive, victim.resident, victim.held_since = False, 0, None
        elif roll < 0.45:
            victim = jobs[luck.choice(running)]
            victim.stopped, victim.held_since = not victim.stopped, None
        gpu.run(luck.choice([0.3, 3, 20]))
        for job in jobs.values():
            if job.unfinished and job.held_since is not None:
                job.longest_wait = max(job.longest_wait, gpu.now - job.held_since)
    for job in jobs.values():
        assert job.longest_wait <= 5 * (time_slicing.LONGEST + 2 * 16 * GIB / gpu.speed + 1)


@pytest.mark.parametrize("seed", range(20))
def test_any_sightings_are_answered(seed):
    """What containers say is theirs: numbers that jump, clocks that stand still, names that come and go."""
    luck = random.Random(seed)
    arbiter, now, stuck, given = TimeSlicer(), 0.0, 0.0, 0
    for _ in range(500):
        before, now = now, now + luck.choice([0.0, 0.05, 0.05, 2.0])
        seen = {
            f"c{n}": TimeSliceSample(
                luck.choice([0, 1, 2**63, luck.randrange(10**6)]),
                luck.random() < 0.5,
                luck.choice([0, GIB, 2**48]),
                luck.random() < 0.3,
                luck.random() < 0.9,
                luck.random() < 0.9,
            )
            for n in range(luck.randint(0, 4))
        }
        decision = arbiter.decide(now, luck.choice([0, GIB, 64 * GIB]), seen)
        assert decision.holder is None or decision.holder in seen
        assert decision.holder not in decision.held
        assert decision.held <= {name for name, one in seen.items() if one.willing}
        assert decision.short <= {name for name, one in seen.items() if one.willing}
        assert not decision.held & decision.short
        free = not decision.held or decision.holder is not None
        stuck = 0.0 if free or arbiter.changes != given else stuck + now - before
        given = arbiter.changes
        assert stuck <= time_slicing.EMPTYING + 2.0, "every container waits, and for none"
