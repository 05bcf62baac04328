# SPDX-License-Identifier: Apache-2.0
"""The command `vcuda` and programs below it, on the simulated machine."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.fakes.command import alone

ROOT = Path(__file__).parents[3]
VCUDA = alone()
GIB = 1 << 30
OUT_OF_MEMORY = 2

# A program that knows nothing of vcuda: allocates what its arguments say, prints the codes, waits for stdin to end.
CLIENT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
codes = [cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size))) for size in sys.argv[1:]]
print(total.value, *codes, flush=True)
sys.stdin.read()
"""


FORWARDED = [getattr(signal, f"SIG{name}") for name in ("TERM", "HUP", "INT", "USR1", "USR2", "QUIT")]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until(condition: Callable[[], bool]) -> None:
    """Waits for what another process does; the test's own timeout ends a wait for nothing."""
    while not condition():
        time.sleep(0.02)


def uuids(run: Run) -> list[str]:
    listing = "from vcuda import devices; print(*(d.uuid for d in devices.list_devices()))"
    return run("run", "--memory", "1GiB", "--", sys.executable, "-c", listing).stdout.split()


def left_in(base: Path) -> list[Path]:
    """What is in BASE but what a context was measured to take."""
    return [entry for entry in base.iterdir() if entry.name != "contexts.json"]
