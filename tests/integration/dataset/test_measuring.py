# SPDX-License-Identifier: Apache-2.0
"""The measurement of pods' starts runs through, so that it is there when its figures are asked for again."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.dataset.service import ROOT, can_mount


def test_starts_of_pods_are_measured(tmp_path: Path) -> None:
    if not can_mount(tmp_path):
        pytest.skip("mounting needs root and a kernel with EROFS")
    command = [sys.executable, "-m", "tests.bench.dataset_start", "--files=40", "--pairs=1", "--calls=5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert "| bytes read from the source, by the dataset's | 1.000 | 1.000 to 1.000 |" in lines
    rows = ("40 files, a Dataset", "40 files, listed again", "once more", "the last pod's", "cold,", "warm,")
    assert all(any(line.startswith(f"| {row}") for line in lines) for row in rows), done.stdout
