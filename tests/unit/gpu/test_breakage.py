# SPDX-License-Identifier: Apache-2.0
"""The runner when everything goes wrong: what there is comes out, what is wrong is said, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.gpu import report
from tests.gpu.lines import LINES, read
from tests.unit.gpu.rehearsing import lines, run, start

BROKEN = "tests.unit.gpu.broken_cases"


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_every_way_to_go_wrong_has_its_verdict_and_the_last_case_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "--group", "A", module=BROKEN)
    found = lines(tmp_path)
    assert done.returncode == 1
    assert {name: line.verdict for name, line in found.items() if name != "machine"} == {
        "hangs": "timeout",
        "is_killed": "killed",
        "garbage": "garbage",
        "measures_nothing": "fail",
        "says_nothing": "fail",
        "is_mistaken": "fail",
        "does_not_return": "timeout",
        "lacks_a_package": "missing",
        "leaves_a_child": "pass",
        "is_fine": "pass",
    }
    assert "SIGSEGV" in found["is_killed"].evidence and found["is_killed"].numbers == {"measured": 7}
    assert "never_judged" in found["measures_nothing"].evidence
    assert "ZeroDivisionError" in found["is_mistaken"].evidence
    assert "hangs.py" in found["hangs"].said and "line" in found["hangs"].said  # where it hung
    page = (tmp_path / "out/report.md").read_text()
    assert "| hangs | timeout |" in page and "| is_fine | pass |" in page
    assert not is_running(found["hangs"].numbers["child"])
    assert not is_running(found["leaves_a_child"].numbers["left"])


def test_what_does_not_fit_into_the_budget_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, "--case", "sleeps", "--case", "is_fine", "--budget", "6", module=BROKEN)
    found = lines(tmp_path)
    assert done.returncode == 4
    assert found["sleeps"].verdict == found["is_fine"].verdict == "not run"
    assert "budget" in found["sleeps"].evidence and "budget of 6 s was over" in found["is_fine"].evidence
    assert found["sleeps"].numbers == {"begun": True}


def test_an_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    done = run(tmp_path, "--case", "is_fine", module=BROKEN, out=Path("/dev/null/out"))
    assert done.returncode == 1
    assert "cannot be made" in done.stderr and "cannot be written" in done.stdout
    saved = tmp_path / "saved"
    saved.write_text(done.stdout)
    assert [line.case for line in read(saved)] == ["machine", "is_fine"]
    assert report.main([str(saved), "--pages", str(tmp_path / "pages")]) == 0


def test_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LINES).symlink_to("/dev/full")
    done = run(tmp_path, "--case", "is_fine", module=BROKEN)
    assert done.returncode == 1
    assert "No space left on device" in done.stdout
    saved = tmp_path / "saved"
    saved.write_text(done.stdout)
    assert {line.case: line.verdict for line in read(saved)} == {"machine": "pass", "is_fine": "pass"}


def test_a_disk_that_fills_up_within_a_line(tmp_path: Path) -> None:
    """The line that did not fit is in the output whole, and those before it are in the file."""
    out = tmp_path / "out"
    out.mkdir()
    # A first run shows how long the first line is.
    run(tmp_path, "--case", "is_fine", module=BROKEN)
    first = (out / LINES).read_text().splitlines()[0]
    (out / LINES).unlink()
    code = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({len(first) + 30},) * 2)"
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        f"import signal, sys\nif '--out' in sys.orig_argv:\n    {code}\n"
        "    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    )
    env = {"PYTHONPATH": f"{site}:{Path(__file__).resolve().parents[3]}"}
    done = run(tmp_path, "--case", "is_fine", module=BROKEN, **env)
    assert done.returncode == 1, done.stdout + done.stderr
    saved = tmp_path / "saved"
    saved.write_text((out / LINES).read_text() + "\n" + done.stdout)
    assert {line.case for line in read(saved)} == {"machine", "is_fine"}


def wait_until(condition, seconds: float = 60) -> None:
    """Until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_that_is_told_to_end_says_what_it_has(tmp_path: Path, number: signal.Signals) -> None:
    with start(
        tmp_path, "--case", "is_fine", "--case", "sleeps", "--case", "garbage", module=BROKEN
    ) as process:
        wait_until(
            lambda: (
                (tmp_path / "out" / LINES).exists() and "is_fine" in (tmp_path / "out" / LINES).read_text()
            )
        )
        time.sleep(0.3)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    found = lines(tmp_path)
    assert process.returncode == 4
    assert found["is_fine"].verdict == "pass"
    assert found["sleeps"].verdict == found["garbage"].verdict == "not run"
    assert "| is_fine | pass |" in (tmp_path / "out/report.md").read_text()
    assert "2 not run" in out


def test_a_run_that_is_killed_has_lost_only_its_last_case(tmp_path: Path) -> None:
    with start(tmp_path, "--case", "is_fine", "--case", "sleeps", module=BROKEN) as process:
        wait_until(
            lambda: (
                (tmp_path / "out" / LINES).exists() and "is_fine" in (tmp_path / "out" / LINES).read_text()
            )
        )
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    assert {line.case: line.verdict for line in read(tmp_path / "out")} == {
        "machine": "pass",
        "is_fine": "pass",
    }
    assert report.main([str(tmp_path / "out"), "--pages", str(tmp_path / "pages")]) == 0
