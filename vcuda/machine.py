# SPDX-License-Identifier: Apache-2.0
"""The GPUs that a quota can be of: the machine's, also where this process runs under a quota itself.

There the library answers in NVML's place, and shows the outer quota as the GPU's memory. So a child process asks that
has none of the variables with limits: the library does nothing in it. In a container of an agent the library answers
the child, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from vcuda import devices, errors, settings
from vcuda.devices import GpuDevice

__all__ = ["MachineGpus", "choose", "main"]

_SECONDS = 60  # a driver's first start on a machine with many GPUs takes some of them
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from vcuda import machine; machine.main()"
)


@dataclass(frozen=True, slots=True)
class MachineGpus:
    """The driver's version, and the devices that were named, or all; none on a machine without a GPU."""

    driver: str
    devices: tuple[GpuDevice, ...]


def choose(names: Sequence[str], config: settings.UserSettings) -> MachineGpus:
    """The devices that NAMES names (see `devices.select_devices`), all of the machine's where it is empty.

    Raises:
        NoDriverError: NVML does not answer.
        UsageError: a name fits no GPU.
    """
    return _through_child(names, config) if config.is_limited else _here(names)


def _here(names: Sequence[str]) -> MachineGpus:
    driver, present = devices.list_with_driver()
    chosen = devices.select_devices(names, present) if names else present
    return MachineGpus(driver, chosen)


def _through_child(names: Sequence[str], config: settings.UserSettings) -> MachineGpus:
    command = [sys.executable, "-I", "-c", _CHILD, json.dumps(sys.path), *names]
    what = "the GPUs cannot be listed outside of this quota"
    try:
        done = subprocess.run(
            command,
            env=settings.unlimited_environment(config),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise errors.NoDriverError(what, f"no answer within {_SECONDS} s") from error
    except ValueError as error:
        last = done.stderr.strip().splitlines()[-1:] or [f"the process ended with {done.returncode}"]
        raise errors.NoDriverError(what, last[0]) from error
    if "error" in answer:
        name, *parts = answer["error"]
        kind: type[errors.VcudaError] = getattr(errors, name)
        raise kind(*parts)
    return MachineGpus(answer["driver"], tuple(GpuDevice(**device) for device in answer["devices"]))


def main() -> None:
    """The child: prints as JSON the choice of the names that it was given as arguments, or the error."""
    try:
        answer: dict[str, object] = asdict(_here(sys.argv[1:]))
    except errors.VcudaError as error:
        answer = {"error": [type(error).__name__, error.what, error.cause, error.remedy]}
    json.dump(answer, sys.stdout)
