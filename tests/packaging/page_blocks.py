# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the pages as they stand, in a folder like a user's checkout, with a wheel installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.fakedriver.env import driver_env
from tests.packaging.page_commands import PageCommand, commands

__all__ = ["run_pages"]

_TRAIN = """import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, total = ctypes.c_int(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
print("total", total.value >> 30, flush=True)
"""
_POD = """apiVersion: v1
kind: Pod
metadata:
  name: trainer
spec:
  schedulerName: hami-scheduler
  containers:
    - name: trainer
      image: registry.example.com/trainer:1
      resources:
        limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30}
"""
_TOTALS = {
    "README.md": ["total 4", "total 4", "total 8", "total 8", "total 8", "total 8"],
    "docs/workstation.md": ["total 8"],
}
"""GiB that the programs of a page see, in order of size."""
_PROGRAMS = ("eval", "serve")
LIMITED = "total {}"


def run_pages(environment: Path, folder: Path) -> str:
    """Every command that can be run, from the environment of a wheel. Raises AssertionError with what went wrong."""
    folder.mkdir(parents=True)
    pip = [
        str(environment / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--only-binary", ":all:", "ipykernel"], check=True)  # as the pages say of kernels
    home = folder / "home"
    _furnish(folder, home, environment)
    ran = left_out = 0
    for page in dict.fromkeys(command.page for command in commands()):
        lines = [command for command in commands() if command.page == page]
        left_out += sum(bool(line.reason) for line in lines)
        script = [_line(line, folder) for line in lines if not line.reason]
        if script:
            ran += len(script)
            _run(page, "\n".join(["set -eux", *script, "wait"]), folder, home, environment)
    return f"{ran} run, {left_out} left out with a reason"


def _furnish(folder: Path, home: Path, environment: Path) -> None:
    """What the commands name: programs, data, and the places of a checkout."""
    (folder / "build").mkdir()
    (folder / "build" / "venv").symlink_to(environment)
    (library,) = environment.glob("lib/python*/site-packages/vcuda/_lib/libvcuda.so")
    (folder / "build" / "libvcuda.so").symlink_to(library)
    (folder / "train.py").write_text(_TRAIN)
    (folder / "trainer.yaml").write_text(_POD)
    for name in _PROGRAMS:
        (folder / name).write_text('#!/bin/sh\nexec python3 "$(dirname "$0")/train.py"\n')
        (folder / name).chmod(0o755)
    (folder / "bin").mkdir()
    (folder / "bin" / "torchrun").write_text('#!/bin/sh\nexec python3 "$@"\n')
    (folder / "bin" / "torchrun").chmod(0o755)
    home.mkdir()
    (folder / "run").mkdir(mode=0o700)
    coco = folder / "data" / "coco"
    coco.mkdir(parents=True)
    (coco / "a.txt").write_text("a picture")
    (home / ".venv" / "bin").mkdir(parents=True)
    (home / ".venv" / "bin" / "python").symlink_to(environment / "bin" / "python")
    (home / "serve.py").write_text(_TRAIN)


def _line(command: PageCommand, folder: Path) -> str:
    """The line, with absolute paths that no machine has below FOLDER, and an end for what has none."""
    text = command.text.removeprefix("ExecStart=")
    for path, instead in (
        ("/home/me/gigaslice", folder),
        ("/home/me", folder / "home"),
        ("/data/", folder / "data"),
    ):
        text = text.replace(path, f"{instead}/" if path.endswith("/") else str(instead))
    if text.endswith("--watch"):
        return f"timeout --signal=INT 3 {text} > watched || test $? = 124 || test $? = 130"
    return f"yes | {text}" if text.startswith("pip uninstall") else text


def _run(page: str, script: str, folder: Path, home: Path, environment: Path) -> None:
    path = f"{folder / 'bin'}:{environment / 'bin'}:{os.environ['PATH']}"
    machine = driver_env("two-24g", folder / "machine")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**machine, "PATH": path, "HOME": str(home), "XDG_RUNTIME_DIR": str(folder / "run")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = f"{page}: {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-3000:]}"
    assert done.returncode == 0, said
    if page in _TOTALS:
        totals = sorted(line for line in done.stdout.splitlines() if line.startswith("total "))
        assert totals == _TOTALS[page], said
