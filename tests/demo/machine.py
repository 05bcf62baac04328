# SPDX-License-Identifier: Apache-2.0
"""Which GPU the demo runs on: the machine's own when its driver answers, else two simulated GPUs of 24 GiB.

Of a real GPU it never asks for more than is free at the start; other people's programs may be on it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.demo.report import GIB

ROOT = Path(__file__).resolve().parents[2]
FAKEDRIVER = ROOT / "build" / "fakedriver"
SIMULATED = ROOT / "tests" / "fakedriver" / "machines" / "two-24g.txt"
LEAST_FREE_GIB = 6  # below that a real GPU is too full to show anything on it

ASK_NVML = """
import json, pynvml
pynvml.nvmlInit()
GPUs = []
for index in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    GPUs.append([pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle), memory.total, memory.free])
print(json.dumps(GPUs))
"""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU as the node's NVML shows it; bytes."""

    uuid: str
    name: str
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs, and the environment in which programs find their driver."""

    real: bool
    gpus: tuple[GpuModel, ...]
    env: Mapping[str, str]
    why_simulated: str = ""

    @property
    def slices(self) -> int:
        """What a node of this machine advertises, in GiB."""
        return sum(gpu.total // GIB for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class Sizes:
    """GiB of the pods. elsewhere is 0 where there is one GPU only."""

    first: int
    second: int
    elsewhere: int
    waiting: int


def plan(machine: Machine) -> Sizes:
    """8 and 12 GiB where they fit into what is free on every GPU, else the same proportion of it.

    The third pod does not fit beside them on their GPU; the last one is one slice more than is left on the node.
    """
    gpu = min(gpu.total for gpu in machine.gpus) // GIB
    free = min(gpu.free for gpu in machine.gpus) // GIB
    first, second = (8, 12) if free >= 21 else (max(1, free * 2 // 6), max(2, free * 3 // 6))
    elsewhere = min(gpu, max(gpu - first - second + 1, 16)) if len(machine.gpus) > 1 else 0
    return Sizes(first, second, elsewhere, machine.slices - first - second - elsewhere + 1)


def nvml_gpus(env: Mapping[str, str]) -> tuple[GpuModel, ...]:
    """The GPUs that NVML shows in ENV; OSError with the reason when it shows none."""
    command = [sys.executable, "-c", ASK_NVML]
    result = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=30, check=False)
    if result.returncode != 0:
        raise OSError(
            result.stderr.strip().splitlines()[-1] if result.stderr.strip() else "NVML ended silently"
        )
    gpus = tuple(GpuModel(*fields) for fields in json.loads(result.stdout))
    if not gpus:
        raise OSError("NVML shows no GPU")
    return gpus


def real() -> Machine:
    """The machine's own GPUs; OSError with the reason why they cannot be used."""
    library_path = os.environ.get("LD_LIBRARY_PATH", "")
    env = {"LD_LIBRARY_PATH": library_path} if library_path else {}
    gpus = nvml_gpus({"PATH": os.environ.get("PATH", ""), **env})
    least = min(gpu.free for gpu in gpus)
    if least < LEAST_FREE_GIB * GIB:
        raise OSError(f"a GPU has only {least / GIB:.1f} GiB free, the demo needs {LEAST_FREE_GIB}")
    return Machine(True, gpus, env)


def simulated(directory: Path, why: str) -> Machine:
    """Two simulated GPUs, their state in DIRECTORY; OSError when the simulated driver does not work."""
    env = {
        "LD_LIBRARY_PATH": str(FAKEDRIVER),
        "FAKEDRIVER_MACHINE": str(SIMULATED),
        "FAKEDRIVER_STATE": str(directory / "machine.state"),
    }
    return Machine(False, nvml_gpus({"PATH": os.environ.get("PATH", ""), **env}), env, why)


def find(directory: Path, simulate: bool) -> Machine:
    """The real machine unless SIMULATE or unusable."""
    if simulate:
        return simulated(directory, "asked for")
    try:
        return real()
    except (OSError, subprocess.TimeoutExpired) as error:
        return simulated(directory, str(error))
