# SPDX-License-Identifier: Apache-2.0
"""What time slices do on a GPU that is used twice over: total times of jobs on the simulated driver, and a plot.

Each job allocates more than its physical share and then runs kernels, one after the other. They run alone, one after
the other; together on plain managed memory; and together with the agent's time slices. Times are those of the simulated
GPU, which moves pages as slowly as its machine file says. What time slices cost where everything fits: `fits`.

    python -m tests.bench.time_slices [--kernels N] [--svg docs/time-slices.svg]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import vcuda
from agent.inventory.source import Inventory
from agent.limits.time_slice_manager import TimeSliceManager
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core.allocation.table import Allocation, AllocationOptions, AllocationTable
from gigaslice.core.deviceplugin.origin import GpuTokens
from gigaslice.core.model import Topology
from tests.bench.svg import bars
from tests.fakedriver.env import driver_env
from tests.fakes.gpus import make_gpu
from tests.fakes.nodes import of_tokens
from tests.steps import step

GIB, MIB = 1 << 30, 1 << 20
MACHINE = """paging: {paging}
context_memory: 100MiB
gpus: {gpus}
gpu *:
  memory: 16GiB
"""
PROGRAM = r"""
import ctypes, sys, threading, time
from ctypes import byref as ref, c_size_t, c_ulonglong, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
kernels, each, limit, sizes = int(sys.argv[1]), sys.argv[2].encode(), float(sys.argv[3]), sys.argv[4:]
def good(code):
    assert code == 0, code
def prepare(device, blocks):
    context, module, function, address = c_void_p(), c_void_p(), c_void_p(), c_ulonglong()
    good(cuda.cuDevicePrimaryCtxRetain(ref(context), device))
    good(cuda.cuCtxSetCurrent(context))
    for _ in range(blocks):
        good(cuda.cuMemAlloc_v2(ref(address), c_size_t(512 << 20)))
    good(cuda.cuModuleLoadData(ref(module), b"image"))
    good(cuda.cuModuleGetFunction(ref(function), module, b"work_" + each))
    return context, function
def work(context, function):
    good(cuda.cuCtxSetCurrent(context))
    for n in range(kernels):
        good(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
        good(cuda.cuStreamSynchronize(None))
        if time.monotonic() - began > limit:
            break
    return n + 1
good(cuda.cuInit(0))
gpus = [prepare(device, int(blocks)) for device, blocks in enumerate(sizes) if int(blocks)]
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
for gpu in gpus[1:]:
    threading.Thread(target=work, args=gpu, daemon=True).start()
print(work(*gpus[0]), time.monotonic() - began, flush=True)
"""


@dataclass
class Job:
    """A container on the node, and the program in it."""

    allocation: Allocation
    process: subprocess.Popen[str]

    def go(self) -> None:
        """Lets it compute."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> tuple[int, float]:
        """Kernels done and seconds."""
        output, _ = self.process.communicate()
        assert self.process.returncode == 0, output
        done, seconds = output.split()
        return int(done), float(seconds)


@dataclass
class Node:
    """Simulated GPUs of 16 GiB and the state of an agent for them."""

    directory: Path
    paging: str = "1500ns"
    gpus: int = 1
    store: Store = field(init=False)
    driver: dict[str, str] = field(init=False)
    inventory: Inventory = field(init=False)

    def __post_init__(self) -> None:
        machine = self.directory / "gpu.txt"
        machine.write_text(MACHINE.format(paging=self.paging, gpus=self.gpus))
        self.driver = driver_env(machine, self.directory / "machine")
        code = (
            "import pynvml as n; n.nvmlInit(); "
            f"print(*(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range({self.gpus})))"
        )
        uuids = subprocess.run(
            [sys.executable, "-c", code], env=self.driver, check=True, capture_output=True, text=True
        ).stdout.split()
        gpus = tuple(make_gpu(n, 32, uuid=uuid, host_bytes=16 * GIB) for n, uuid in enumerate(uuids))
        self.inventory = Inventory(gpus, Topology.flat(self.gpus))
        self.store = Store(self.directory / "state", vcuda.library_path(), codec=CODEC)
        self.store.open()

    def start(
        self,
        gib: int | tuple[int, ...],
        kernels: int,
        each: str = "2ms",
        limit: float = 1e9,
        physical: int = GIB,
        **policy: bool,
    ) -> Job:
        """A container with GIB of quota (of each GPU), whose program has allocated all but 1 GiB of it and waits for
        `go`. What it does on the first of its GPUs is counted."""
        sizes = gib if isinstance(gib, tuple) else (gib,)
        allocation = self.allocation(sizes, physical, **policy)
        arguments = [str(kernels), each, str(limit), *(str(max(0, 2 * size - 2)) for size in sizes)]
        return self.run(PROGRAM, arguments, allocation)

    def allocation(self, sizes: tuple[int, ...], physical: int = GIB, **policy: bool) -> Allocation:
        """A container with SIZES GiB of quota on the first GPUs."""
        table: AllocationTable = self.store.table
        number = table.next_number
        tokens = [
            GpuTokens(gpu.uuid, tuple(f"{gpu.uuid}/{1000 * number + n}" for n in range(size)))
            for gpu, size in zip(self.inventory.gpus, sizes, strict=False)
            if size
        ]
        rules = AllocationOptions(oversubscribe=True, **policy)  # type: ignore[arg-type]
        allocation = of_tokens(
            number, *tokens, created=time.time(), library=self.store.library, policy=rules,
            physical_bytes=physical,
        )  # fmt: skip
        self.store.commit(table.with_allocation(allocation), [allocation])
        return allocation

    def run(self, program: str, arguments: Sequence[str], allocation: Allocation) -> Job:
        """PROGRAM in that container, once it has printed that it is ready."""
        quota = {
            "LD_PRELOAD": str(vcuda.library_path()),
            "VCUDA_DIR": str(self.store.dirs.path(allocation.id)),
        }
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env={**self.driver, **quota},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "ready\n", line
        return Job(allocation, process)

    def end(self, job: Job) -> None:
        """The container is gone."""
        if job.process.poll() is None:
            job.process.kill()
        if job.process.stdout is not None and not job.process.stdout.closed:
            job.process.communicate()
        self.store.update(self.store.table.without([job.allocation.id]))
        self.store.dirs.remove(job.allocation.id)

    @contextmanager
    def manager(self, rests: threading.Event | None = None) -> Iterator[TimeSliceManager]:
        """The agent's time slices, in a thread, which does nothing while RESTS is set."""
        manager = TimeSliceManager(self.store, lambda: self.inventory)
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(manager.pause):
                if rests is None or not rests.is_set():
                    manager.poll()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield manager
        finally:
            stop.set()
            thread.join()
            manager.end_all()


def together(node: Node, sizes: Sequence[int], kernels: int, limit: float = 1e9) -> tuple[float, int]:
    """Seconds until all jobs were done, and kernels of all."""
    jobs = [node.start(gib, kernels, limit=limit) for gib in sizes]
    began = time.monotonic()
    for job in jobs:
        job.go()
    done = sum(job.result()[0] for job in jobs)
    passed = time.monotonic() - began
    for job in jobs:
        node.end(job)
    return passed, done


def one_by_one(node: Node, sizes: Sequence[int], kernels: int) -> float:
    """Seconds of one job after the other."""
    return sum(together(node, [gib], kernels)[0] for gib in sizes)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", type=int, default=5000)
    parser.add_argument("--svg", type=Path)
    parsed = parser.parse_args()
    kernels: int = parsed.kernels
    figures: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="gigaslice-time-slices-") as scratch:
        node = Node(Path(scratch))
        with step("two jobs, one after the other"):
            alone = one_by_one(node, [16, 16], kernels)
        figures.append(("one after the other", alone))
        with step("both together, managed memory alone"):
            passed, done = together(node, [16, 16], kernels, limit=max(10.0, alone / 2))
        figures.append(("together, managed memory alone", passed * 2 * kernels / done))
        with node.manager(), step("both together, with time slices"):
            figures.append(("together, with time slices", together(node, [16, 16], kernels)[0]))
    for label, seconds in figures:
        print(f"{label:32} {seconds:8.1f} s {seconds / alone:6.2f}")
    if parsed.svg:
        parsed.svg.write_text(
            bars("Two jobs of 16 GiB on a GPU of 16 GiB: total time", "s", figures[:3]), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
