"""What turns do on a card that is used twice over: total times of jobs on the simulated driver, and a plot of them.

Each job allocates more than its physical share and then runs kernels, one after the other. They are run alone, one
after the other; together on plain managed memory; together with the turns of the agent; and together where everything
fits. Times are those of the simulated card, which moves pages as slowly as its machine file says.

    python -m tests.bench.turns [--kernels N] [--svg FILE]
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
from agent.control.turns import TurnKeeper
from agent.discovery.source import Inventory
from agent.model import Gpu, Topology
from agent.state.records import Book, Grant, GrantPolicy, Hold
from agent.state.store import Store
from tests.bench.svg import bars
from tests.fakedriver.env import driver_env

GIB, MIB = 1 << 30, 1 << 20
MACHINE = """paging: {paging}
context_memory: 100MiB
gpu 0:
  memory: 16GiB
"""
PROGRAM = r"""
import ctypes, sys, time
from ctypes import byref as ref, c_size_t, c_ulonglong, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
blocks, kernels, each = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
context, module, function, address = c_void_p(), c_void_p(), c_void_p(), c_ulonglong()
def good(code):
    assert code == 0, code
good(cuda.cuInit(0))
good(cuda.cuDevicePrimaryCtxRetain(ref(context), 0))
good(cuda.cuCtxSetCurrent(context))
for _ in range(blocks):
    good(cuda.cuMemAlloc_v2(ref(address), c_size_t(512 << 20)))
good(cuda.cuModuleLoadData(ref(module), b"image"))
good(cuda.cuModuleGetFunction(ref(function), module, b"work_" + each))
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
for n in range(kernels):
    good(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
    good(cuda.cuStreamSynchronize(None))
    if time.monotonic() - began > float(sys.argv[4]):
        break
print(n + 1, time.monotonic() - began, flush=True)
"""


@dataclass
class Job:
    """A container on the node, and the program in it."""

    grant: Grant
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
    """A simulated card of 16 GiB and the state of an agent for it."""

    directory: Path
    paging: str = "1500ns"
    store: Store = field(init=False)
    driver: dict[str, str] = field(init=False)
    inventory: Inventory = field(init=False)

    def __post_init__(self) -> None:
        machine = self.directory / "card.txt"
        machine.write_text(MACHINE.format(paging=self.paging))
        self.driver = driver_env(machine, self.directory / "machine")
        code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0)))"
        uuid = subprocess.run(
            [sys.executable, "-c", code], env=self.driver, check=True, capture_output=True, text=True
        ).stdout.strip()
        gpu = Gpu(uuid, 0, "simulated", 16 * GIB, 32, GIB, host_bytes=16 * GIB)
        self.inventory = Inventory((gpu,), Topology.flat(1))
        self.store = Store(self.directory / "state", vcuda.library_path())
        self.store.open()

    def start(
        self,
        gib: int,
        kernels: int,
        each: str = "2ms",
        limit: float = 1e9,
        physical: int = GIB,
        **policy: bool,
    ) -> Job:
        """A container with GIB of quota, whose program has allocated all but 1 GiB of it and waits for `go`."""
        book: Book = self.store.book
        number = book.next_number
        uuid = self.inventory.gpus[0].uuid
        hold = Hold(uuid, GIB, tuple(f"{uuid}/{1000 * number + n}" for n in range(gib)), physical)
        rules = GrantPolicy(oversubscribe=True, **policy)  # type: ignore[arg-type]
        grant = Grant(f"{number:032x}", number, time.time(), (hold,), self.store.library, policy=rules)
        self.store.commit(book.with_grant(grant), [grant])
        quota = {"LD_PRELOAD": str(vcuda.library_path()), "VCUDA_DIR": str(self.store.dirs.path(grant.id))}
        arguments = [str(2 * gib - 2), str(kernels), each, str(limit)]
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            env={**self.driver, **quota},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "ready\n", line
        return Job(grant, process)

    def end(self, job: Job) -> None:
        """The container is gone."""
        if job.process.poll() is None:
            job.process.kill()
        if job.process.stdout is not None and not job.process.stdout.closed:
            job.process.communicate()
        self.store.update(self.store.book.without([job.grant.id]))
        self.store.dirs.remove(job.grant.id)

    @contextmanager
    def keeper(self) -> Iterator[TurnKeeper]:
        """The agent's turns, in a thread."""
        keeper = TurnKeeper(self.store, lambda: self.inventory)
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.05):
                keeper.look()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield keeper
        finally:
            stop.set()
            thread.join()
            keeper.free_all()


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
    with tempfile.TemporaryDirectory(prefix="gigaslice-turns-") as scratch:
        node = Node(Path(scratch))
        alone = one_by_one(node, [16, 16], kernels)
        figures.append(("one after the other", alone))
        passed, done = together(node, [16, 16], kernels, limit=max(10.0, alone / 2))
        figures.append(("together, managed memory alone", passed * 2 * kernels / done))
        with node.keeper():
            figures.append(("together, with turns", together(node, [16, 16], kernels)[0]))
        fitting = together(node, [7, 7], kernels)[0]
        with node.keeper():
            figures.append(("fitting, with turns", together(node, [7, 7], kernels)[0]))
        figures.append(("fitting, without", fitting))
    for label, seconds in figures:
        print(f"{label:32} {seconds:8.1f} s {seconds / alone:6.2f}")
    if parsed.svg:
        parsed.svg.write_text(
            bars("Two jobs of 16 GiB on a card of 16 GiB: total time", "s", figures[:3]), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
