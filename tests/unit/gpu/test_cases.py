"""The GPU tests themselves, tried on the simulated driver: they pass where all is well and notice a library that does
nothing. What needs frameworks or nvidia-smi is skipped there, by their own word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakedriver.env import driver_env

ROOT = Path(__file__).resolve().parents[3]


def run_cases(tmp_path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.gpu", "--report-dir", str(tmp_path / "report"), *arguments]
    environment = driver_env("one-h200", tmp_path / "state", PYTHONPATH=str(ROOT), **env)
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_cases_pass_on_the_simulated_card(tmp_path: Path) -> None:
    done = run_cases(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for case in ("exact", "views_agree", "shared_and_killed", "pool", "vmm", "array", "graph", "beyond"):
        assert f"pass  {case}" in done.stdout
    (report,) = (tmp_path / "report").iterdir()
    assert "| exact | pass |" in report.read_text()


@pytest.fixture
def empty_library(tmp_path: Path) -> Path:
    """A library that can be preloaded and does nothing."""
    source = tmp_path / "empty.c"
    source.write_text("int gigaslice_test_nothing;\n")
    library = tmp_path / "empty.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    return library


def test_cases_fail_without_a_quota(tmp_path: Path, empty_library: Path) -> None:
    done = run_cases(tmp_path, "--library", str(empty_library))
    assert done.returncode == 1, done.stdout + done.stderr
    for case in ("exact", "views_agree", "pool", "vmm", "array", "graph", "beyond"):
        assert f"FAIL  {case}" in done.stdout


def test_no_card_is_said_in_one_line(tmp_path: Path) -> None:
    done = run_cases(tmp_path, NVIDIA_VISIBLE_DEVICES="none")
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1 and "test-gpu" in done.stderr
