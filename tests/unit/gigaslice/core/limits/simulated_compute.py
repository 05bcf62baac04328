# SPDX-License-Identifier: Apache-2.0
"""A GPU in simulated time: containers whose processes launch kernels, the library's own controller, and the agent.

The controller is the C code that the library runs (``native/shm/bucket.c``), the arbiter the agent's.
What surrounds them in reality, threads, events and files, is modelled here in steps: a GPU that goes round among the
processes that have work, a thread per process that polls at the library's instants, sometimes late, whether work is
under way, an agent that polls about every five milliseconds. Deterministic for a seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vcuda._native import ffi, lib

from gigaslice.core.limits.compute_arbiter import ComputeArbiter, ComputeSample

STEP = 250_000
"""Nanoseconds of a step: programs and the GPU alternate so often, so kernels should not be shorter."""
TICK: int = lib.VC_POLL_TICK_NS
LATE = 16
"""One poll in so many is late by up to a tick, as on a busy machine."""
PATIENCE = 250_000_000
AGENT = 5_000_000
SAMPLE = 500_000_000
MS = 1_000_000

Work = tuple[int, int]
"""A kernel's time on the GPU, and the time the program then does something else (-1: it launches on at once; any other
value: it waits for the GPU first)."""


@dataclass
class Process:
    """One process: WORK says what it launches."""

    work: Iterator[Work]
    begins: int = 0
    ends: int | None = None
    queue: deque[list[int]] = field(default_factory=deque)
    window: Any = field(default_factory=lambda: ffi.new("struct vc_window *"))
    pace: Any = field(default_factory=lambda: ffi.new("struct vc_pace *"))
    marks: deque[tuple[int, int, int]] = field(default_factory=deque)
    launched: int = 0
    finished: int = 0
    next_mark: int = 1
    asleep_until: int = 0
    busy_until_idle: bool = False
    pacing: bool = False
    held_since: int | None = None
    poll_at: int = 0
    flying: bool = False
    worked_ns: int = 0
    served: int = 0
    longest_wait: int = 0
    next_work: Work | None = None

    def __post_init__(self) -> None:
        lib.window_reset(self.window)


@dataclass
class Container:
    """A container with a share in percent."""

    share: int
    processes: list[Process]
    elastic: bool = False
    weight: int = 1
    credit_us: int = 0
    allowed: int = 0
    waiting_until: int = 0
    polled: int = 0
    """Instant up to which it was charged."""
    unlimited: bool = False
    """It has no share, and the agent knows of it what the driver samples."""
    bucket: Any = field(default_factory=lambda: ffi.new("struct vc_bucket *"))

    def permille(self) -> int:
        """What the limits page says now."""
        return self.allowed or self.share * 10

    def served(self) -> int:
        """Nanoseconds of the GPU that it had."""
        return sum(process.served for process in self.processes)


class SimulatedGpu:
    """The GPU, its containers and its agent. agent_at: whether there is an agent at an instant."""

    def __init__(
        self,
        containers: list[Container],
        seed: int = 0,
        agent_at: Callable[[int], bool] = lambda now: True,
    ) -> None:
        self.containers = containers
        self.now = 1_000_000_000
        self.busy = 0
        self._random = random.Random(seed)
        self._agent_at = agent_at
        self._arbiter: ComputeArbiter | None = None
        self._next_agent = self._next_sample = self.now
        self._samples: list[float] = []
        self._sampled = 0
        for container in containers:
            container.polled = self.now
            for process in container.processes:
                process.begins += self.now
                if process.ends is not None:
                    process.ends += self.now

    def run(self, seconds: float, each: Callable[[int], None] = lambda now: None) -> None:
        """Lets the time pass."""
        end = self.now + int(seconds * 1e9)
        while self.now < end:
            alive = self._alive()
            self._programs(alive)
            self._gpu(alive)
            self.now += STEP
            self._pass()
            if self.now >= self._next_agent:
                self._next_agent = self.now + self._random.randrange(AGENT // 2, AGENT * 3 // 2)
                self._agent()
            each(self.now)

    def _alive(self) -> list[tuple[Container, Process]]:
        alive, now = [], self.now
        for container in self.containers:
            for process in container.processes:
                if process.begins <= now and (process.ends is None or now < process.ends):
                    alive.append((container, process))
                else:
                    process.queue.clear()
                    process.flying = False
        return alive

    def _programs(self, alive: list[tuple[Container, Process]]) -> None:
        for container, process in alive:
            if self.now < process.asleep_until:
                continue
            for _ in range(64):
                if not self._program(container, process):
                    break

    def _program(self, container: Container, process: Process) -> bool:
        """One thing that a program does; false: nothing more in this step."""
        if self.now < process.asleep_until:
            return False
        if process.busy_until_idle:
            if process.queue:
                return False
            process.busy_until_idle = False
            process.asleep_until = self.now + max(0, process.next_work[1] if process.next_work else 0)
            process.next_work = None
            return True
        if process.next_work is None:
            process.next_work = next(process.work, None)
            if process.next_work is None:
                return False
        if not self._throttle(container, process):
            return False
        length, then = process.next_work
        process.queue.append([length])
        process.launched += 1
        if process.launched >= process.next_mark:
            process.marks.append((process.launched, process.launched - process.finished, self.now))
            process.next_mark = process.launched + max(1, process.window.allowed // 4)
        if then < 0:
            process.next_work = None
        else:
            process.busy_until_idle = True
        return True

    def _throttle(self, container: Container, process: Process) -> bool:
        if process.held_since is None:
            process.held_since = self.now
        if not process.pacing:
            late = self.now - process.held_since >= PATIENCE
            if process.launched - process.finished >= process.window.allowed and not late:
                return False
            process.pacing = True
            self._fill(container)
            level = lib.bucket_level(container.bucket)
            lib.pace_begin(process.pace, level, container.permille(), self.now)
        self._fill(container)
        nap = lib.pace_nap(process.pace, lib.bucket_level(container.bucket), container.permille(), self.now)
        if nap:
            process.asleep_until = self.now + nap
            container.waiting_until = self.now + nap + TICK
            return False
        process.longest_wait = max(process.longest_wait, self.now - process.held_since)
        process.pacing, process.held_since = False, None
        return True

    def _fill(self, container: Container) -> None:
        lib.bucket_fill(container.bucket, self.now, container.permille(), container.credit_us)

    def _gpu(self, alive: list[tuple[Container, Process]]) -> None:
        """The GPU goes round among the processes with work, as long as the step lasts."""
        left = STEP
        for container in self.containers:
            for process in container.processes:
                process.worked_ns = 0
        while left > 0:
            working = [process for _, process in alive if process.queue]
            if not working:
                return
            slice_ns = max(1, left // len(working))
            for process in working:
                slice_ns = min(slice_ns, process.queue[0][0])
            for process in working:
                process.served += slice_ns
                first = process.queue[0]
                first[0] -= slice_ns
                if first[0] <= 0:
                    process.queue.popleft()
                    process.finished += 1
            self.busy += slice_ns * len(working)
            left -= slice_ns * len(working)
            for process in working:
                process.worked_ns = STEP - left

    def _pass(self) -> None:
        """Each process's thread: marks, and at an instant of every tick whether there is work under way."""
        began = self.now - STEP
        for container, process in self._alive():
            while process.marks and process.finished >= process.marks[0][0]:
                _, outstanding, since = process.marks.popleft()
                lib.window_passed(process.window, outstanding, self.now - since)
            while process.poll_at <= self.now:
                self._poll(container, process, max(0, process.poll_at - began))
                process.poll_at = lib.poll_instant(max(process.poll_at, began))
                if self._random.randrange(LATE) == 0:
                    process.poll_at += self._random.randrange(TICK)

    def _poll(self, container: Container, process: Process, after: int) -> None:
        """A poll, so many nanoseconds after the step began."""
        passed = max(0, process.poll_at - container.polled)
        container.polled += passed
        if any(other.flying for other in container.processes):
            lib.bucket_spend(container.bucket, passed)
        process.flying = bool(process.queue) or after < process.worked_ns

    def _agent(self) -> None:
        if not self._agent_at(self.now):
            self._arbiter = None
            return
        if self._arbiter is None:
            self._arbiter = ComputeArbiter()
        seen = {
            str(index): ComputeSample(
                container.share * 10,
                sum(process.flying for process in container.processes),
                container.bucket.spent_ns / 1e9,
                self.now < container.waiting_until,
                container.elastic,
                container.weight,
            )
            for index, container in enumerate(self.containers)
            if not container.unlimited
        }
        if self.now >= self._next_sample:
            self._next_sample = self.now + SAMPLE
            served = sum(container.served() for container in self.containers if container.unlimited)
            self._samples = [*self._samples[-2:], (served - self._sampled) / SAMPLE]
            self._sampled = served
        published = {str(index): container.credit_us / 1e6 for index, container in enumerate(self.containers)}
        for name, allowance in self._arbiter.decide(
            self.now / 1e9, seen, published, max(self._samples, default=0.0)
        ).items():
            container = self.containers[int(name)]
            container.credit_us = int(allowance.credit * 1e6)
            container.allowed = allowance.allowed


def small() -> Iterator[Work]:
    """Many small kernels, launched without waiting."""
    while True:
        yield 200_000, -1


def long() -> Iterator[Work]:
    """Few long ones, each waited for."""
    while True:
        yield 60 * MS, 0


def patient() -> Iterator[Work]:
    """A kernel of two milliseconds, waited for, and half a millisecond of the program's own."""
    while True:
        yield 2 * MS, MS // 2


def bursts() -> Iterator[Work]:
    """Thirty kernels at once, then a pause for as long as they took."""
    while True:
        for _ in range(29):
            yield MS, -1
        yield MS, 5 * MS


def mixture(seed: int = 1) -> Iterator[Work]:
    """Everything from a fifth of a millisecond to fifty."""
    chance = random.Random(seed)
    while True:
        yield chance.choice((200_000, 500_000, MS, 3 * MS, 50 * MS)), chance.choice((-1, -1, -1, 0))


WORKLOADS: dict[str, Callable[[], Iterator[Work]]] = {
    "small": small,
    "long": long,
    "patient": patient,
    "bursts": bursts,
    "mixture": mixture,
}
