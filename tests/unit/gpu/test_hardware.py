# SPDX-License-Identifier: Apache-2.0
"""docs/proofs/hardware.md: each row names cases, checks and files that exist, and no assumption is without its row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.gpu import cases
from tests.gpu.report import TABLE

ROOT = Path(__file__).resolve().parents[3]
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in TABLE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| assumption"))
]


TOPS = ("native/", "gigaslice/", "agent/")
"""Where the code is that takes it for granted."""


def shown_by(row: list[str]) -> list[str]:
    """Its checks."""
    return re.findall(r"`([^`]+)`", row[3])


def test_there_are_rows() -> None:
    assert len(ROWS) > 60 and all(len(row) == 5 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_a_row_names_what_exists(row: list[str]) -> None:
    files = re.findall(r"`([^`]+)`", row[1])
    assert files and all(name.startswith(TOPS) and (ROOT / name).is_file() for name in files), row[1]
    assert shown_by(row), row[3]
    for name in shown_by(row):
        one, _, check = name.partition("/")
        assert one in cases.ALL and check in cases.ALL[one].checks, name
    assert row[2] and (row[4] == "not yet" or row[4].startswith(("holds (", "**false** (")))


def test_every_check_of_group_a_has_its_row() -> None:
    named = {name for row in ROWS for name in shown_by(row)}
    required = {f"{one.id}/{check}" for one in cases.ALL.values() if one.group == "A" for check in one.checks}
    assert required - named == set()


def test_every_case_declares_what_it_judges_and_says_what_it_shows() -> None:
    for one in cases.ALL.values():
        assert one.checks and one.title and 0 < one.seconds <= 180, one.id


def test_programs_judge_only_what_cases_declare() -> None:
    declared = {check for one in cases.ALL.values() for check in one.checks} | {"they_tell_what_they_hold"}
    for path in (ROOT / "tests/gpu/programs").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check":
                assert node.args[0].value in declared, f"{path.name}: {node.args[0].value}"
