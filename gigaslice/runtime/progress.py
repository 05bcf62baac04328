# SPDX-License-Identifier: Apache-2.0
"""What a step does and how far it is, on standard error: for every step that takes longer than two seconds.

Where a person watches, one line that changes; else whole lines, the first after some seconds and then ever more rarely,
as a log wants them. A thread draws it, so that the time goes on while the step waits for another program. What the
command itself prints meanwhile goes above the line. Steps that are over at once show nothing.

Does not print results, and never ends a step: where standard error cannot be written, nothing is shown.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, TextIO, TypeVar, cast

from gigaslice.core.text import plain
from gigaslice.runtime.command_line.command import speaker
from gigaslice.runtime.terminal import terminal

__all__ = ["Phase", "StepProgress", "bar_line", "each", "phase_text"]

T = TypeVar("T")

_DELAY = 1.0  # seconds for which nothing is drawn
_REDRAWN = 0.5  # seconds between two drawings by the thread
_FIRST = 2.0  # seconds until the first whole line
_NEW, _SAME, _LONGEST = 5.0, 10.0, 60.0  # between two: of a new phase, of the same one at first and at most
_BAR, _LEAST_TEXT = 20, 24  # characters of the bar, and of a text that it stands beside
_SURE_SECONDS, _SURE_SHARE = 5.0, 0.02  # from then on the rest is estimated


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a step, as far as it is. done, total: in any unit; total 0: not known. since: of the clock.

    name: what tells it from another phase. form: how an amount is written; None: the text says it, and the amount only
    moves the bar. even: its parts take about the same time each, so the rest can be estimated. timed: whether it is
    told for how long it goes on, where the rest is not.
    """

    name: str
    text: str
    since: float
    done: float = 0
    total: float = 0
    begun_at: float = 0
    form: Callable[[int], str] | None = None
    rate: bool = False
    even: bool = False
    timed: bool = True

    @property
    def share(self) -> float | None:
        """How much of it is done, 0 to 1; None: not known."""
        return min(1.0, max(0.0, self.done / self.total)) if self.total > 0 else None


def phase_text(phase: Phase, now: float) -> str:
    """What there is to say of PHASE: "hashed 1 GiB of 4 GiB, 200 MiB/s, 15 s left"."""
    seconds = now - phase.since
    words = [phase.text]
    if phase.form is not None and (phase.done or phase.total):
        of = f" of {phase.form(int(phase.total))}" if phase.total else ""
        words[0] = f"{phase.text} {phase.form(int(phase.done))}{of}".lstrip()
    speed = (phase.done - phase.begun_at) / seconds if seconds > 0 else 0.0
    if phase.rate and phase.form is not None and seconds >= 1:
        words.append(f"{phase.form(int(speed))}/s")
    left = _left(phase, seconds, speed)
    if left is not None:
        words.append(f"{_span(left)} left")
    elif seconds >= 1 and phase.timed:
        words.append(_span(seconds))
    return ", ".join(filter(None, words))


def bar_line(share: float | None, text: str, columns: int) -> str:
    """A line of less than COLUMNS characters: a line that wraps cannot be drawn over."""
    room = columns - 1
    bar = ""
    if share is not None and room >= _BAR + 8 + _LEAST_TEXT:
        bar = f"[{'#' * int(share * _BAR):<{_BAR}}] {int(share * 100):3}% "
    return (bar + plain(text))[: max(0, room)]


class StepProgress:
    """Shows the progress of a step. Use it as a context manager, one at a time: within another one it shows nothing."""

    def __init__(
        self, text: str = "", *, name: str = "", quiet: bool = False, clock: Callable[[], float] | None = None
    ) -> None:
        """Initializes it.

        Args:
            text: What the step does.
            name: How whole lines begin; empty: with the command's name.
            quiet: Whether nothing is shown.
            clock: Tells seconds; None: the machine's.
        """
        self._clock = clock = clock or time.monotonic
        self._name = name
        self._phase = Phase(text, text, clock())
        self._begun = self._told = clock()
        self._pause = _SAME
        self._said: str | None = None  # the name of the phase that the last whole line told of
        self._quiet = quiet
        self._screen = terminal(sys.stderr)
        self._stream = sys.stderr
        self._drawn = False
        self._lock = threading.RLock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._outputs: tuple[TextIO, TextIO] | None = None

    def __enter__(self) -> StepProgress:
        if self._quiet or _Shown.progress is not None:
            self._quiet = True
            return self
        _Shown.progress = self
        if self._screen.live:
            self._outputs = (sys.stdout, sys.stderr)
            sys.stdout, sys.stderr = (cast(TextIO, _Above(stream, self)) for stream in self._outputs)
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if _Shown.progress is not self:
            return
        _Shown.progress = None
        self._end.set()
        if self._thread is not None:
            self._thread.join(1.0)
        self._give_back()
        self.clear()

    def show(
        self,
        text: str,
        done: float = 0,
        total: float = 0,
        *,
        form: Callable[[int], str] | None = None,
        rate: bool = False,
        even: bool = False,
        timed: bool = True,
        phase: str = "",
    ) -> None:
        """Says what is done now, and how far it is: see Phase. A new PHASE, without one a new TEXT, begins anew."""
        now, name = self._clock(), phase or text
        with self._lock:
            before = self._phase
            same = name == before.name
            since, begun_at = (before.since, before.begun_at) if same else (now, done)
            self._phase = Phase(name, text, since, done, total, begun_at, form, rate, even, timed)

    def clear(self) -> None:
        """Takes the line away, so that another can be printed."""
        with self._lock:
            if self._drawn:
                self._drawn = False
                self._write("\r\x1b[K")

    def tick(self) -> None:
        """Shows how far it is by now, where something is due."""
        now = self._clock()
        with self._lock:
            if self._quiet or _Shown.progress is not self:
                return
            if self._screen.live:
                if now - self._begun >= _DELAY and not _Shown.inside_a_line:
                    line = bar_line(self._phase.share, phase_text(self._phase, now), _columns(self._stream))
                    self._write(f"\r{line}\x1b[K")
                    self._drawn = True
            elif now - self._told >= self._due_after():
                if self._said == self._phase.name:
                    self._pause = min(_LONGEST, 2 * self._pause)
                self._told, self._said = now, self._phase.name
                self._write(f"{plain(f'{self._name or speaker()}: {phase_text(self._phase, now)}')}\n")

    def _due_after(self) -> float:
        """Seconds from one whole line to the next. What begins is of more interest than that it goes on."""
        if self._said is None:
            return _FIRST
        return self._pause if self._said == self._phase.name else _NEW

    def _run(self) -> None:
        while not self._end.wait(_REDRAWN):
            self.tick()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()

    def _give_back(self) -> None:
        if self._outputs is not None:
            sys.stdout, sys.stderr = self._outputs
            self._outputs = None


def each(
    items: Iterable[T], text: str | Callable[[T], str], *, total: int = 0, name: str = "", even: bool = False
) -> Iterator[T]:
    """Yields ITEMS and shows which it is at: in the progress that is shown, else in one of its own.

    Args:
        items: What a loop goes through.
        text: What it does, or tells it of an item.
        total: How many there are; 0: as many as `len` says, where it does.
        name: How whole lines begin; empty: with the command's name.
        even: Whether all take about the same time.
    """
    of = total or (len(items) if isinstance(items, Sized) else 0)
    with contextlib.ExitStack() as stack:
        progress = _Shown.progress or stack.enter_context(StepProgress(name=name))
        for number, item in enumerate(items, 1):
            words, phase = (text, text) if isinstance(text, str) else (f"{text(item)},", str(number))
            words += f" {number} of {of}" if of else f" {number}"
            progress.show(words, number - 1, of, even=even, phase=phase)
            yield item


class _Shown:
    """The progress that is shown now, and whether what was printed last ends in the middle of a line."""

    progress: StepProgress | None = None
    inside_a_line = False


class _Above:
    """Standard output or standard error while a line is drawn: what is written goes above that line."""

    def __init__(self, stream: Any, progress: StepProgress) -> None:
        self._stream, self._progress = stream, progress
        self._on_screen = terminal(stream).live

    def write(self, text: str) -> int:
        """Writes TEXT, in the place of the line."""
        if not self._on_screen or not text:
            return int(self._stream.write(text))
        with self._progress._lock:
            self._progress.clear()
            _Shown.inside_a_line = not text.endswith("\n")
            written = int(self._stream.write(text))
            self._stream.flush()
            return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _left(phase: Phase, seconds: float, speed: float) -> float | None:
    """Seconds until the end, where that can be told."""
    share = phase.share
    if not phase.even or share is None or seconds < _SURE_SECONDS or share < _SURE_SHARE or speed <= 0:
        return None
    return (phase.total - phase.done) / speed


def _span(seconds: float) -> str:
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _columns(stream: Any) -> int:
    """Asked anew each time: windows change their size."""
    return terminal(stream).columns


def _in_child() -> None:
    """A process that is forked meanwhile shows nothing, and has no thread that would."""
    progress = _Shown.progress
    if progress is not None:
        _Shown.progress = None
        progress._lock = threading.RLock()
        progress._thread = None
        progress._give_back()


os.register_at_fork(after_in_child=_in_child)
