# SPDX-License-Identifier: Apache-2.0
"""`make bench`: which parts there are, and that each says which it is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gigaslice.runtime.command_line import command
from tests.bench import __main__ as bench

FOLDER = Path(bench.__file__).parent


def test_every_program_that_prints_a_table_is_a_part() -> None:
    programs = set()
    for path in FOLDER.glob("*.py"):
        functions = {
            node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
        }
        # One is started by another, and one has a page and a target of its own.
        if "main" in functions and path.stem not in ("__main__", "slow_service", "sizing"):
            programs.add(f"tests.bench.{path.stem}")
    assert {command[0] for command in bench.PARTS.values()} == programs | {"pytest"}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """What is run; the part fits fails."""
    run: list[list[str]] = []

    def process(words: list[str], **_: object) -> SimpleNamespace:
        run.append(words)
        return SimpleNamespace(returncode=4 if "tests.bench.fits" in words else 0)

    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(command._Speaker, "name", "")  # so that it is what it was afterwards
    monkeypatch.setattr(subprocess, "run", process)
    return run


def test_parts_run_one_after_the_other_and_each_is_named(
    commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["crowd", "decisions"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "bench: 1 of 3: compiling the harness", "bench: 2 of 3: crowd", "bench: 3 of 3: decisions",
    ]  # fmt: skip
    assert commands[0][-1] == "-ldl" and commands[1] == [sys.executable, "-m", "tests.bench.crowd"]
    assert commands[2][2] == "pytest"


def test_the_first_that_fails_ends_it(commands: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["fits", "crowd"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "bench: error: fits ended with 4"
    assert len(commands) == 2


def test_a_part_that_does_not_exist(commands: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["crwd"])
    assert "there is no part 'crwd'" in capsys.readouterr().err and not commands
