# SPDX-License-Identifier: Apache-2.0
"""A GPU that moves pages, in simulated time: containers with kernels, the agent's passes, and a host that is late.

What the library does is modelled as it is: progress is counted when work is submitted, not when it is done; a
container that waits for its work says that it is busy; while there are time slices queues are kept short; one that
was held fetches its pages when its time slice comes. Passes, and what programs do between two kernels, can be delayed
as on a host with too few processors. Deterministic for a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from gigaslice.core.limits import time_slicing
from gigaslice.core.limits.time_slicing import TimeSlicer, TimeSliceSample

GIB = 1 << 30
PASS, SOON = 0.05, 0.005
QUEUE = 0.02
"""Seconds of work that a container may have queued while there are time slices."""
FETCH = 3
"""So much faster than pages that kernels wait for come those that are fetched at once."""


@dataclass(slots=True)
class Job:
    """Kernels of KERNEL seconds, WORK of them, each using SET bytes of managed memory. rest: pause after each. ahead:
    kernels that it submits before it waits for one."""

    set: int
    kernel: float = 0.01
    work: int = 10**9
    rest: float = 0.0
    ahead: int = 1
    said: int | None = None
    """What it has allocated, where that is more than it uses."""
    lengths: Iterator[float] | None = None
    """Lengths of its kernels, where they differ."""
    done: int = 0
    submitted: int = 0
    resident: int = 0
    ready: float = 0.0
    finished: float | None = None
    alive: bool = True
    stopped: bool = False
    held_since: float | None = None
    longest_wait: float = 0.0
    fetching: bool = False

    @property
    def queued(self) -> int:
        return self.submitted - self.done

    @property
    def unfinished(self) -> bool:
        return self.alive and not self.stopped and self.finished is None

    def length(self) -> float:
        return next(self.lengths) if self.lengths is not None else self.kernel


@dataclass
class Host:
    """How late things are. load: probability that a pass or a step of a program is delayed; late: seconds, at most."""

    load: float = 0.0
    late: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._luck = random.Random(self.seed)

    def delay(self) -> float:
        return self._luck.uniform(0, self.late) if self.load and self._luck.random() < self.load else 0.0


@dataclass
class SimulatedGpu:
    """ROOM bytes for managed pages, moved at SPEED bytes a second. Kernels of the jobs alternate as they come."""

    jobs: dict[str, Job]
    room: int = 16 * GIB
    speed: float = 16 * GIB
    arbiter: TimeSlicer | None = field(default_factory=TimeSlicer)
    host: Host = field(default_factory=Host)
    now: float = 0.0
    decision: time_slicing.TimeSliceDecision = field(default_factory=time_slicing.TimeSliceDecision)
    time_slice_seconds: float = 0.0
    handovers: list[tuple[float, str | None]] = field(default_factory=list)
    moved: int = 0
    counted: bool = False
    """Whether the driver tells what it moves."""
    _next_pass: float = 0.0
    _running: str | None = None
    _ends: float = 0.0
    _last: str = ""

    def run(self, seconds: float = 1e9) -> None:
        """Lets time pass, until every container has finished at most."""
        end = self.now + seconds
        while self.now < end and any(job.unfinished for job in self.jobs.values()):
            if self._running is not None and self._ends <= self.now:
                self._complete()
            if self.arbiter and self._next_pass <= self.now:
                self._pass()
                self._next_pass = self.now + (SOON if self.arbiter.urgent else PASS) + self.host.delay()
            for name, job in self.jobs.items():
                while job.ready <= self.now and self._step(name, job):
                    pass
            self._start()
            self.now = min(end, self._next())

    def _next(self) -> float:
        first = 1e9 if self._running is None else self._ends
        if self.arbiter and (self._running is None or self._next_pass < first):
            first = self._next_pass
        known, now, held = self._running is not None or bool(self.arbiter), self.now, self.decision.held
        for name, job in self.jobs.items():
            if job.ready > now and (not known or job.ready < first) and job.unfinished and name not in held:
                first, known = job.ready, True
        return max(first, now)

    def _limit(self, job: Job) -> int:
        if not self.decision.holder and not self.decision.short:
            return job.ahead
        return max(1, min(job.ahead, int(QUEUE / job.kernel)))

    def _step(self, name: str, job: Job) -> bool:
        """A program's next submission; false when it cannot submit now."""
        if job.submitted >= job.work or job.submitted - job.done >= self._limit(job) or not job.unfinished:
            return False
        if name in self.decision.held:
            job.held_since = self.now if job.held_since is None else job.held_since
            return False
        if job.held_since is not None:
            job.longest_wait = max(job.longest_wait, self.now - job.held_since)
            job.held_since, job.fetching = None, True
        job.submitted += 1
        job.ready = self.now + self.host.delay()
        return True

    def _start(self) -> None:
        if self._running is not None:
            return
        ready = sorted(
            name for name, job in self.jobs.items() if job.queued and job.alive and job.finished is None
        )
        if not ready:
            return
        name = next((one for one in ready if one > self._last), ready[0])
        self._last, job = name, self.jobs[name]
        speed = self.speed * (FETCH if job.fetching else 1)
        job.fetching = False
        self._running, self._ends = name, self.now + self._move(job) / speed + job.length()

    def _move(self, job: Job) -> int:
        """Bytes that the bus carries for its next kernel."""
        missing = job.set - job.resident
        used = sum(other.resident for other in self.jobs.values() if other.alive)
        out = left = max(0, used + missing - self.room)
        for other in self.jobs.values():
            if left and other is not job:
                gone = min(other.resident, left)
                other.resident -= gone
                left -= gone
        job.resident = job.set
        self.moved += missing + out
        return missing + out

    def _complete(self) -> None:
        assert self._running is not None
        job, self._running = self.jobs[self._running], None
        job.done += 1
        job.ready = max(job.ready, self.now + job.rest + self.host.delay())
        if job.done >= job.work:
            job.finished, job.resident = self.now, 0

    def _pass(self) -> None:
        assert self.arbiter is not None
        seen = {name: self.sighting(name, job) for name, job in self.jobs.items()}
        before = self.decision.holder
        self.decision = self.arbiter.decide(self.now, self.room, seen, self.moved if self.counted else None)
        if self.decision.holder != before:
            self.handovers.append((self.now, self.decision.holder))
        if self.decision.holder:
            self.time_slice_seconds += PASS

    def sighting(self, name: str, job: Job) -> TimeSliceSample:
        """What the job's ledger says."""
        size = job.set if job.said is None else job.said
        return TimeSliceSample(
            job.submitted,
            job.held_since is not None and not job.stopped,
            0 if job.finished is not None else size,
            busy=job.unfinished
            and job.queued > 0
            and (name in self.decision.held or job.queued >= min(self._limit(job), job.work - job.done)),
            alive=job.unfinished,
        )


def total(jobs: dict[str, Job], arbiter: TimeSlicer | None, **more: object) -> float:
    """Seconds until the last of JOBS is done."""
    gpu = SimulatedGpu(jobs, arbiter=arbiter, **more)  # type: ignore[arg-type]
    gpu.run()
    return max(job.finished or 1e9 for job in jobs.values())


def pair(gib: int = 16, work: int = 3000, kernel: float = 0.01, **more: object) -> dict[str, Job]:
    """Two equal jobs."""
    return {name: Job(gib * GIB, kernel, work, **more) for name in "ab"}  # type: ignore[arg-type]


def in_sequence(jobs: dict[str, Job], **more: object) -> float:
    """Seconds of one job after the other, on a GPU without time slices."""
    return sum(total({name: job}, None, **more) for name, job in jobs.items())
