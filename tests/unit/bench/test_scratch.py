# SPDX-License-Identifier: Apache-2.0
"""A measurement that is ended leaves nothing, and what one that was killed has left is removed by the next."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.scratch import percentile, scratch, spread

_PROGRAM = """
import sys, time
from tests.bench.scratch import scratch
with scratch(sys.argv[1]) as where:
    (where / "file").write_text("x")
    print(where, flush=True)
    time.sleep(60)
"""


def started(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(parent)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    with process.stdout as said:
        return process, Path(said.readline().strip())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_program_that_is_ended_removes_its_directory(tmp_path: Path, number: int) -> None:
    process, where = started(tmp_path)
    assert (where / "file").is_file()
    process.send_signal(number)
    assert process.wait(30) != 0
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_program_has_left_goes_with_the_next_and_what_is_in_use_stays(tmp_path: Path) -> None:
    killed, left = started(tmp_path)
    killed.kill()
    killed.wait()
    assert (left / "file").is_file()
    (tmp_path / "other").mkdir()
    with scratch(str(tmp_path)) as first:
        assert not left.exists()
        with scratch(str(tmp_path)):
            assert first.is_dir()
    assert [one.name for one in tmp_path.iterdir()] == ["other"]


def test_what_a_table_shows() -> None:
    assert spread([3.0, 1.0, 2.0], "{:.1f}") == "2.0 | 1.0 to 3.0"
    hundred = [float(one) for one in range(100, 0, -1)]
    assert (percentile(hundred, 0.99), percentile(hundred, 0.5), percentile([7.0], 0.99)) == (99.0, 50.0, 7.0)
