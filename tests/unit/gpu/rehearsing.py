# SPDX-License-Identifier: Apache-2.0
"""Runs of tests/gpu on the simulated GPU, with stand-ins for what this machine lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fakedriver.env import driver_env
from tests.gpu.lines import Line, read

ROOT = Path(__file__).resolve().parents[3]
STAND_INS = Path(__file__).parent / "stand_ins"
MACHINE = ROOT / "tests/gpu/rehearsal.txt"


def environment(tmp_path: Path, frameworks: bool = True, **extra: str) -> dict[str, str]:
    """Of a run on a GPU of its own; without FRAMEWORKS neither they nor the tools are there."""
    paths = [str(STAND_INS / "frameworks"), str(ROOT)] if frameworks else [str(ROOT)]
    env = driver_env(MACHINE, tmp_path / "state", PYTHONPATH=os.pathsep.join(paths))
    if frameworks:
        env["PATH"] = os.pathsep.join((str(STAND_INS / "tools"), env["PATH"]))
    return env | extra


def has_pid_namespaces() -> bool:
    """Whether this machine lets us make some."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def start(
    tmp_path: Path, *words: object, module: str = "tests.gpu", out: Path | None = None, **more
) -> subprocess.Popen[str]:
    """A run that goes on."""
    command = [
        sys.executable,
        "-m",
        module,
        "--short",
        "--out",
        str(out or tmp_path / "out"),
        *(str(word) for word in words),
    ]
    env = environment(tmp_path, **more)
    return subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(tmp_path: Path, *words: object, **more) -> subprocess.CompletedProcess[str]:
    """A run to its end."""
    with start(tmp_path, *words, **more) as process:
        try:
            out, err = process.communicate(timeout=200)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def lines(tmp_path: Path) -> dict[str, Line]:
    """What it left behind."""
    return {line.case: line for line in read(tmp_path / "out")}
