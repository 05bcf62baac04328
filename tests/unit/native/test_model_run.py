# SPDX-License-Identifier: Apache-2.0
"""The model of the ledger where its checker is missing: what was not looked at stands in the output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.model import run as model

ROOT = Path(model.__file__).parents[2]


def without_spin(folder: Path, *cases: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.model.run", *cases]
    return subprocess.run(
        command, cwd=ROOT, env={"PATH": str(folder)}, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_missing_spin_says_what_was_skipped(tmp_path: Path) -> None:
    done = without_spin(tmp_path, "quick")
    assert (done.returncode, done.stderr) == (0, "")
    assert "model: SKIPPED, spin is not installed" in done.stdout
    quick = {case.name for case in (*model.HOLDS, *model.FINDS) if case.quick}
    assert len(quick) > 5
    assert {name for name in quick if name not in done.stdout} == set()
    assert "charge-threads-kill" not in done.stdout, "it is not one of the quick ones"


def test_a_case_that_does_not_exist_is_refused_without_spin_too(tmp_path: Path) -> None:
    done = without_spin(tmp_path, "chargo")
    assert done.returncode == 1
    assert "no such case: chargo" in done.stderr
