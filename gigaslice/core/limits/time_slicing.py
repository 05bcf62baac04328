# SPDX-License-Identifier: Apache-2.0
"""Which container may use a GPU now, where containers have more managed memory in use than the GPU can hold.

Managed pages of a container that runs push out those of another. When each then needs its own again, the bus carries
pages and no container computes. With time slices that are long against the moving, each container has its pages where
it computes. Slicing costs something too, and a working set is not all that was allocated, so time slices are given
only while they help:

* Nothing happens while fewer than two containers use the GPU, or their managed memory fits beside what cannot move.
* Otherwise queues are kept short, since queued work runs on in whatever time slice comes next. The progress of all
  (work submitted) is watched together for a window. Where it is not known yet, one round of time slices tells what
  each does alone. Together they should do as much as one after the other. If they do much less, slicing goes on; else
  it ends and is tried again only when progress falls, or after a long while. Where the driver counts what page faults
  move, no time slice is given while next to nothing moves: memory that is allocated and not used shows at once.
* What a container does alone is the best that it does for a good part of its time slice: in the beginning it waits for
  its pages, and submitted work says nothing of when they came. What a time slice did less than that is what it lost.
  A quantum is as long as it takes for that to be a small part of it, and all containers have the longest one.
* A holder that does nothing, has stopped or died loses its time slice at once. All time slices end when the sets fit.

Pure: samples and the time go in, decisions come out; one `TimeSlicer` per GPU remembers what went before. Sizes that
containers report are bounded before they come here (`agent.ledgers.trust`). A container that lies about its progress
can end the time slices early or lengthen the quanta of all, up to the longest, as one that really works like that can.
None gets more than its share of the time slices. Tests: tests/unit/gigaslice/core/limits/test_time_slicing.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["TimeSliceDecision", "TimeSliceSample", "TimeSlicer"]

SETTLE, WINDOW, LONG_WINDOW = 0.5, 0.5, 10.0
"""Seconds for which containers are left together before they are watched, since pages come first; and are watched, at
least, and at most where they should have done little work in that time."""
ACTIVE = 1.0
"""Seconds without work after which a container does not use the GPU any more."""
IDLE = 0.15
"""Seconds without work after which a holder loses its time slice; where that is more, three of its longest gaps, or
what a change of holders costs: a late host must not cost more than the waiting."""
FIRST, SHORTEST, LONGEST = 1.0, 0.2, 30.0
"""Seconds of a quantum."""
ENOUGH = 4
"""Pieces of work that a time slice has at least, since the first of them waits for the pages."""
EMPTYING = 0.25
"""Seconds for which no container may submit while queued work of others still runs, before a time slice begins."""
STILL = 0.01
"""Part of the GPU's room that page faults move in a second where they do not matter."""
TRIES = 4
"""Rounds of time slices for finding out what each does alone, before the containers are watched together again."""
LOST, UNSURE = 0.04, 0.02
"""Part of a quantum that may be lost to moving pages, and part that is no more than an error of measuring."""
SPAN, PART = 0.5, 4
"""Seconds of work that tell how fast it is, and at least so great a part of the time slice."""
FASTER, SLOWER = 16.0, 0.7
"""By how much a quantum changes at most from one time slice to the next."""
HELPFUL = 0.8
"""Slicing goes on while together the containers do less than this part of what they do in time slices."""
SOON, AGAIN, AGAIN_MOST = 30.0, 60.0, 300.0
"""Seconds until what was decided is tried anew: at once in the beginning, later, and at most."""


@dataclass(frozen=True, slots=True)
class TimeSliceSample:
    """A container on one GPU at one instant.

    Attributes:
        progress: pieces of work submitted ever since.
        waiting: it is being held back now.
        managed: its bytes that may move.
        busy: it waits for work that is under way, or work that it queued before it was held still runs.
        alive: a process of it lives and has not been stopped.
        willing: it takes part in time slices.
    """

    progress: int
    waiting: bool
    managed: int
    busy: bool = False
    alive: bool = True
    willing: bool = True


@dataclass(frozen=True, slots=True)
class TimeSliceDecision:
    """What the containers of a GPU may do until the next decision.

    Attributes:
        holder: the container whose time slice it is; None where all may submit.
        held: the containers that must wait.
        short: the containers that must keep their queues short; the holder is one of them.
        contending: how many containers use the GPU.
        fits: whether their managed memory fits.
    """

    holder: str | None = None
    held: frozenset[str] = frozenset()
    short: frozenset[str] = frozenset()
    contending: int = 0
    fits: bool = True


@dataclass(slots=True)
class _Container:
    progress: int
    worked: float  # when it last made progress
    gap: float = 0.0  # longest pause between two pieces of work, fading
    solo: float = 0.0  # progress per second when it is alone; 0: not known
    lost: float = 0.0  # seconds that its last whole time slice lost
    quantum: float = FIRST
    served: float = -1.0  # when its last time slice ended
    start: int = 0  # progress at the begin of the window or time slice


class TimeSlicer:
    """Decides for one GPU."""

    def __init__(self) -> None:
        self._containers: dict[str, _Container] = {}
        self._mode = "free"  # "free", "together", "slicing"
        self._since = 0.0  # begin of the window, or of the time slice
        self._holder: str | None = None
        self._course: list[tuple[float, int]] = []  # times and progress of the time slice
        self._round: dict[str, float] = {}  # normalised progress of the time slices since the round began
        self._round_began = 0.0
        self._rates: dict[str, float] = {}  # of the last window
        self._watched = 0.0  # its length
        self._moved: int | None = None  # bytes that page faults have moved, as the driver counts
        self._moving: float | None = None  # of them, since the window began; None: not known
        self._again = AGAIN
        self._given = 0.0  # when the time slice was given
        self._emptying = False  # what others had queued may still run
        self._disturbed = False  # and ran for longer than was waited for
        self._settled = 0.0  # when the present mode was judged to be right
        self._tries = 0  # rounds that have not told it
        self._learning = False  # this round is to tell what each does alone
        self._measuring = False  # the window is open
        self.changes = 0
        """Time slices given so far."""

    @property
    def urgent(self) -> bool:
        """Whether the next decision lets a container go on, and so should come soon."""
        return self._mode == "slicing" and self._emptying

    @property
    def mode(self) -> str:
        """What goes on: "free", nothing to decide; "together", watched; "slicing", time slices."""
        return self._mode

    def quantum(self, name: str) -> float:
        """Seconds of that container's next time slice."""
        container = self._containers.get(name)
        return container.quantum if container else FIRST

    def decide(
        self, now: float, room: int, samples: Mapping[str, TimeSliceSample], moved: int | None = None
    ) -> TimeSliceDecision:
        """What the containers may do now.

        Args:
            now: seconds that only go forward.
            room: bytes of the GPU beside all that cannot move.
            samples: the containers of the GPU, by name.
            moved: bytes that page faults have moved to the GPU and away ever since; None where the driver is silent.
        """
        self._note(now, samples)
        self._note_moved(moved)
        contending = [
            name for name, sample in samples.items() if sample.willing and self._contends(now, name, sample)
        ]
        fits = sum(samples[name].managed for name in contending) <= room
        if len(contending) < 2 or fits:
            self._let_go()
            return TimeSliceDecision(contending=len(contending), fits=fits)
        if self._mode == "free":
            self._watch(now)
        if self._mode == "together":
            self._judge_window(now, contending, room)
        if self._mode == "slicing":
            self._keep_slicing(now, samples, contending)
        willing = frozenset(name for name, sample in samples.items() if sample.willing)
        if self._mode != "slicing":
            return TimeSliceDecision(None, frozenset(), willing, len(contending), fits=False)
        if self._emptying and now - self._given < EMPTYING:
            return TimeSliceDecision(None, willing, frozenset(), len(contending), fits=False)
        own = willing & {self._holder}
        return TimeSliceDecision(self._holder, willing - own, own, len(contending), fits=False)

    def _note(self, now: float, samples: Mapping[str, TimeSliceSample]) -> None:
        for name in self._containers.keys() - samples.keys():
            del self._containers[name]
        for name, sample in samples.items():
            container = self._containers.get(name)
            if container is None or sample.progress < container.progress:  # its file is its own
                self._containers[name] = _Container(
                    sample.progress, now if sample.progress else now - ACTIVE, start=sample.progress
                )
            elif sample.progress > container.progress:
                if name == self._holder and container.progress > container.start:
                    container.gap = max(min(now - container.worked, ACTIVE), container.gap * 0.9)
                container.progress, container.worked = sample.progress, now
            if name == self._holder:
                self._course.append((now, container.progress if container else sample.progress))

    def _note_moved(self, moved: int | None) -> None:
        """A count that begins anew, or ends, says nothing of the window in which it does."""
        if moved is None or self._moved is None or moved < self._moved:
            self._moving = None
        elif self._moving is not None:
            self._moving += moved - self._moved
        self._moved = moved

    def _contends(self, now: float, name: str, sample: TimeSliceSample) -> bool:
        recently = now - self._containers[name].worked < ACTIVE
        return sample.alive and sample.managed > 0 and (sample.waiting or sample.busy or recently)

    def _let_go(self) -> None:
        self._mode, self._holder, self._again, self._learning = "free", None, AGAIN, False

    def _watch(self, now: float) -> None:
        self._mode, self._holder, self._since, self._measuring = "together", None, now, False

    def _open_window(self, now: float) -> None:
        self._since, self._measuring = now, True
        self._moving = None if self._moved is None else 0.0
        for container in self._containers.values():
            container.start = container.progress

    def _judge_window(self, now: float, contending: list[str], room: int) -> None:
        if not self._measuring:
            if now - self._since >= SETTLE:
                self._open_window(now)
            return
        passed = now - self._since
        if passed < self._window(contending):
            return
        self._watched = passed
        self._rates = {
            name: (self._containers[name].progress - self._containers[name].start) / passed
            for name in contending
        }
        if self._moving is not None and self._moving < STILL * room * passed:
            self._watch(now)  # whatever the progress is, pages are not what holds it up
        elif any(not self._containers[name].solo for name in contending):
            self._learning, self._tries = True, 0
            self._begin_slicing(now)
        elif self._done_together(contending) < HELPFUL:
            self._begin_slicing(now)
        elif now - self._settled > self._again:
            self._again = min(AGAIN_MOST, self._again * 2)
            self._begin_slicing(now)
        else:
            self._watch(now)

    def _window(self, contending: list[str]) -> float:
        """Seconds in which each would do enough alone to say whether it did much less."""
        slowest = min((self._containers[name].solo for name in contending), default=0.0)
        return min(LONG_WINDOW, max(WINDOW, 2 * ENOUGH / slowest)) if slowest else WINDOW

    def _done_together(self, contending: list[str]) -> float:
        """What the window's progress was worth, in seconds of a GPU alone per second."""
        return sum(
            self._rates.get(name, 0.0) / self._containers[name].solo
            for name in contending
            if self._containers[name].solo
        )

    def _begin_slicing(self, now: float) -> None:
        self._mode, self._holder, self._round, self._round_began = "slicing", None, {}, now

    def _keep_slicing(
        self, now: float, samples: Mapping[str, TimeSliceSample], contending: list[str]
    ) -> None:
        holder = self._holder
        if holder is not None and holder in samples:
            container, sample = self._containers[holder], samples[holder]
            if self._emptying and sample.alive and self._wait_for_others(now, holder, samples):
                self._begin_course(now, container)
                return
            done = container.progress - container.start
            quantum = max(self._containers[name].quantum for name in {holder, *contending})  # parts are equal
            over = now - self._since >= (quantum if done >= ENOUGH else LONGEST)
            patience = max(IDLE, 3 * container.gap, min(container.lost, ACTIVE))
            quiet = not sample.busy and now - max(container.worked, self._since) > patience
            if sample.alive and sample.willing and sample.managed and not over and not quiet:
                return
            self._end_slice(now, holder, full=over and sample.alive and not quiet)
        elif holder is not None:
            self._holder = None
        if self._round_is_over(contending) and not self._slicing_helps(now, contending):
            self._settled = now
            self._watch(now)
            return
        # A container that was just served and did nothing is no candidate while others wait.
        self._give(
            now, min(contending, key=lambda name: (name == holder, self._containers[name].served, name))
        )

    def _give(self, now: float, name: str) -> None:
        container = self._containers[name]
        self._holder, self._since = name, now
        self._begin_course(now, container)
        self._given, self._emptying, self._disturbed = now, True, False
        self.changes += 1

    def _begin_course(self, now: float, container: _Container) -> None:
        self._since, container.start = now, container.progress
        self._course = [(now, container.progress)]

    def _wait_for_others(self, now: float, holder: str, samples: Mapping[str, TimeSliceSample]) -> bool:
        """Whether what others had queued still runs: then the time slice has not begun, since that takes the pages.
        Only in the beginning queues may be long; later, when they have been short for a while, it is not believed.
        """
        running = any(sample.busy and sample.willing for name, sample in samples.items() if name != holder)
        late = now - self._given >= (LONGEST if self._learning else EMPTYING)
        self._emptying, self._disturbed = running and not late, running and late
        return self._emptying

    def _end_slice(self, now: float, name: str, *, full: bool) -> None:
        container = self._containers[name]
        container.served, self._holder = now, None
        done, passed = container.progress - container.start, now - self._since
        if self._disturbed:
            full = False  # it says nothing of what the container does alone
        if full and done > 1:
            rate = _fastest(self._course, max(SPAN, passed / PART))
            if not container.solo:
                container.solo = rate
            elif (
                rate > container.solo or passed >= 2 * SPAN
            ):  # a shorter one may have had no time without pages coming
                container.solo += (rate - container.solo) / (2 if rate > container.solo else 4)
        if full and container.solo:
            before = min(self._since - self._given, EMPTYING)
            container.lost = max(0.0, before + passed * (1 - UNSURE) - done / container.solo)
            quantum = min(max(container.lost / LOST, container.quantum * SLOWER), container.quantum * FASTER)
            container.quantum = min(LONGEST, max(SHORTEST, quantum))
        self._round[name] = self._round.get(name, 0.0) + (done / container.solo if container.solo else 0.0)

    def _round_is_over(self, contending: list[str]) -> bool:
        return all(name in self._round for name in contending)

    def _slicing_helps(self, now: float, contending: list[str]) -> bool:
        """At the end of a round. When slicing has gone on for long, the containers are watched together again."""
        if (
            self._learning
            and any(not self._containers[name].solo for name in contending)
            and self._tries < TRIES
        ):
            self._tries += 1
            self._round, self._round_began = {}, now
            return True
        if self._learning:
            self._learning = False
            return self._was_slow(now, contending)
        passed = now - self._round_began
        in_slices = sum(self._round.values()) / passed if passed > 0 else 0.0
        self._round, self._round_began = {}, now
        if self._rates and self._done_together(contending) >= HELPFUL * in_slices:
            return False
        if self._settled and now - self._settled > self._again:
            self._again = min(AGAIN_MOST, self._again * 2)
            return False
        if not self._settled:
            self._settled = now
        return True

    def _was_slow(self, now: float, contending: list[str]) -> bool:
        """Whether, now that it is known what each does alone, the window before tells enough: else another one must."""
        if self._watched < self._window(contending) or any(name not in self._rates for name in contending):
            return False
        self._round, self._round_began = {}, now
        self._settled = now - self._again + SOON  # in that window pages may have come for the first time
        return self._done_together(contending) < HELPFUL


def _fastest(course: Sequence[tuple[float, int]], span: float) -> float:
    """Progress per second where it was greatest for SPAN seconds; over all of COURSE where that is shorter."""
    best, begin = 0.0, 0
    for now, progress in course:
        while begin + 1 < len(course) and now - course[begin + 1][0] >= span:
            begin += 1
        since, before = course[begin]
        if now - since >= span:
            best = max(best, (progress - before) / (now - since))
    if best == 0.0 and course[-1][0] > course[0][0]:
        return (course[-1][1] - course[0][1]) / (course[-1][0] - course[0][0])
    return best
