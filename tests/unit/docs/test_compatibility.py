# SPDX-License-Identifier: Apache-2.0
"""The table of versions side by side names tests that exist, and every part that can be of another version is in it."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.test_docs import ROOT

PAGE = (ROOT / "docs" / "compatibility.md").read_text()
TABLE = PAGE.partition("## Which combinations are tested")[2].partition("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith("| ---")][1:]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: row.split("|")[1].strip() + " | " + row.split("|")[2].strip()
)
def test_each_row_names_tests_that_exist(row: str) -> None:
    named = NAMED.findall(row)
    assert named, row
    for file, name in named:
        path = ROOT / file
        assert path.is_file(), file
        assert re.search(rf"(?m)^(async )?def {name}\(", path.read_text()), f"{file} has no {name}"


def test_every_part_is_in_the_table() -> None:
    assert len(ROWS) >= 15
    sides = " ".join(" ".join(row.split("|")[1:3]) for row in ROWS)
    for part in (
        "agent",
        "library",
        "front",
        "scheduler",
        "controller",
        "webhook",
        "definitions",
        "dataset service",
    ):
        assert part in sides, part


def test_every_test_of_releases_is_in_the_table() -> None:
    """A test that nobody finds in the table is a promise that nobody reads."""
    named = set(NAMED.findall(PAGE))
    for path in sorted((ROOT / "tests" / "releases").glob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        for name in re.findall(r"(?m)^def (test_\w+)\(", path.read_text()):
            assert (file, name) in named, f"{file}::{name} is not in docs/compatibility.md"
