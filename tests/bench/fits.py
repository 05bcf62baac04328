# SPDX-License-Identifier: Apache-2.0
"""What memory beyond the GPU costs where everything fits: rates of kernels, with all of it and without any.

Four jobs live on one simulated GPU and fit it: two in containers with host memory, with the agent's time slices beside
them, and two without the library, on plain memory of the GPU. Only two compute at a time. Which two changes several
times a second, so that other work of the machine hits both alike; a short while after each change is not counted.

    python -m tests.bench.fits [--pairs N]
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path

from tests import steps
from tests.bench.time_slices import Node

NATIVE, SHARED, NONE, OVER = range(4)
"""Who may compute, as the programs read it."""
SETTLING, WINDOW = 0.04, 0.16  # seconds: not counted, and counted
KERNELS = {"20us": 200, "200us": 20, "2ms": 2}
"""How long kernels take, and how many a job queues before it waits for them: work for 4 ms."""
PROGRAM = r"""
import ctypes, mmap, struct, sys, time
from ctypes import byref as ref, c_size_t, c_ulonglong, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
path, number, who, each, queued = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4].encode(), int(sys.argv[5])
def good(code):
    assert code == 0, code
with open(path, "r+b") as file:
    board = mmap.mmap(file.fileno(), 0)
context, module, function, address = c_void_p(), c_void_p(), c_void_p(), c_ulonglong()
good(cuda.cuInit(0))
good(cuda.cuDevicePrimaryCtxRetain(ref(context), 0))
good(cuda.cuCtxSetCurrent(context))
for _ in range(6):
    good(cuda.cuMemAlloc_v2(ref(address), c_size_t(512 << 20)))
good(cuda.cuModuleLoadData(ref(module), b"image"))
good(cuda.cuModuleGetFunction(ref(function), module, b"work_" + each))
print("ready", flush=True)
done = 0
while (computing := board[0]) != 3:
    if computing != who:
        time.sleep(0.001)
        continue
    for _ in range(queued):
        good(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
    good(cuda.cuStreamSynchronize(None))
    done += queued
    struct.pack_into("<Q", board, 8 * number, done)
"""


@dataclass
class Board:
    """A page that programs and bench share: who may compute, then each job's count of kernels."""

    memory: mmap.mmap

    def let(self, who: int) -> None:
        """From now on WHO computes."""
        self.memory[0] = who

    def rate(self, who: int) -> float:
        """Kernels a second of the two jobs of WHO, in one window."""
        self.let(who)
        time.sleep(SETTLING)
        first, begin = self._counts(who), time.monotonic()
        time.sleep(WINDOW)
        last, end = self._counts(who), time.monotonic()
        return (last - first) / (end - begin)

    def _counts(self, who: int) -> int:
        found = struct.unpack_from("<5Q", self.memory, 0)
        return int(found[1 + 2 * who] + found[2 + 2 * who])


def measure(node: Node, directory: Path, each: str, pairs: int) -> list[float]:
    """Rates without the library in rates with it, for kernels that take EACH: more than 1 is what it costs."""
    path = directory / f"board-{each}"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file:
        board = Board(mmap.mmap(file.fileno(), 4096))
    board.let(NONE)

    def arguments(number: int, who: int) -> list[str]:
        return [str(path), str(number), str(who), each, str(KERNELS[each])]

    rests = threading.Event()
    plain, jobs = [], []
    ratios: list[float] = []
    try:
        for number in (1, 2):
            command = [sys.executable, "-c", PROGRAM, *arguments(number, NATIVE)]
            plain.append(subprocess.Popen(command, env=node.driver, stdout=subprocess.PIPE, text=True))
            assert plain[-1].stdout is not None
            assert plain[-1].stdout.readline() == "ready\n"
        for number in (3, 4):
            allocation = node.allocation((4,), physical=1 << 30)
            jobs.append(node.run(PROGRAM, arguments(number, SHARED), allocation))
        with node.manager(rests):
            for pair in steps.each(range(pairs), f"kernels of {each}, pairs", even=True):
                rates = {}
                for who in (NATIVE, SHARED) if pair % 2 else (SHARED, NATIVE):
                    (rests.set if who == NATIVE else rests.clear)()
                    rates[who] = board.rate(who)
                if any(rates.values()):  # else the machine itself stood still
                    ratios.append(rates[NATIVE] / rates[SHARED] if rates[SHARED] else inf)
    finally:
        board.let(OVER)
        for process in plain:
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
        for job in jobs:
            job.process.wait(30)
            node.end(job)
    return ratios


def between(ratios: list[float]) -> tuple[float, float]:
    """Where the median of all such pairs lies with 95 % certainty, whatever their distribution: ranks of a binomial."""
    values, half = sorted(ratios), 0.98 * sqrt(len(ratios))
    low, high = round(len(values) / 2 - half), round(len(values) / 2 + half)
    return values[max(0, low - 1)], values[min(len(values) - 1, high)]


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=100, help="of windows of a fifth of a second each")
    pairs: int = parser.parse_args().pairs
    print("two jobs that fit the GPU, with host memory and time slices: time in that without the library")
    with tempfile.TemporaryDirectory(prefix="gigaslice-fits-") as scratch:
        node = Node(Path(scratch))
        for each in KERNELS:
            ratios = measure(node, Path(scratch), each, pairs)
            low, high = between(ratios)
            print(
                f"kernels of {each:>5}: {statistics.median(ratios):.4f} "
                f"(median of {len(ratios)} pairs; 95 % certain: {low:.4f} to {high:.4f})"
            )


if __name__ == "__main__":
    main()
