"""Whose turn it is on a GPU whose containers have more managed memory in use than it can hold.

Managed pages of a container that runs push out those of another; when each then needs its own again, the bus carries
pages and nobody computes. Given one at a time for a quantum that is long against the moving, each has its pages where
it computes. Turns cost something too, and a working set is not all that was allocated, so they are given only while
they help:

* nothing happens while fewer than two containers want the GPU, or their managed memory fits beside what cannot move;
* else queues are kept short, since what is queued runs on in whatever turn comes next, and their progress (work
  submitted) is watched together for a window, and then, if it is not known yet, for one round of turns, which tells
  what each does when it is alone. Together they should do as much as one after the other; if they do much less, turns
  go on, else they end and are tried again only when progress falls, or after a long while. Where the driver counts what
  page faults move, no turn is given while next to nothing moves: what is allocated and not used is told at once;
* what one does alone is the best that it does for a good part of its turn: in the beginning it waits for its pages,
  at once or bit by bit, and work that is submitted says nothing of when they came. What a turn did less than that is
  what it lost, and a quantum is as long as it takes for that to be a small part of it; all have the longest one;
* whoever holds the turn and does nothing, has stopped or died, loses it at once; and all do when the sets fit again.

Pure: sightings and the time go in, decisions come out; one `Turns` per GPU remembers what went before. Sizes
that containers say are bounded before they come here (`trust`). Who lies about its progress can end the turns early or
lengthen the quanta of all, up to the longest, and so can one that really works like that; nobody gets more than its
share of the turns. Tests: tests/unit/gigaslice/limits/test_time_slicing.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Decision", "Sighting", "Turns"]

SETTLE, WINDOW, LONG_WINDOW = 0.5, 0.5, 10.0
"""Seconds for which containers are left together before they are watched, since pages come first; and are watched, at
least, and at most where they should have done little work in that time."""
ACTIVE = 1.0
"""Seconds without work after which a container does not want the GPU any more."""
IDLE = 0.15
"""Seconds without work after which a holder loses its turn; where that is more, three of its longest gaps, or what
a change of turns costs: a host that is late must not cost more than the waiting."""
FIRST, SHORTEST, LONGEST = 1.0, 0.2, 30.0
"""Seconds of a quantum."""
ENOUGH = 4
"""Pieces of work that a turn has at least, since the first of them waits for the pages."""
EMPTYING = 0.25
"""Seconds for which nobody may submit while what others have queued still runs, before a turn begins."""
STILL = 0.01
"""Part of the GPU's room that page faults move in a second where they do not matter."""
TRIES = 4
"""Rounds of turns for finding out what each does alone, before the containers are watched together again."""
LOST, UNSURE = 0.04, 0.02
"""Part of a quantum that may be lost to moving pages, and part that is no more than an error of measuring."""
SPAN, PART = 0.5, 4
"""Seconds of work that tell how fast it is, and at least so great a part of the turn."""
FASTER, SLOWER = 16.0, 0.7
"""By how much a quantum changes at most from one turn to the next."""
HELPFUL = 0.8
"""Turns go on while together the containers do less than this part of what they do in turns."""
SOON, AGAIN, AGAIN_MOST = 30.0, 60.0, 300.0
"""Seconds until what was decided is tried anew: at once in the beginning, later, and at most."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A container on one GPU at one instant. progress: pieces of work submitted ever since. waiting: it is being held
    back now. busy: it waits for work that is under way, or what it had queued before it was held is. managed: its bytes
    that may move. alive: some process of it lives and has not been stopped. willing: it takes part in turns.
    """

    progress: int
    waiting: bool
    managed: int
    busy: bool = False
    alive: bool = True
    willing: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """holder: whose turn it is, None: everybody's. held: those that must wait. short: those that must not queue work
    for long; the holder is one of them. wanting: how many want the GPU."""

    holder: str | None = None
    held: frozenset[str] = frozenset()
    short: frozenset[str] = frozenset()
    wanting: int = 0
    fits: bool = True


@dataclass(slots=True)
class _Known:
    progress: int
    worked: float  # when it last made progress
    gap: float = 0.0  # longest pause between two pieces of work, fading
    solo: float = 0.0  # progress per second when it is alone; 0: not known
    lost: float = 0.0  # seconds that its last whole turn lost
    quantum: float = FIRST
    served: float = -1.0  # when its last turn ended
    start: int = 0  # progress at the begin of the window or turn


class Turns:
    """Decides for one GPU."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._mode = "free"  # "free", "together", "turns"
        self._since = 0.0  # begin of the window, or of the turn
        self._holder: str | None = None
        self._course: list[tuple[float, int]] = []  # times and progress of the turn
        self._round: dict[str, float] = {}  # normalised progress of the turns since the round began
        self._round_began = 0.0
        self._rates: dict[str, float] = {}  # of the last window
        self._watched = 0.0  # its length
        self._moved: int | None = None  # bytes that page faults have moved, as the driver counts
        self._moving: float | None = None  # of them, since the window began; None: not known
        self._again = AGAIN
        self._given = 0.0  # when the turn was given
        self._emptying = False  # what others had queued may still run
        self._disturbed = False  # and ran for longer than was waited for
        self._settled = 0.0  # when the present mode was judged to be right
        self._tries = 0  # rounds that have not told it
        self._learning = False  # this round is to tell what each does alone
        self._measuring = False  # the window is open
        self.changes = 0
        """Turns given so far."""

    @property
    def hurries(self) -> bool:
        """Whether the next look decides when somebody may go on: it should come soon."""
        return self._mode == "turns" and self._emptying

    @property
    def mode(self) -> str:
        """ "free": nothing to decide; "together": watched; "turns"."""
        return self._mode

    def quantum(self, name: str) -> float:
        """Seconds of that container's next turn."""
        known = self._known.get(name)
        return known.quantum if known else FIRST

    def look(self, now: float, room: int, seen: Mapping[str, Sighting], moved: int | None = None) -> Decision:
        """What to do now. ROOM: bytes of the GPU beside all that cannot move. MOVED: bytes that page faults have moved
        to it and away ever since, where the driver says so."""
        self._note(now, seen)
        self._note_moved(moved)
        wanting = [name for name, one in seen.items() if one.willing and self._wants(now, name, one)]
        fits = sum(seen[name].managed for name in wanting) <= room
        if len(wanting) < 2 or fits:
            self._let_go()
            return Decision(wanting=len(wanting), fits=fits)
        if self._mode == "free":
            self._watch(now)
        if self._mode == "together":
            self._judge_window(now, wanting, room)
        if self._mode == "turns":
            self._keep_turning(now, seen, wanting)
        willing = frozenset(name for name, one in seen.items() if one.willing)
        if self._mode != "turns":
            return Decision(None, frozenset(), willing, len(wanting), fits=False)
        if self._emptying and now - self._given < EMPTYING:
            return Decision(None, willing, frozenset(), len(wanting), fits=False)
        own = willing & {self._holder}
        return Decision(self._holder, willing - own, own, len(wanting), fits=False)

    def _note(self, now: float, seen: Mapping[str, Sighting]) -> None:
        for name in self._known.keys() - seen.keys():
            del self._known[name]
        for name, one in seen.items():
            known = self._known.get(name)
            if known is None or one.progress < known.progress:  # its file is its own
                self._known[name] = _Known(
                    one.progress, now if one.progress else now - ACTIVE, start=one.progress
                )
            elif one.progress > known.progress:
                if name == self._holder and known.progress > known.start:
                    known.gap = max(min(now - known.worked, ACTIVE), known.gap * 0.9)
                known.progress, known.worked = one.progress, now
            if name == self._holder:
                self._course.append((now, known.progress if known else one.progress))

    def _note_moved(self, moved: int | None) -> None:
        """A count that begins anew, or ends, says nothing of the window in which it does."""
        if moved is None or self._moved is None or moved < self._moved:
            self._moving = None
        elif self._moving is not None:
            self._moving += moved - self._moved
        self._moved = moved

    def _wants(self, now: float, name: str, one: Sighting) -> bool:
        recently = now - self._known[name].worked < ACTIVE
        return one.alive and one.managed > 0 and (one.waiting or one.busy or recently)

    def _let_go(self) -> None:
        self._mode, self._holder, self._again, self._learning = "free", None, AGAIN, False

    def _watch(self, now: float) -> None:
        self._mode, self._holder, self._since, self._measuring = "together", None, now, False

    def _open_window(self, now: float) -> None:
        self._since, self._measuring = now, True
        self._moving = None if self._moved is None else 0.0
        for known in self._known.values():
            known.start = known.progress

    def _judge_window(self, now: float, wanting: list[str], room: int) -> None:
        if not self._measuring:
            if now - self._since >= SETTLE:
                self._open_window(now)
            return
        passed = now - self._since
        if passed < self._window(wanting):
            return
        self._watched = passed
        self._rates = {
            name: (self._known[name].progress - self._known[name].start) / passed for name in wanting
        }
        if self._moving is not None and self._moving < STILL * room * passed:
            self._watch(now)  # whatever progress is, it is not pages that it waits for
        elif any(not self._known[name].solo for name in wanting):
            self._learning, self._tries = True, 0
            self._begin_turns(now)
        elif self._done_together(wanting) < HELPFUL:
            self._begin_turns(now)
        elif now - self._settled > self._again:
            self._again = min(AGAIN_MOST, self._again * 2)
            self._begin_turns(now)
        else:
            self._watch(now)

    def _window(self, wanting: list[str]) -> float:
        """Seconds in which each would do enough alone to say whether it did much less."""
        slowest = min((self._known[name].solo for name in wanting), default=0.0)
        return min(LONG_WINDOW, max(WINDOW, 2 * ENOUGH / slowest)) if slowest else WINDOW

    def _done_together(self, wanting: list[str]) -> float:
        """What the window's progress was worth, in seconds of a GPU alone per second."""
        return sum(
            self._rates.get(name, 0.0) / self._known[name].solo for name in wanting if self._known[name].solo
        )

    def _begin_turns(self, now: float) -> None:
        self._mode, self._holder, self._round, self._round_began = "turns", None, {}, now

    def _keep_turning(self, now: float, seen: Mapping[str, Sighting], wanting: list[str]) -> None:
        holder = self._holder
        if holder is not None and holder in seen:
            known, one = self._known[holder], seen[holder]
            if self._emptying and one.alive and self._wait_for_others(now, holder, seen):
                self._begin_course(now, known)
                return
            done = known.progress - known.start
            quantum = max(self._known[name].quantum for name in {holder, *wanting})  # parts are equal
            over = now - self._since >= (quantum if done >= ENOUGH else LONGEST)
            patience = max(IDLE, 3 * known.gap, min(known.lost, ACTIVE))
            quiet = not one.busy and now - max(known.worked, self._since) > patience
            if one.alive and one.willing and one.managed and not over and not quiet:
                return
            self._end_turn(now, holder, full=over and one.alive and not quiet)
        elif holder is not None:
            self._holder = None
        if self._round_is_over(wanting) and not self._turns_help(now, wanting):
            self._settled = now
            self._watch(now)
            return
        # Who was just served and did nothing is no candidate while others wait.
        self._give(now, min(wanting, key=lambda name: (name == holder, self._known[name].served, name)))

    def _give(self, now: float, name: str) -> None:
        known = self._known[name]
        self._holder, self._since = name, now
        self._begin_course(now, known)
        self._given, self._emptying, self._disturbed = now, True, False
        self.changes += 1

    def _begin_course(self, now: float, known: _Known) -> None:
        self._since, known.start = now, known.progress
        self._course = [(now, known.progress)]

    def _wait_for_others(self, now: float, holder: str, seen: Mapping[str, Sighting]) -> bool:
        """Whether what others had queued still runs: the turn has not begun then, since that takes the pages away. Only
        in the beginning queues may be long; later, when they have been short for a while, it is not believed."""
        running = any(one.busy and one.willing for name, one in seen.items() if name != holder)
        late = now - self._given >= (LONGEST if self._learning else EMPTYING)
        self._emptying, self._disturbed = running and not late, running and late
        return self._emptying

    def _end_turn(self, now: float, name: str, *, full: bool) -> None:
        known = self._known[name]
        known.served, self._holder = now, None
        done, passed = known.progress - known.start, now - self._since
        if self._disturbed:
            full = False  # it says nothing of what the container does alone
        if full and done > 1:
            rate = _fastest(self._course, max(SPAN, passed / PART))
            if not known.solo:
                known.solo = rate
            elif (
                rate > known.solo or passed >= 2 * SPAN
            ):  # a shorter turn may have had no time without pages coming
                known.solo += (rate - known.solo) / (2 if rate > known.solo else 4)
        if full and known.solo:
            before = min(self._since - self._given, EMPTYING)
            known.lost = max(0.0, before + passed * (1 - UNSURE) - done / known.solo)
            wanted = min(max(known.lost / LOST, known.quantum * SLOWER), known.quantum * FASTER)
            known.quantum = min(LONGEST, max(SHORTEST, wanted))
        self._round[name] = self._round.get(name, 0.0) + (done / known.solo if known.solo else 0.0)

    def _round_is_over(self, wanting: list[str]) -> bool:
        return self._holder is None and all(name in self._round for name in wanting)

    def _turns_help(self, now: float, wanting: list[str]) -> bool:
        """At the end of a round. When turns have gone on for long, the containers are watched together again."""
        if self._learning and any(not self._known[name].solo for name in wanting) and self._tries < TRIES:
            self._tries += 1
            self._round, self._round_began = {}, now
            return True
        if self._learning:
            self._learning = False
            return self._was_slow(now, wanting)
        passed = now - self._round_began
        in_turns = sum(self._round.values()) / passed if passed > 0 else 0.0
        self._round, self._round_began = {}, now
        if self._rates and self._done_together(wanting) >= HELPFUL * in_turns:
            return False
        if self._settled and now - self._settled > self._again:
            self._again = min(AGAIN_MOST, self._again * 2)
            return False
        if not self._settled:
            self._settled = now
        return True

    def _was_slow(self, now: float, wanting: list[str]) -> bool:
        """Whether, now that it is known what each does alone, the window before tells enough: else another one must."""
        if self._watched < self._window(wanting) or any(name not in self._rates for name in wanting):
            return False
        self._round, self._round_began = {}, now
        self._settled = now - self._again + SOON  # in that window pages may have come for the first time
        return self._done_together(wanting) < HELPFUL


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
