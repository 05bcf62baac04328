# SPDX-License-Identifier: Apache-2.0
"""Paired timings of the vCUDA library on the simulated driver.

Two copies of build/bench/driver_bench live side by side, one plain and one under the library. In each of many short
rounds both run the same command one after the other (in alternating order, on the same processor), so that what the
machine does to one it does to the other. Processors of virtual machines run at two speeds, by what their host has to do
besides: the figures are medians of the faster half of each side's rounds. Printed are both, their ratio and the
difference.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.fakedriver.env import driver_env
from tests.steps import each, step
from vcuda import GpuLimit, create_ledger, create_limits, library_path

ROOT = Path(__file__).resolve().parents[2]
HARNESS = ROOT / "build/bench/driver_bench"
MACHINE = "one-h200"
ROUNDS = 81
# Label, command of the harness, size, count.
REST = (
    ("cuMemCreate+cuMemRelease 2 MiB", "create_release", 2 << 20, 50000),
    ("cuMemGetInfo", "mem_info", 0, 200000),
    ("nvmlDeviceGetMemoryInfo", "nvml_memory", 0, 200000),
    ("nvmlDeviceGetMemoryInfo_v2", "nvml_memory_v2", 0, 200000),
    ("cuLaunchKernel, no compute limit", "launch", 0, 200000),
    ("  on a stream of its own", "launch_stream", 0, 200000),
    ("dlsym of a hooked name", "dlsym", 0, 50000),
    ("dlsym of another name of the driver", "dlsym_other", 0, 50000),
    ("dlsym of a hooked name in RTLD_DEFAULT", "dlsym_default", 0, 50000),
    ("dlsym of anything else", "dlsym_foreign", 0, 50000),
    ("cuGetProcAddress of a hooked name", "get_proc", 0, 50000),
    ("cuGetProcAddress of another name", "get_proc_other", 0, 50000),
)


class Side:
    """One running harness; PINNED: always on the same processor."""

    def __init__(self, env: dict[str, str], pinned: bool = False) -> None:
        self.process = subprocess.Popen(
            [str(HARNESS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, bufsize=1
        )
        if pinned:
            os.sched_setaffinity(self.process.pid, {max(os.sched_getaffinity(0))})

    def send(self, command: str, size: int, count: int) -> None:
        """Starts COUNT operations."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command} {size} {count}\n")

    def answer(self, command: str) -> float:
        """Nanoseconds per operation, as the harness itself took them."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"bench: the harness ended while it ran {command}")
        return float(line)

    def time(self, command: str, size: int, count: int) -> float:
        """Nanoseconds per operation."""
        self.send(command, size, count)
        return self.answer(command)

    def close(self) -> None:
        """End the process and wait for it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def paired(plain: Side, hooked: Side, command: str, size: int, count: int) -> tuple[float, float, float]:
    """Both sides, and their ratio."""
    sides = (plain, hooked)
    times: tuple[list[float], list[float]] = ([], [])
    for number in each(range(ROUNDS), f"{command}, rounds", even=True):
        for side in (0, 1) if number % 2 else (1, 0):
            times[side].append(sides[side].time(command, size, count))
    native, ours = map(quartile, times)
    return native, ours, ours / native


def quartile(times: list[float]) -> float:
    """Median of the faster half."""
    return statistics.median(sorted(times)[: (len(times) + 1) // 2])


def only(side: Side, command: str, size: int, count: int) -> float:
    """The same of a command that has no plain counterpart."""
    return quartile([side.time(command, size, count) for _ in range(ROUNDS)])


def hooked_env(env: dict[str, str], directory: Path, uuid: str, **more: int) -> dict[str, str]:
    """The environment of a process with a quota of 64 GiB. MORE: other fields of its limit, or another size."""
    gpu = GpuLimit(uuid=uuid, **{"memory_bytes": 64 << 30, **more})
    directory.mkdir(exist_ok=True)
    identity = os.urandom(16)
    create_ledger(directory / "ledger", identity, [gpu])
    create_limits(directory / "limits", identity, [gpu])
    return env | {"LD_PRELOAD": str(library_path()), "VCUDA_DIR": str(directory)}


LAUNCHES = (
    ("a share that does not bind", {"cores_percent": 99}),
    ("host memory, and everything fits", {"physical_bytes": 32 << 30}),
    ("both", {"cores_percent": 99, "physical_bytes": 32 << 30}),
)


def gpu_uuid(env: dict[str, str]) -> str:
    """UUID of the simulated GPU."""
    code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0)))"
    return subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


def starts(env: dict[str, str], hooked: dict[str, str], count: int, rounds: int, *argv: str) -> list[float]:
    """COUNT processes at once, ROUNDS times: see start_pairs() in driver_bench.c for the eight numbers."""
    env = env | {key: value for key, value in hooked.items() if key != "LD_PRELOAD"}
    return harness_numbers(env, "start", str(count), str(rounds), hooked["LD_PRELOAD"], *argv)


def harness_numbers(env: dict[str, str], *argv: str) -> list[float]:
    """What one run of the harness prints."""
    output = subprocess.run([str(HARNESS), *argv], env=env, check=True, capture_output=True, text=True).stdout
    return [float(number) for number in output.split()]


def first_calls(env: dict[str, str], hooked: dict[str, str], rounds: int) -> list[float]:
    """cuInit, context and first allocation, timed inside the process: see calls_pairs() in driver_bench.c."""
    env = env | {key: value for key, value in hooked.items() if key != "LD_PRELOAD"}
    return harness_numbers(env, "calls", str(rounds), hooked["LD_PRELOAD"])


def start_table(env: dict[str, str], hooked: dict[str, str]) -> Table:
    """Starts of processes, one by one and many at once."""
    processes = Table(
        *(
            "program",
            "native",
            "with vCUDA",
            "difference",
            "ratio",
            "processor time, difference",
            "ratio",
        ),
        title="process start (µs)",
    )
    for column in processes.columns[1:]:
        column.justify = "right"
    with step("first calls of 400 processes"):
        native, ours, more, ratio = first_calls(env, hooked, 400)
    processes.add_row(
        *(
            "cuInit + context + first allocation",
            f"{native:.0f}",
            f"{ours:.0f}",
            f"{more:+.0f}",
            f"{ratio:.2f}",
        ),
        *("", ""),
    )
    cases = (
        ("/bin/true", 1, 1500, ("/bin/true",)),
        ("a process that does that and ends", 1, 400, (str(HARNESS), "first")),
        ("300 of these at once", 300, 9, (str(HARNESS), "first")),
        ("300 that compute for 20 ms besides", 300, 3, (str(HARNESS), "first", "20")),
    )
    for label, count, rounds, argv in each(cases, lambda case: f"starts of {case[0]}"):
        native, ours, more, ratio, _, _, cpu_more, cpu_ratio = starts(env, hooked, count, rounds, *argv)
        processes.add_row(
            *(label, f"{native:.0f}", f"{ours:.0f}", f"{more:+.0f}", f"{ratio:.2f}"),
            *(f"{cpu_more:+.0f}", f"{cpu_ratio:.2f}"),
        )
    return processes


def main() -> None:
    """Print the tables."""
    table = Table(
        "operation", "native", "with vCUDA", "ratio", "added", title="vCUDA on the simulated driver (ns)"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    flat: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="gigaslice-bench-") as scratch:
        state = Path(scratch) / "state"
        quota = Path(scratch) / "quota"
        quota.mkdir()
        env = driver_env(MACHINE, state)
        hooked = hooked_env(env, quota, gpu_uuid(env))
        plain_side, hooked_side = Side(env, pinned=True), Side(hooked, pinned=True)

        def row(label: str, command: str, size: int, count: int) -> tuple[float, float]:
            native, ours, ratio = paired(plain_side, hooked_side, command, size, count)
            table.add_row(label, f"{native:.1f}", f"{ours:.1f}", f"{ratio:.2f}", f"{ours - native:+.1f}")
            return native, ours

        row("cuMemAlloc+cuMemFree 4 KiB", "alloc_free", 4096, 50000)
        row("cuMemAlloc+cuMemFree 2 MiB", "alloc_free", 2 << 20, 50000)
        for live in (0, 1000, 10000, 100000):
            for side in (plain_side, hooked_side):
                side.time("hold", 4096, live)
            native, ours = row(f"cuMemAlloc+cuMemFree 4 KiB, {live} live", "alloc_free", 4096, 50000)
            flat.append((live, ours - native))
            if live:
                row(f"  at random places, {live} live", "random", 4096, 20000)
        for side in (plain_side, hooked_side):
            side.time("hold", 4096, 0)
        for side in (plain_side, hooked_side):
            side.time("synchronize", 0, 1)
        row("cuStreamSynchronize, nothing freed", "synchronize", 0, 200000)
        default = row("cuMemAllocAsync+cuMemFreeAsync 4 KiB", "alloc_free_async", 4096, 50000)
        row("  on a stream of its own", "alloc_free_stream", 4096, 50000)
        for rest in REST:
            row(*rest)
        for number, (what, more) in enumerate(LAUNCHES):
            held = Side(hooked_env(env, Path(scratch) / f"quota{number}", gpu_uuid(env), **more), pinned=True)
            for stream, command in (("", "launch"), (", on a stream of its own", "launch_stream")):
                native, ours, ratio = paired(plain_side, held, command, 0, 50000)
                label = f"cuLaunchKernel with {what}{stream}"
                table.add_row(label, f"{native:.1f}", f"{ours:.1f}", f"{ratio:.2f}", f"{ours - native:+.1f}")
            held.close()
        refusal = only(hooked_side, "refused", 65 << 30, 20000)
        table.add_row("refusal over the limit", "", f"{refusal:.1f}", "", "")
        plain_side.close()
        hooked_side.close()
        roomy = hooked_env(
            env, Path(scratch) / "crowd", gpu_uuid(env), memory_bytes=128 << 30
        )  # 300 contexts
        processes = start_table(env, roomy)
    console = Console(width=110)
    console.print(table)
    added = dict(flat)
    console.print(
        "added cost from 0 to 100,000 live allocations: "
        + ", ".join(f"{live}: {value:+.1f} ns" for live, value in added.items())
        + f" (largest/smallest {max(added.values()) / max(min(added.values()), 0.1):.2f})"
    )
    pair = min(added.values())
    console.print(f"with a driver whose pair costs 50 ns: {(50 + pair) / 50:.2f} times native")
    added_async = default[1] - default[0]
    console.print(f"and whose stream-ordered pair costs 50 ns: {(50 + added_async) / 50:.2f} times native")
    console.print(processes)


if __name__ == "__main__":
    main()
