# SPDX-License-Identifier: Apache-2.0
"""Which GPU, driver and software a run was made on: asked once, in a process of its own, without the library.

What does not answer is left out and named: a broken nvidia-smi, for example, is a fact about the machine and no reason
to stop.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import shutil
import sys
import time
from pathlib import Path

from tests.gpu.lines import Line
from tests.gpu.running import Program
from tests.gpu.world import PROGRAMS

PACKAGES = (
    "torch",
    "triton",
    "jax",
    "jaxlib",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "numpy",
    "nvidia-cuda-runtime",
    "nvidia-cublas",
    "nvidia-nccl-cu13",
    "nvidia-ml-py",
    "grpcio",
    "protobuf",
    "cffi",
)
TOOLS = ("nvidia-smi", "ncu", "nsys", "compute-sanitizer", "gcc", "make", "nvcc")


def versions() -> dict[str, str]:
    """Installed packages among those that cases use."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def tools() -> dict[str, str]:
    """Programs on the path; ncu and its kin also where the toolkit puts them."""
    path = os.pathsep.join(
        (os.environ.get("PATH", ""), "/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/local/nvidia/bin")
    )
    return {name: place for name in TOOLS if (place := shutil.which(name, path=path))}


def nvidia_smi(found: dict[str, str], scratch: Path) -> str:
    """What the GPU's own tool says, or how it fails."""
    if "nvidia-smi" not in found:
        return "not on the path"
    try:
        with Program([found["nvidia-smi"]], os.environ, scratch) as program:
            done = program.finish(20)
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    if done.timed_out:
        return "does not end"
    return done.out[:4000] if done.code == 0 else f"ends with {done.code}: {done.out[:300]}{done.err[:300]}"


def machine(scratch: Path) -> Line:
    """The line that stands before all others; its verdict is "pass" where there is a GPU to test on."""
    begun = time.monotonic()
    with Program([sys.executable, str(PROGRAMS / "gpu.py")], os.environ, scratch) as program:
        done = program.finish(60)
    gpu, found = done.numbers(), tools()
    numbers: dict[str, object] = gpu | {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "packages": versions(),
        "tools": found,
        "nvidia-smi": nvidia_smi(found, scratch),
    }
    usable = gpu.get("done") is True and bool(gpu.get("free"))
    if usable:
        evidence = f"{gpu['name']}, driver {gpu['driver']}, {int(str(gpu['free'])) >> 20} MiB free"
    else:
        evidence = f"no GPU to test on: {done.last_words()}"
    return Line(
        "machine",
        "machine",
        "pass" if usable else "fail",
        evidence,
        time.monotonic() - begun,
        {},
        numbers,
        done.err[-2000:],
    )
