# SPDX-License-Identifier: Apache-2.0
"""The terminal in which tests start programs is the program's own, and says what a program has done instead."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.fakes.terminal import Terminal


def test_keys_signals_and_exit_codes_are_those_of_a_terminal() -> None:
    program = "import os; print(os.isatty(2), os.tcgetpgrp(0) == os.getpgrp()); exit(len(input('name? ')))"
    with Terminal([sys.executable, "-c", program]) as terminal:
        terminal.read_until(r"name\? ")
        terminal.type("tree\n")
        assert terminal.wait() == 4
    assert terminal.text.startswith("True True\r\n")


def test_each_match_is_after_the_one_before() -> None:
    with Terminal(["printf", "a1 a2 a3"]) as terminal:
        assert [terminal.read_until(r"a(\d)")[1] for _ in range(3)] == ["1", "2", "3"]
        with pytest.raises(pytest.fail.Exception, match="has ended without a: a1 a2 a3"):
            terminal.read_until("a")


def test_a_program_that_shows_nothing_fails_the_test_and_is_killed() -> None:
    with Terminal(["sleep", "60"]) as terminal, pytest.raises(pytest.fail.Exception, match="nothing more"):
        terminal.read_until("a", seconds=0.1)
    assert terminal.process.returncode == -signal.SIGKILL
