# SPDX-License-Identifier: Apache-2.0
"""--watch: pictures one after the other, or over each other, until somebody has seen enough."""

import argparse
import os
import re
import sys

import pytest

from gigaslice.core.errors import GigasliceError
from gigaslice.runtime.command_line import watch
from gigaslice.runtime.command_line.command import speak_as
from gigaslice.runtime.command_line.watch import Picture, add_watch, show
from tests.fakes.terminal import Terminal


def interrupted_after(monkeypatch, times):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == times:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", sleep)
    return slept


def pictures(*them):
    rest = iter(them)

    def picture():
        now = next(rest)
        if isinstance(now, Exception):
            raise now
        return now

    return picture


def test_once(capsys):
    speak_as("gigaslice top")
    assert show(lambda: Picture("table", ("note: a",)), None) == 0
    assert capsys.readouterr() == ("table\n", "gigaslice top: note: a\n")
    assert show(lambda: Picture("", errors=("gone",)), None) == 1
    assert capsys.readouterr() == ("", "gigaslice top: error: gone\n")
    speak_as("gigaslice")


def test_without_a_terminal_one_after_the_other_and_each_line_beside_them_once(capsys, monkeypatch):
    slept = interrupted_after(monkeypatch, 3)
    one = Picture("table", ("note: a",), ("b cannot be read",))
    assert show(pictures(one, one, Picture("other", ("note: a",))), 7.0) == 0
    out, err = capsys.readouterr()
    assert out == "table\ntable\nother\n" and slept == [7.0] * 3
    assert err == "gigaslice: note: a\ngigaslice: error: b cannot be read\n"


def test_an_error_ends_it_only_the_first_time(capsys, monkeypatch):
    with pytest.raises(GigasliceError):
        show(pictures(GigasliceError("refused")), 1.0)
    interrupted_after(monkeypatch, 4)
    gone = GigasliceError("the API server is not reached")
    assert show(pictures(Picture("table"), gone, gone, Picture("again")), 1.0) == 0
    out, err = capsys.readouterr()
    assert out == "table\nagain\n"
    assert err == "gigaslice: error: the API server is not reached\n"


PROGRAM = """
import sys, time, types
from gigaslice.core.errors import GigasliceError
from gigaslice.runtime.table import Column, as_table
from gigaslice.runtime.command_line import watch
from gigaslice.runtime.command_line.watch import Picture, show
count = 0
watch.time = types.SimpleNamespace(monotonic=lambda: 7.0 * count, sleep=time.sleep)
def picture():
    global count
    count += 1
    if 3 <= count <= 4:
        raise GigasliceError("the API server is not reached")
    rows = [[str(row), "bad"] for row in range(40)]
    table = as_table([Column(f"ROUND {count}"), Column("STATE", style=lambda cell: "bad")], rows)
    return Picture(table, ("note: one is missing",))
sys.exit(show(picture, 0.2))
"""


@pytest.mark.parametrize("colour", [True, False])
def test_on_a_terminal_it_is_drawn_over_and_says_what_failed(colour):
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm", "COLUMNS": "60", "LINES": "10", **({} if colour else {"NO_COLOR": "1"})}
    with Terminal([sys.executable, "-c", PROGRAM], env=environment) as terminal:
        terminal.read_until("ROUND 6")
        terminal.type("\x03")
        assert terminal.wait() == 0
    text = terminal.text
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1, "a screen of its own, given back"
    assert "\x1b[2J" not in text.partition("ROUND 1")[2], "which nothing empties between two pictures"
    words = " ".join(text.split())
    for age in ("7 s", "14 s"):
        assert f"error: the API server is not reached; below is what was there {age} ago" in words, (
            "and no word is cut off"
        )
    assert "note: one is missing" in text and "(33 more lines)" in text and "(35 more lines)" in text
    assert ("\x1b[31mbad" in text) is colour
    assert re.search(r"\x1b\[[0-9;]*3[0-9]m", text.partition("ROUND 1")[2]) is not None or not colour


@pytest.mark.parametrize(
    "words, seconds", [([], None), (["--watch"], 2.0), (["-w", "0.5"], 0.5), (["--watch=9"], 9.0)]
)
def test_the_interval(words, seconds):
    parser = argparse.ArgumentParser()
    add_watch(parser)
    assert parser.parse_args(words).watch == seconds


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "3601"])
def test_an_interval_that_makes_no_sense(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"write a number from 0\.1 to 3600"):
        watch.interval(text)
