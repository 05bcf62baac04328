# SPDX-License-Identifier: Apache-2.0
"""Shares of a simulated GPU's time with real processes, and what a launch costs: a table, and a plot.

`python -m tests.bench.shares` prints them (make bench does); with `--write` they go into docs/compute.md and
docs/compute.svg. With `--random 40` it measures random schedules instead: one container that always has work beside
processes that mix kernels and pauses. What each container had is what the simulated driver says it had.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.native.running import CLIENTS, LIBRARY, ROOT
from tests.native.sharing import LONG, SMALL, SYNCHRONOUS, Stage, Tenant, Work
from tests.steps import each
from tests.unit.docs.page_tables import rendered

PAGE = ROOT / "docs" / "compute.md"
PLOT = ROOT / "docs" / "compute.svg"
MIXTURE: Work = ("stream", "work_3ms", "7", "1000")
GRAPHS: Work = ("graph", "work_5ms", "0", "0")


@dataclass(frozen=True)
class Case:
    """Containers side by side: share, work, number of processes of each."""

    name: str
    containers: tuple[tuple[int, Work, int], ...]


CASES = (
    Case("30 alone, small kernels", ((30, SMALL, 1),)),
    Case("30 alone, kernels of 60 ms", ((30, LONG, 1),)),
    Case("30 alone, each kernel waited for", ((30, SYNCHRONOUS, 1),)),
    Case("30 and 70, small kernels", ((30, SMALL, 1), (70, SMALL, 1))),
    Case("30 and 70, kernels of 60 ms", ((30, LONG, 1), (70, LONG, 1))),
    Case("10 and 90, long beside small", ((10, LONG, 1), (90, SMALL, 1))),
    Case("10 and 90, small beside long", ((10, SMALL, 1), (90, LONG, 1))),
    Case("25, 25 and 50, graphs, small, long", ((25, GRAPHS, 1), (25, SMALL, 1), (50, LONG, 1))),
    Case("30 with 8 processes and 70 with 1", ((30, SMALL, 8), (70, SMALL, 1))),
    Case("30 with bursts and 70", ((30, MIXTURE, 2), (70, SMALL, 1))),
)


def measured(case: Case, seconds: float) -> list[float]:
    """Percent of the GPU that each container had."""
    with tempfile.TemporaryDirectory() as directory, Stage(Path(directory)) as stage:
        for cores, work, count in case.containers:
            stage.start(stage.tenant(cores), work, count)
        return stage.shares(seconds, settle=1.0)


def rows(seconds: float) -> Iterator[str]:
    """The table, line by line as it is measured."""
    yield f"| containers | per cent of the GPU over {seconds:g} s |\n| --- | --- |\n"
    for case in each(CASES, lambda case: case.name):
        got = ", ".join(f"{share:.1f}" for share in measured(case, seconds))
        yield f"| {case.name} | {got} |\n"


def random_case(seed: int) -> Case:
    """A container that always has work, and one whose processes mix kernels of a quarter of a millisecond to forty."""
    chance = random.Random(seed)
    longest = chance.choice((1_000, 40_000))
    kernels = [f"work_{chance.randint(250, longest)}us" for _ in range(chance.randint(1, 6))]
    batch = chance.choice((0, 1, 1, 2, len(kernels)))
    mixture: Work = ("plain", ",".join(kernels), str(batch), str(chance.randint(0, 5_000)))
    share = chance.randint(20, 80)
    return Case(f"seed {seed}", ((share, SMALL, 1), (100 - share, mixture, chance.randint(1, 4))))


def random_gains(count: int, seconds: float) -> None:
    """Prints what the first container had beyond its share, points, for each of so many random schedules."""
    gains = []
    for seed in range(count):
        case = random_case(seed)
        share, neighbour = measured(case, seconds)
        gains.append(share - case.containers[0][0])
        print(f"{gains[-1]:+.1f} (neighbour {neighbour:.1f})", *case.containers, flush=True)
    print(
        f"{count} schedules: least {min(gains):+.1f}, most {max(gains):+.1f}, mean {statistics.mean(gains):+.1f}"
    )


def launch_cost(rounds: int = 9, seconds: float = 0.2) -> str:
    """What a launch costs more under a share that does not bind: paired rounds, median."""
    with tempfile.TemporaryDirectory() as directory, Stage(Path(directory), arbiter=False) as stage:
        tenant = stage.tenant(99)
        plain = stage.place.plain_env()
        shared = plain | {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(tenant.directory)}
        command = [str(CLIENTS / "load"), "stream", "nothing", "0", "0", str(seconds)]
        more = []
        for _ in each(range(rounds), "cost of a launch, rounds", even=True):
            took = []
            for env in (plain, shared):
                done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
                took.append(seconds * 1e9 / int(done.stdout.split()[1]))
            more.append((took[0], took[1] - took[0]))
    base = statistics.median(each[0] for each in more)
    extra = statistics.median(each[1] for each in more)
    return (
        f"A launch of the simulated driver, with a look at the clock, takes {base:.0f} ns, under a share that does not "
        f"bind {extra:.0f} ns more."
    )


WINDOW, LENGTH, COMES, STAYS = 0.1, 7.0, 2.0, 3.0


def course() -> list[tuple[float, list[float]]]:
    """An elastic container with 30 per cent, and one with 70 that comes and goes: time, per cent of each."""
    points = []
    with tempfile.TemporaryDirectory() as directory, Stage(Path(directory)) as stage:
        tenants = [stage.tenant(30, elastic=True), stage.tenant(70)]
        stage.start(tenants[0], SMALL)
        time.sleep(1)
        began, before = time.monotonic(), stage.busy()
        at, started = began, False
        while at - began < LENGTH:
            if not started and at - began >= COMES:
                stage.start(tenants[1], SMALL, seconds=STAYS)
                started = True
            time.sleep(WINDOW)
            now, after = time.monotonic(), stage.busy()
            points.append((now - began, [_part(each, before, after) / (now - at) for each in tenants]))
            at, before = now, after
    return points


def _part(tenant: Tenant, before: dict[int, float], after: dict[int, float]) -> float:
    return 100 * sum(
        max(0.0, after[each.pid] - before.get(each.pid, 0.0)) for each in tenant.programs if each.pid in after
    )


def drawn(points: list[tuple[float, list[float]]]) -> str:
    """The course as a picture."""
    width, height, left, top = 640, 260, 44, 34

    def x(seconds: float) -> float:
        return left + seconds / LENGTH * (width - left - 16)

    def y(percent: float) -> float:
        return top + (1 - min(percent, 105) / 105) * (height - top - 36)

    colours, names = ("#1f77b4", "#d62728"), ("30 %, elastic", "70 %, from 2 s to 5 s")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{width}" height="{height}" fill="#fff"/>'
    ]
    for percent in (0, 30, 70, 100):
        parts.append(
            f'<path d="M{left} {y(percent):.1f}H{width - 16}" stroke="#ccc" stroke-width="1"/>'
            f'<text x="{left - 6}" y="{y(percent) + 4:.1f}" text-anchor="end">{percent}</text>'
        )
    for second in range(int(LENGTH) + 1):
        parts.append(f'<text x="{x(second):.1f}" y="{height - 16}" text-anchor="middle">{second} s</text>')
    for index, (colour, name) in enumerate(zip(colours, names, strict=True)):
        line = " ".join(f"{x(seconds):.1f},{y(each[index]):.1f}" for seconds, each in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{left + 180 * index}" y="18" fill="{colour}">{name}</text>')
    return "".join(parts) + "</svg>\n"


def main() -> None:
    """Print, or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/compute.md and docs/compute.svg")
    parser.add_argument("--random", type=int, metavar="COUNT", help="so many random schedules instead")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    if options.random is not None:
        random_gains(options.random, options.seconds)
        return
    table = []
    for line in rows(options.seconds):
        table.append(line)
        print(line, end="", flush=True)
    cost = launch_cost()
    print(cost)
    if options.write:
        PAGE.write_text(rendered(PAGE.read_text(), {"shares": lambda: f"{''.join(table)}\n{cost}\n"}))
        PLOT.write_text(drawn(course()))


if __name__ == "__main__":
    main()
