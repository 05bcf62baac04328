# SPDX-License-Identifier: Apache-2.0
"""Who decides about colours and lines that are drawn over: the stream, and what the user says in the environment."""

import io

import pytest

from gigaslice.runtime.terminal import Terminal, painted, terminal


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("environment, live, colour", [
    ({}, True, True), ({"TERM": "xterm-256color"}, True, True), ({"TERM": "dumb"}, False, False),
    ({"NO_COLOR": "1"}, True, False), ({"NO_COLOR": ""}, True, True), ({"CLICOLOR": "0"}, True, False),
    ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False), ({"TERM": "dumb", "FORCE_COLOR": "1"}, False, True),
])  # fmt: skip
def test_a_terminal(environment, live, colour):
    assert terminal(Screen(), environment) == Terminal(live, colour, 80)


@pytest.mark.parametrize("environment, colour", [
    ({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "0"}, False), ({"FORCE_COLOR": ""}, False),
    ({"CLICOLOR_FORCE": "1"}, True), ({"CLICOLOR_FORCE": "0"}, False), ({"CLICOLOR": "1"}, False),
    ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
])  # fmt: skip
def test_a_pipe(environment, colour):
    assert terminal(io.StringIO(), environment) == Terminal(False, colour, 200)


@pytest.mark.parametrize("columns, width", [("40", 40), ("0", 80), ("wide", 80), ("٤٠", 80)])
def test_the_width_that_the_user_says(columns, width):
    assert terminal(Screen(), {"COLUMNS": columns}).columns == width


def test_there_may_be_no_stream():
    closed = Screen()
    closed.close()
    assert not terminal(None, {}).live
    assert terminal(closed, {}).columns == 80


def test_what_is_painted():
    assert painted("x", "bad") == "\x1b[31mx\x1b[0m"
    assert painted("x", "") == "x" and painted("", "bad") == ""
