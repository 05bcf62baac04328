# SPDX-License-Identifier: Apache-2.0
"""Sudden ends between any two system calls of an agent's work, and writing that fails from any one of them on."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
MEMORY = Path("/dev/shm")


@pytest.fixture
def directory(tmp_path):
    """In memory where there is room: who is killed loses nothing that was written, on any file system."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < 64 << 20:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="gigaslice-killing-", dir=MEMORY) as made:
        yield Path(made)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mode", "seed", "rounds"),
    [
        ("kill", 1, 150),
        pytest.param("kill", 2, 150, marks=pytest.mark.long),
        ("full", 3, 60),
        ("read-only", 4, 60),
    ],
)
def test_no_answer_is_lost_and_nothing_counts_twice(directory, mode, seed, rounds):
    command = [
        sys.executable,
        "-m",
        "tests.unit.agent.persistence.killing",
        str(directory),
        str(rounds),
        str(seed),
        mode,
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    counts = json.loads(ended.stdout)
    assert counts["ended" if mode == "kill" else "refused"] > rounds // 4
    assert counts["answers"] > rounds // 4
