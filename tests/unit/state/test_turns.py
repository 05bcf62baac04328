"""Turns in simulated time: a card that moves pages, and containers with kernels to run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from agent.state import turns
from agent.state.turns import Sighting, Turns

GIB = 1 << 30
LOOK = 0.05


@dataclass
class Job:
    """Kernels of KERNEL seconds, WORK of them, each using SET bytes of managed memory. rest: pause after each."""

    set: int
    kernel: float = 0.01
    work: int = 10**9
    rest: float = 0.0
    done: int = 0
    resident: int = 0
    ready: float = 0.0
    finished: float | None = None
    alive: bool = True
    stopped: bool = False
    held_since: float | None = None
    longest_wait: float = 0.0


@dataclass
class Card:
    """ROOM bytes for managed pages, moved at SPEED bytes a second. Kernels of the jobs alternate as they come."""

    jobs: dict[str, Job]
    room: int = 16 * GIB
    speed: float = 16 * GIB
    arbiter: Turns | None = field(default_factory=Turns)
    now: float = 0.0
    decision: turns.Decision = field(default_factory=turns.Decision)
    turn_seconds: float = 0.0
    handovers: list[tuple[float, str | None]] = field(default_factory=list)

    def run(self, seconds: float = 1e9) -> None:
        end, next_look = self.now + seconds, self.now
        order = list(self.jobs)
        while self.now < end and any(self._unfinished(job) for job in self.jobs.values()):
            if self.arbiter and self.now >= next_look:
                self._look()
                next_look = self.now + LOOK
            ready = [name for name in order if self._may_run(name)]
            if not ready:
                self._wait(min(next_look if self.arbiter else end, end))
                continue
            name = ready[0]
            order.remove(name)
            order.append(name)
            self._kernel(self.jobs[name])

    def _unfinished(self, job: Job) -> bool:
        return job.alive and not job.stopped and job.finished is None

    def _may_run(self, name: str) -> bool:
        job = self.jobs[name]
        if not self._unfinished(job) or job.ready > self.now:
            return False
        if name not in self.decision.held:
            if job.held_since is not None:
                job.longest_wait = max(job.longest_wait, self.now - job.held_since)
            job.held_since = None
            return True
        job.held_since = self.now if job.held_since is None else job.held_since
        return False

    def _wait(self, until: float) -> None:
        soonest = min(
            (job.ready for job in self.jobs.values() if self._unfinished(job) and job.ready > self.now),
            default=until,
        )
        self.now = min(max(self.now + 1e-6, soonest), max(until, self.now + 1e-6))

    def _kernel(self, job: Job) -> None:
        missing = job.set - job.resident
        used = sum(other.resident for other in self.jobs.values() if other.alive)
        out = max(0, used + missing - self.room)
        left = out
        for other in self.jobs.values():
            if other is not job:
                gone = min(other.resident, left)
                other.resident -= gone
                left -= gone
        job.resident = job.set
        self.now += (missing + out) / self.speed + job.kernel
        job.done += 1
        job.ready = self.now + job.rest
        if job.done >= job.work:
            job.finished, job.resident = self.now, 0

    def _look(self) -> None:
        assert self.arbiter is not None
        seen = {
            name: Sighting(
                job.done,
                job.held_since is not None and not job.stopped,
                0 if job.finished is not None else job.set,
                busy=self._unfinished(job) and job.held_since is None and job.ready <= self.now,
                alive=self._unfinished(job),
            )
            for name, job in self.jobs.items()
        }
        before = self.decision.holder
        self.decision = self.arbiter.look(self.now, self.room, seen)
        if self.decision.holder != before:
            self.handovers.append((self.now, self.decision.holder))
        if self.decision.holder:
            self.turn_seconds += LOOK


def total(jobs: dict[str, Job], arbiter: Turns | None, **more) -> float:
    card = Card(jobs, arbiter=arbiter, **more)
    card.run()
    return max(job.finished or 1e9 for job in jobs.values())


def pair(gib=16, work=3000, kernel=0.01):
    return {name: Job(gib * GIB, kernel, work) for name in "ab"}


def in_sequence(jobs):
    return sum(total({name: job}, None) for name, job in jobs.items())


def test_twice_the_card_costs_little_more_than_one_after_the_other():
    alone, ours = in_sequence(pair(work=12000)), total(pair(work=12000), Turns())
    assert ours <= 1.15 * alone
    assert total(pair(work=100), None) > 5 * in_sequence(pair(work=100))


@pytest.mark.parametrize("gib", [9, 12, 16])
@pytest.mark.parametrize("kernel", [0.002, 0.02, 0.2])
def test_whatever_the_kernels_and_sets_are(gib, kernel):
    work = int(120 / kernel)
    alone, ours = in_sequence(pair(gib, work, kernel)), total(pair(gib, work, kernel), Turns())
    assert ours <= 1.15 * alone


def test_while_everything_fits_nothing_happens():
    arbiter = Turns()
    jobs = pair(8)
    ours = total(jobs, arbiter)
    assert ours == pytest.approx(total(pair(8), None), rel=1e-6)
    assert arbiter.changes == 0


def test_sets_that_are_allocated_and_not_used_are_given_no_turns_for_long():
    """What is allocated does not fit, what is used does: after one round they compute together again."""
    arbiter = Turns()
    jobs = pair(8, work=6000)
    card = Card(jobs, arbiter=arbiter)
    for job in jobs.values():
        job.set = 8 * GIB
    look = card._look

    def lying_look() -> None:
        for job in jobs.values():
            job.set = 16 * GIB
        look()
        for job in jobs.values():
            job.set = 8 * GIB

    card._look = lying_look  # type: ignore[method-assign]
    card.run()
    assert card.turn_seconds < 0.12 * card.now
    assert max(job.finished or 1e9 for job in jobs.values()) <= 1.1 * total(pair(8, work=6000), None)


def test_three_of_them_get_equal_parts():
    jobs = {name: Job(12 * GIB) for name in "abc"}
    Card(jobs).run(3000)
    done = [job.done for job in jobs.values()]
    assert max(done) < 1.3 * min(done)
    assert sum(done) * 0.01 > 0.85 * 3000


@pytest.mark.parametrize("end", ["killed", "stopped", "asleep"])
def test_a_holder_that_does_nothing_loses_its_turn_at_once(end):
    jobs = pair(work=10**9)
    card = Card(jobs)
    card.run(60)
    for _ in range(10000):
        card.run(LOOK)
        if card.decision.holder == "a":
            break
    assert card.decision.holder == "a"
    card.run(0.2)
    before = jobs["b"].done
    if end == "killed":
        jobs["a"].alive, jobs["a"].resident = False, 0
    elif end == "stopped":
        jobs["a"].stopped = True
    else:
        jobs["a"].ready = card.now + 1000
    card.run(3.5)
    assert jobs["b"].done > before + 50
    assert card.decision.holder != "a"
    if end == "killed":
        assert card.decision.holder is None


def test_it_lets_go_when_the_sets_fit_again():
    jobs = pair(work=10**9)
    card = Card(jobs)
    card.run(60)
    assert card.arbiter is not None and card.arbiter.mode == "turns"
    for job in jobs.values():
        job.set = job.resident = 4 * GIB
    card.run(2 * LOOK)
    assert (card.decision.holder, card.decision.held) == (None, frozenset())


def test_a_quantum_grows_with_what_moving_costs():
    found = []
    for speed in (800 * GIB, 100 * GIB, 16 * GIB):
        card = Card(pair(work=10**9), speed=speed)
        card.run(900)
        assert card.arbiter is not None
        found.append(card.arbiter.quantum("a"))
    assert found == sorted(found)
    assert turns.SHORTEST <= found[0] < 4
    assert found[2] > 3 * found[1]
    assert found[2] <= turns.LONGEST


def test_one_that_wants_none_is_neither_held_nor_counted():
    seen = {name: Sighting(100, False, 16 * GIB, willing=name != "c") for name in "abc"}
    arbiter = Turns()
    held = set()
    for step in range(1, 400):
        seen = {
            name: Sighting(100 + (step if name == "c" or arbiter.mode != "turns" else step // 2), False, 16 * GIB,
                           willing=name != "c")
            for name in "abc"
        }  # fmt: skip
        held |= arbiter.look(step * LOOK, 16 * GIB, seen).held
    assert "c" not in held


@pytest.mark.parametrize("seed", range(25))
def test_nobody_starves(seed):
    """Random jobs that come, pause, stop and die: whoever waits runs within one long round."""
    luck = random.Random(seed)
    jobs: dict[str, Job] = {}
    card = Card(jobs, room=16 * GIB, speed=luck.choice([8, 16, 60]) * GIB)
    for step in range(60):
        roll = luck.random()
        running = [name for name, job in jobs.items() if card._unfinished(job)]
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
        card.run(luck.choice([0.3, 3, 20]))
        for job in jobs.values():
            if card._unfinished(job) and job.held_since is not None:
                job.longest_wait = max(job.longest_wait, card.now - job.held_since)
    for job in jobs.values():
        assert job.longest_wait <= 5 * (turns.LONGEST + 2 * 16 * GIB / card.speed + 1)
    if card.decision.held:
        assert card.decision.holder is not None


@pytest.mark.parametrize("seed", range(20))
def test_any_sightings_are_answered(seed):
    """What containers say is theirs: numbers that jump, clocks that stand still, names that come and go."""
    luck = random.Random(seed)
    arbiter, now = Turns(), 0.0
    for _ in range(500):
        now += luck.choice([0.0, 0.05, 0.05, 2.0])
        seen = {
            f"c{n}": Sighting(
                luck.choice([0, 1, 2**63, luck.randrange(10**6)]),
                luck.random() < 0.5,
                luck.choice([0, GIB, 2**48]),
                luck.random() < 0.3,
                luck.random() < 0.9,
                luck.random() < 0.9,
            )
            for n in range(luck.randint(0, 4))
        }
        decision = arbiter.look(now, luck.choice([0, GIB, 64 * GIB]), seen)
        assert decision.holder is None or decision.holder in seen
        assert decision.holder not in decision.held
        assert decision.held <= {name for name, one in seen.items() if one.willing}
        assert not decision.held or decision.holder is not None
