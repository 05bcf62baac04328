# SPDX-License-Identifier: Apache-2.0
"""Many processes at once on one quota, paired with as many that have none.

All allocate and free at the same time; the figure is wall time by operations of one process, so a lock held by a
process that does not run shows in it. Printed is the median over rounds, native and hooked in alternating order.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.driver import MACHINE, Side, gpu_uuid, hooked_env
from tests.fakedriver.env import driver_env
from tests.steps import each

CROWDS = (1, 2, 8)
OPERATIONS = 20000
ROUNDS = 15


def wall(sides: list[Side], size: int) -> float:
    """Nanoseconds of wall time per operation of one process, all running at once."""
    begun = time.monotonic_ns()
    for side in sides:
        side.send("alloc_free", size, OPERATIONS)
    for side in sides:
        side.answer("alloc_free")
    return (time.monotonic_ns() - begun) / OPERATIONS


def measure(crowd: int, env: dict[str, str], hooked: dict[str, str]) -> tuple[float, float, float]:
    """Medians of both sides and of the ratio within a round."""
    groups = [[Side(env) for _ in range(crowd)], [Side(hooked) for _ in range(crowd)]]
    times: tuple[list[float], list[float]] = ([], [])
    for group in groups:
        wall(group, 4096)  # slots are taken, pages are there
    for number in range(ROUNDS):
        for index in (0, 1) if number % 2 else (1, 0):
            times[index].append(wall(groups[index], 4096))
    for side in groups[0] + groups[1]:
        side.close()
    ratios = [b / a for a, b in zip(*times, strict=True)]
    return statistics.median(times[0]), statistics.median(times[1]), statistics.median(ratios)


def main() -> None:
    """Print the table."""
    table = Table(
        "processes", "native", "with vCUDA", "ratio", title="wall time per cuMemAlloc+cuMemFree (ns)"
    )
    for column in table.columns:
        column.justify = "right"
    for crowd in each(CROWDS, lambda crowd: f"{crowd} processes at once"):
        with tempfile.TemporaryDirectory(prefix="gigaslice-bench-") as scratch:
            quota = Path(scratch) / "quota"
            quota.mkdir()
            env = driver_env(MACHINE, Path(scratch) / "state")
            native, ours, ratio = measure(crowd, env, hooked_env(env, quota, gpu_uuid(env)))
            table.add_row(str(crowd), f"{native:.0f}", f"{ours:.0f}", f"{ratio:.2f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
