# SPDX-License-Identifier: Apache-2.0
"""Programs whose limit is in their environment, on a simulated machine, and this user's quotas."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.command import runtime
from tests.native.running import Place

PYTHON = sys.executable

# Prints the directory and the size of the GPU that CUDA shows, takes as many MiB as its argument says, waits for stdin.
TAKE = """
import ctypes, os, sys
d = ctypes.CDLL("libcuda.so.1")
context, block, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
codes = [d.cuInit(0), d.cuDeviceTotalMem_v2(ctypes.byref(total), 0)]
codes += [d.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), d.cuCtxSetCurrent(context)]
codes += [d.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(int(sys.argv[1]) << 20))]
print(os.environ.get("VCUDA_DIR", "-"), total.value >> 20, codes[0], codes[-1], flush=True)
sys.stdin.read()
"""


class Stage:
    """A machine, and a directory for this user's quotas."""

    def __init__(self, directory: Path) -> None:
        self.place = Place(directory)
        self.base = runtime(directory) / "vcuda"
        self.started: list[subprocess.Popen[str]] = []

    def env(self, limit: str | None = "4GiB", **extra: str) -> dict[str, str]:
        limits = {} if limit is None else {"VCUDA_MEMORY_LIMIT": limit}
        kept = {
            name: value
            for name, value in self.place.env().items()
            if name != "_" and not name.startswith("VCUDA_")
        }
        quiet = {
            "VCUDA_REFUSALS": "off"
        }  # programs here are refused on purpose, and what they write is compared
        return kept | quiet | {"XDG_RUNTIME_DIR": str(self.base.parent)} | limits | extra

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        environment = self.env(**variables)
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.started.append(process)
        return process

    def run(
        self, *command: str, limit: str | None = "4GiB", **extra: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.env(limit, **extra),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=100,
            check=False,
        )

    def take(self, mib: int = 1, **variables: str) -> subprocess.Popen[str]:
        return self.start(PYTHON, "-c", TAKE, str(mib), **variables)

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.base.iterdir())

    def heads(self) -> list[Path]:
        return sorted(self.base.glob("env-*"))


@contextlib.contextmanager
def staged(directory: Path) -> Iterator[Stage]:
    """A machine below DIRECTORY; its programs end with it."""
    stage = Stage(directory)
    yield stage
    for process in stage.started:
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()


def answer(process: subprocess.Popen[str]) -> list[str]:
    """Directory, MiB that CUDA shows, result of cuInit, result of the allocation."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line.split()


def finish(*processes: subprocess.Popen[str]) -> list[str]:
    return [process.communicate(timeout=60)[1] for process in processes]


def kill(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.communicate()
