"""Sudden ends between any two system calls of an agent's work, and writing that fails from any one of them on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


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
def test_no_answer_is_lost_and_nothing_counts_twice(tmp_path, mode, seed, rounds):
    command = [
        sys.executable,
        "-m",
        "tests.unit.agent.persistence.killing",
        str(tmp_path),
        str(rounds),
        str(seed),
        mode,
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    counts = json.loads(ended.stdout)
    assert counts["ended" if mode == "kill" else "refused"] > rounds // 4
    assert counts["answers"] > rounds // 4
