# SPDX-License-Identifier: Apache-2.0
"""Lines, and the page that is made of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.gpu import report
from tests.gpu.cases.memory import EDGE, edge
from tests.gpu.lines import LINES, Line, Output, parse, read
from tests.gpu.world import Found, Options, World

MACHINE = Line(
    "machine",
    "machine",
    "pass",
    "a GPU",
    numbers={"name": "NVIDIA H100 80GB HBM3", "driver": "580.1", "date": "2026-01-02"},
)
GOOD = Line("pointers", "A", "pass", "all", 1.5, {"identity": (True, "0 of 9")}, {"asked": 9})
BAD = Line(
    "pools", "A", "fail", "a | b", 2.0, {"pool_tells_what_it_holds": (False, "it | lied")}, {}, "vcuda: no"
)
TABLE = """| assumption | used in | if it is false | shown by | result |
| --- | --- | --- | --- | --- |
| one | `a` | x | `pointers/identity` | not yet |
| two | `a` | x | `pointers/identity`, `pools/pool_tells_what_it_holds` | not yet |
| three | `a` | x | `pools/pool_grows_in_chunks` | not yet |
| four | `a` | x | `pointers/identity`, `pools/pool_grows_in_chunks` | not yet |
"""


def folder(tmp_path: Path, *lines: Line) -> Path:
    """Of a run that left these lines behind."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / LINES).write_text("".join(line.text() + "\n" for line in lines))
    return tmp_path


def test_a_line_is_what_it_was() -> None:
    assert parse(BAD.text()) == BAD and parse(GOOD.text()) == GOOD


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "17", '{"case": 1}', GOOD.text()[:-20], '{"case":"x","group":"A","verdict":"great"}'],
)
def test_anything_else_is_no_line(text: str) -> None:
    assert parse(text) is None


def test_a_file_is_read_in_spite_of_its_mistakes(tmp_path: Path) -> None:
    later = Line("pools", "A", "pass", "the second time")
    path = tmp_path / "log"
    path.write_text(
        f"machine   a GPU\n{MACHINE.text()}\n{BAD.text()}\n{GOOD.text()[:30]}\n\n{later.text()}\n"
    )
    assert read(path) == [MACHINE, later]


def test_a_line_that_a_kill_cut_off_does_not_swallow_the_next_run(tmp_path: Path) -> None:
    (tmp_path / LINES).write_text(GOOD.text()[:40])
    Output(tmp_path).line(BAD)
    assert read(tmp_path) == [BAD]
    Output(tmp_path).line(GOOD)
    assert (tmp_path / LINES).read_text().count("\n") == 3 and read(tmp_path) == [BAD, GOOD]


def test_the_page_of_several_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = folder(tmp_path / "a", MACHINE, GOOD), folder(tmp_path / "b", MACHINE, BAD)
    table = tmp_path / "table.md"
    table.write_text(TABLE)
    assert (
        report.main([str(first), str(second), "--pages", str(tmp_path / "pages"), "--table", str(table)]) == 0
    )
    assert "1 pass, 1 fail" in capsys.readouterr().out
    text = (tmp_path / "pages/nvidia-h100-80gb-hbm3-580.1-2026-01-02.md").read_text()
    assert "| pools | fail | 2.0 | a / b |" in text
    assert "| pools | pool_tells_what_it_holds | **no** | it / lied |" in text
    assert '{"asked": 9}' in text and "vcuda: no" in text
    results = [row.split("|")[5].strip() for row in table.read_text().splitlines()[2:]]
    assert results[0] == "holds (NVIDIA H100 80GB HBM3, 580.1)"
    assert results[1].startswith("**false** (NVIDIA H100 80GB HBM3, 580.1): it / lied")
    assert results[2] == "not yet"
    assert results[3] == "holds (NVIDIA H100 80GB HBM3, 580.1) in part"


@pytest.mark.parametrize("what", ["nothing", "empty", "machine alone"])
def test_no_page_of_nothing(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nothing"
    if what != "nothing":
        folder(path, *([MACHINE] if what == "machine alone" else []))
    assert report.main([str(path), "--pages", str(tmp_path / "pages")]) == 2
    assert "report:" in capsys.readouterr().err and not (tmp_path / "pages").exists()


class Measured(World):
    """A world in which a program has already been run."""

    answers: dict

    def run(self, *_args, **_more):
        self.found.note(self.answers)
        return self.answers


def measured(tmp_path: Path, **answers: int) -> Found:
    """What edge() makes of a program's answers."""
    full = {
        "total": 8 << 30,
        "blocks": 100,
        "block": 64 << 20,
        "code": 2,
        "used": 6400 << 20,
        "real": 6400 << 20,
        "lost": 0,
        "again": 100,
    }
    world = Measured(
        Options(tmp_path, tmp_path, 8 << 30, tmp_path), "pool", time.monotonic() + 5, Found(), lambda *_: None
    )
    world.answers = full | answers
    edge(world, world.found, "pool")
    return world.found


def test_a_family_is_judged_by_what_the_gpu_says(tmp_path: Path) -> None:
    assert all(measured(tmp_path).checks[name][0] for name in EDGE)
    # NVML did not answer: nothing was measured, which is not the same as nothing taken.
    assert not measured(tmp_path, real=0).checks["the_gpu_agrees"][0]
    assert not measured(tmp_path, real=8 << 30).checks["the_gpu_agrees"][0]
    assert not measured(tmp_path, blocks=0, used=0, real=0, again=0).checks["refused_at_the_limit"][0]
    assert not measured(tmp_path, again=98).checks["all_again"][0]
