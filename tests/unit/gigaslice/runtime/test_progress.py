# SPDX-License-Identifier: Apache-2.0
"""StepProgress: what is said how often, on a terminal and without one."""

import io
import os
import re
import subprocess
import sys
from subprocess import PIPE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.units import format_bytes
from gigaslice.runtime import progress as module
from gigaslice.runtime.command_line.command import speak_as
from gigaslice.runtime.progress import Phase, StepProgress, bar_line, each, phase_text
from tests.fakes.terminal import Terminal

MIB = 1 << 20


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """The time, which the test moves; no thread draws by itself."""
    monkeypatch.setattr(StepProgress, "_run", lambda self: None)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return [100.0]


def shown(clock, **options):
    return StepProgress("reading", clock=lambda: clock[0], **options)


@pytest.mark.parametrize("phase, text", [
    (Phase("", "hashing", 0), "hashing, 10 s"),
    (Phase("", "reading:", 0, 3400, form=str), "reading: 3400, 10 s"),
    (Phase("", "hashed", 0, 100 * MIB, 400 * MIB, 0, format_bytes, True, True),
     "hashed 100 MiB of 400 MiB, 10 MiB/s, 30 s left"),
    (Phase("", "hashed", 0, 1 * MIB, 400 * MIB, 0, format_bytes, True, True),
     "hashed 1 MiB of 400 MiB, 102 KiB/s, 10 s"),
    (Phase("", "hashed", 0, 200 * MIB, 400 * MIB, 100 * MIB, format_bytes, True, True),
     "hashed 200 MiB of 400 MiB, 10 MiB/s, 20 s left"),
    (Phase("", "", 0, 3, 18, 0, str), "3 of 18, 10 s"),
    (Phase("", "fetching 5 % of 1 GiB", 0, 0.05, 1.0, timed=False), "fetching 5 % of 1 GiB"),
    (Phase("", "pairs 3 of 12", 0, 2, 12, 0, even=True), "pairs 3 of 12, 50 s left"),
])  # fmt: skip
def test_what_is_said_of_a_phase(phase, text):
    assert phase_text(phase, 10.0) == text


def test_the_rest_is_estimated_only_where_that_is_honest():
    def left(seconds, done, even):
        return "left" in phase_text(Phase("", "x", 0, done, 100, 0, str, False, even), seconds)

    assert left(10, 50, True)
    assert not left(10, 50, False), "its parts differ"
    assert not left(4, 50, True), "too soon"
    assert not left(10, 1, True), "too little of it"
    assert not left(10, 0, True)


@given(st.one_of(st.none(), st.floats(0, 1)), st.text(), st.integers(0, 200))
def test_a_line_fits(share, text, columns):
    line = bar_line(share, text, columns)
    assert line.isprintable() and len(line) < max(columns, 1)


def test_a_bar_is_for_who_has_room_for_it():
    assert bar_line(0.5, "reading", 80) == "[##########          ]  50% reading"
    assert bar_line(0.5, "reading", 40) == "reading"
    assert bar_line(None, "reading", 80) == "reading"


def test_without_a_terminal_there_are_whole_lines_ever_more_rarely(clock, monkeypatch):
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    speak_as("gigaslice dataset pack")
    times = []
    with shown(clock) as progress:
        for seconds in range(300):
            clock[0] = 100.0 + seconds
            before = err.tell()
            progress.tick()
            if err.tell() != before:
                times.append(seconds)
    speak_as("gigaslice")
    assert times == [2, 12, 32, 72, 132, 192, 252]
    assert err.getvalue().splitlines()[:2] == [
        "gigaslice dataset pack: reading, 2 s",
        "gigaslice dataset pack: reading, 12 s",
    ]
    assert "\r" not in err.getvalue() and "\x1b" not in err.getvalue()


def test_a_new_phase_is_told_soon_and_not_at_once(clock, monkeypatch):
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    with shown(clock, name="bench") as progress:
        for seconds in range(20):
            clock[0] = 100.0 + seconds
            progress.show(f"part {seconds // 3}", seconds // 3, 6, form=str)
            progress.tick()
    assert [line.split(",")[0] for line in err.getvalue().splitlines()] == [
        "bench: part 0 0 of 6", "bench: part 2 2 of 6", "bench: part 4 4 of 6", "bench: part 5 5 of 6",
    ]  # fmt: skip


def test_on_a_terminal_one_line_is_drawn_over_and_taken_away(clock, monkeypatch):
    err = Screen()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "stdout", err)
    with shown(clock) as progress:
        progress.tick()
        assert err.getvalue() == "", "it may be over at once"
        clock[0] += 3
        progress.tick()
        print("a result")
        progress.tick()
        print("half ", end="")
        progress.tick()
        print("a line")
    line, away = "\rreading, 3 s\x1b[K", "\r\x1b[K"
    assert err.getvalue() == f"{line}{away}a result\n{line}{away}half a line\n"
    assert sys.stdout is err is sys.stderr


def test_what_goes_into_a_pipe_is_not_touched(clock, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", Screen())
    with shown(clock) as progress:
        clock[0] += 3
        progress.tick()
        print("a result")
        progress.tick()
    assert out.getvalue() == "a result\n"


@pytest.mark.parametrize("quiet, shows", [
    ((False, False), ["outer"]), ((True, False), ["inner"]), ((False, True), ["outer"]), ((True, True), []),
])  # fmt: skip
def test_quiet_and_within_another_one_nothing_is_shown(clock, monkeypatch, quiet, shows):
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    outer_quiet, inner_quiet = quiet
    with shown(clock, quiet=outer_quiet, name="outer") as outer:
        with shown(clock, quiet=inner_quiet, name="inner") as inner:
            clock[0] += 3
            inner.tick()
        outer.tick()
    assert [line.partition(":")[0] for line in err.getvalue().splitlines()] == shows
    assert module._Shown.progress is None


@pytest.mark.parametrize("outer", [True, False])
def test_a_loop_shows_which_item_it_is_at(clock, monkeypatch, outer):
    said = []
    monkeypatch.setattr(
        StepProgress, "show", lambda self, text, done, total, **more: said.append((text, done, total))
    )
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with shown(clock, quiet=not outer):
        assert list(each("ab", "letters")) == ["a", "b"]
        assert list(each(iter([5]), lambda item: f"number {item}", total=9)) == [5]
        assert (module._Shown.progress is not None) is outer
    assert said == [("letters 1 of 2", 0, 2), ("letters 2 of 2", 1, 2), ("number 5, 1 of 9", 0, 9)]
    for _ in each(range(3), "a loop that is left"):
        break
    assert module._Shown.progress is None


def test_a_stream_that_is_gone_ends_no_step(clock, monkeypatch):
    gone = Screen()
    monkeypatch.setattr(sys, "stderr", gone)
    with shown(clock) as progress:
        gone.close()
        clock[0] += 3
        progress.tick()


SLEEPER = """
import os, sys, time
from gigaslice.runtime.progress import StepProgress
with StepProgress("waiting for it"):
    if os.fork() == 0:
        print("the child", type(sys.stdout).__name__, flush=True)
        time.sleep(1.5)
        os._exit(0)
    os.wait()
    print("it has ended", flush=True)
    sys.stdin.read()
"""


def test_ctrl_c_leaves_a_clean_line():
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "50"}
    with Terminal([sys.executable, "-c", SLEEPER], env=environment) as terminal:
        terminal.read_until(r"(?s)it has ended.*waiting for it, \d+ s")
        terminal.type("\x03")
        terminal.wait()
    assert "the child TextIOWrapper\r\n" in terminal.text, "which has its streams back"
    before, _, after = terminal.text.rpartition("\r\x1b[K")
    assert "waiting for it" in before and "Traceback" in after
    assert "waiting for it, " not in after.split("\r\n")[0]


def test_a_pipe_gets_lines_by_the_thread():
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        stdout, rest = process.communicate(timeout=60)
    assert stdout == "the child TextIOWrapper\nit has ended\n"
    seconds = re.fullmatch(r"gigaslice: waiting for it, (\d+) s\n", first)
    assert seconds is not None and int(seconds[1]) >= 2 and rest == ""
    assert process.returncode == 0
