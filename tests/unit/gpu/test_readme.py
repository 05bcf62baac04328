# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/README.md: its commands are ones that the runner understands, and fit into the time that it speaks of."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.gpu import __main__ as runner
from tests.gpu import cases, lines, pack

README = (Path(__file__).resolve().parents[3] / "tests/gpu/README.md").read_text()
COMMANDS = [
    shlex.split(line.partition("#")[0])[1:]
    for line in README.splitlines()
    if line.startswith("    tests/gpu/run")
]


def test_there_is_a_command_for_each_group() -> None:
    parsed = [runner.parse(words) for words in COMMANDS]
    assert [one.group for one in parsed] == ["A", "B", "C", "D"]
    assert {one.group for one in cases.ALL.values()} == set("ABCD")


def test_each_fits_into_ten_minutes_and_all_into_half_an_hour() -> None:
    budgets = [runner.parse(words).budget for words in COMMANDS]
    assert budgets[0] == 120 and max(budgets) <= 580 and sum(budgets) <= 25 * 60


def test_what_is_brought_along_is_what_the_packer_names() -> None:
    assert "build/libvcuda.so  vcuda/_native.abi3.so  build/gpu" in README
    assert pack.PACK.parts[-2:] == ("build", "gpu")


def test_every_verdict_is_explained() -> None:
    told = {word.strip() for row in re.findall(r"(?m)^\| ([a-z, ]+) \|", README) for word in row.split(",")}
    assert set(lines.VERDICTS) <= told
