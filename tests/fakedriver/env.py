# SPDX-License-Identifier: Apache-2.0
"""Environment of a process that runs on the simulated driver.

Tests and the demo start programs with it instead of with NVIDIA's driver. It builds nothing: `make fakedriver` does,
and `library_directory` says so when that was forgotten.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MACHINES = Path(__file__).resolve().parent / "machines"


def library_directory() -> Path:
    """Directory of the simulated libcuda.so.1 and libnvidia-ml.so.1; FileNotFoundError when they are not built."""
    directory = ROOT / "build" / "fakedriver"
    if not (directory / "libcuda.so.1").exists():
        raise FileNotFoundError(f"{directory}/libcuda.so.1 is missing: run make fakedriver")
    return directory


def machine_file(machine: str | Path) -> Path:
    """Path of a machine: a file, or the name of one in `machines/` such as "two-24g"."""
    named = MACHINES / f"{machine}.txt"
    return named if named.exists() else Path(machine)


def write_machine(directory: Path, *gpus: str, like: str = "", name: str = "machine", **keys: object) -> Path:
    """Writes a machine of its own for a test, and returns its file.

    Args:
        directory: Where the file is written.
        gpus: Text of the GPUs that have settings of their own, such as "gpu 0:\n  memory: 16GiB".
        like: Name of the machine in `machines/` whose other settings it has.
        name: Name of the file.
        keys: Settings of the machine.
    """
    text = machine_file(like).read_text() if like else ""
    for key in keys:
        text = re.sub(rf"(?m)^{key}:.*\n", "", text)
    settings = "".join(f"{key}: {value}\n" for key, value in keys.items())
    file = directory / f"{name}.txt"
    file.write_text(settings + text + "".join(f"{gpu}\n" for gpu in gpus))
    return file


def driver_env(machine: str | Path, state: Path, **extra: str) -> dict[str, str]:
    """Environment for a subprocess on MACHINE whose processes share the file STATE (created on first use).

    Starts from this process's environment without what would choose or hide GPUs; EXTRA is added last.
    """
    hidden = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD")
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and not name.startswith(("FAKEDRIVER_", "VCUDA_"))
    }
    inherited = env.get("LD_LIBRARY_PATH")
    env["LD_LIBRARY_PATH"] = f"{library_directory()}:{inherited}" if inherited else str(library_directory())
    env["FAKEDRIVER_MACHINE"] = str(machine_file(machine))
    env["FAKEDRIVER_STATE"] = str(state)
    return env | extra
