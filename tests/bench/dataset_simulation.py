# SPDX-License-Identifier: Apache-2.0
"""What dataset affinity gains and costs on a simulated cluster: tables and a plot for docs/simulation.md.

The scores and the eviction are the product's own code, the cluster is a model (`dataset_cluster`). The same jobs go
through every policy, and equal seeds give equal tables.

    python -m tests.bench.dataset_simulation [--jobs N] [--seeds N] [--write]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from tests import steps
from tests.bench.dataset_cluster import Cluster, Policy
from tests.bench.dataset_workload import Shape, Workload, workload
from tests.bench.svg import columns
from tests.unit.docs.page_tables import rendered

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, PLOT = DOCS / "simulation.md", DOCS / "dataset-affinity.svg"

POLICIES = {
    "spread": Policy(pack=False),
    "pack": Policy(),
    **{f"pack + paper {weight:g}": Policy(rule="paper", weight=weight) for weight in (0.25, 0.5, 1)},
    **{f"pack + bytes {weight:g}": Policy(rule="bytes", weight=weight) for weight in (0.25, 0.5, 1)},
}
COMPARED = ("pack", "pack + paper 0.5", "pack + bytes 0.5")
LARGER = ((1, 0.4), (2, 0.2), (4, 0.2), (8, 0.2))
"""GPUs of a job where large ones are more frequent than in philly: three of four GPUs are in jobs of 4 and 8."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What came out of one run. hit: share of jobs that fetched nothing. bytes_hit: share of the bytes asked for that
    were there or on their way. fetched: bytes. wait: mean seconds from arrival to GPUs. data: mean seconds from GPUs
    to complete datasets. past_cache: datasets that found no room.
    """

    hit: float
    bytes_hit: float
    fetched: int
    wait: float
    data: float
    past_cache: int


def simulate(jobs: Workload, policy: Policy) -> Figures:
    """Runs all jobs under a policy."""
    done = Cluster(jobs, policy).run()
    fetched = sum(one.fetched for one in done)
    return Figures(
        sum(not one.fetched for one in done) / len(done),
        1 - fetched / jobs.asked,
        fetched,
        fmean(one.start - one.job.arrival for one in done),
        fmean(one.data - one.start for one in done),
        sum(len(one.past_cache) for one in done),
    )


def compare(
    policies: Mapping[str, Policy], shape: Shape, seeds: int, title: str = "the cluster"
) -> dict[str, list[Figures]]:
    """The figures of every seed by policy."""
    found: dict[str, list[Figures]] = {name: [] for name in policies}
    for seed in steps.each(range(1, seeds + 1), f"{title}, seeds", even=True):
        jobs = workload(seed, shape)
        for name, policy in policies.items():
            found[name].append(simulate(jobs, policy))
    return found


def difference(found: Sequence[Figures], pack: Sequence[Figures]) -> tuple[float, float]:
    """Seconds that jobs wait longer for GPUs than with packing alone: mean over the seeds, and its standard error."""
    more = [one.wait - base.wait for one, base in zip(found, pack, strict=True)]
    return fmean(more), stdev(more) / sqrt(len(more)) if len(more) > 1 else 0.0


def cells(found: Sequence[Figures], pack: Sequence[Figures]) -> list[str]:
    """A policy's means over the seeds; factors and differences are against packing alone."""
    wait, data, fetched = (fmean(getattr(one, name) for one in found) for name in ("wait", "data", "fetched"))
    more, error = difference(found, pack)
    return [
        f"{fmean(one.hit for one in found):.2f}",
        f"{fmean(one.bytes_hit for one in found):.2f}",
        f"{fetched / 2**40:.0f}",
        f"{fetched / fmean(one.fetched for one in pack):.2f}",
        f"{wait:.0f}",
        f"{wait / (fmean(one.wait for one in pack) or 1.0):.2f}",
        f"{more:+.0f} ± {error:.0f}" if found is not pack else "",
        f"{data:.0f}",
        f"{wait + data:.0f}",
    ]


HEAD = "jobs fully hit | bytes hit | fetched TiB | × pack | wait for GPUs s | × pack | more s | for data s | both s |"


def policies_table(found: Mapping[str, Sequence[Figures]]) -> str:
    """All policies on the one cluster."""
    lines = [f"| policy | {HEAD}\n| --- |{' ---: |' * 9}"]
    lines += [f"| {name} | {' | '.join(cells(one, found['pack']))} |" for name, one in found.items()]
    return "\n".join(lines) + "\n"


def variations(shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Other clusters than the one of the first table."""
    yield "load 0.95", replace(shape, load=0.95)
    yield "larger jobs", replace(shape, sizes=LARGER)
    yield "larger jobs, load 0.95", replace(shape, sizes=LARGER, load=0.95)
    yield "cache 5 %", replace(shape, cache=0.05)
    yield "cache 20 %", replace(shape, cache=0.20)
    yield "fetching at 0.25 GB/s", replace(shape, rate=shape.rate / 4)


def variations_table(shape: Shape, seeds: int) -> str:
    """Some policies on other clusters."""
    lines = [f"| cluster | policy | {HEAD}\n| --- | --- |{' ---: |' * 9}"]
    for title, one in variations(shape):
        found = compare({name: POLICIES[name] for name in COMPARED}, one, seeds, title)
        lines += [
            f"| {title} | {name} | {' | '.join(cells(found[name], found['pack']))} |" for name in COMPARED
        ]
    return "\n".join(lines) + "\n"


def plot(found: Mapping[str, Sequence[Figures]]) -> str:
    """What the first table says, drawn. Spreading's wait is left out: it would hide the others'."""
    error = max(difference(each, found["pack"])[1] for name, each in found.items() if name != "spread")
    return columns(
        "Dataset affinity, simulated: 50 nodes, 200 datasets",
        list(found),
        [
            ("jobs fully hit", "{:.2f}", [fmean(one.hit for one in each) for each in found.values()]),
            (
                "fetched, TiB",
                "{:.0f}",
                [fmean(one.fetched for one in each) / 2**40 for each in found.values()],
            ),
            (
                f"wait until it runs, s (± {error:.0f})",
                "{:.0f}",
                [
                    fmean(one.wait + one.data for one in each) if name != "spread" else None
                    for name, each in found.items()
                ],
            ),
        ],
    )


def main() -> None:
    """Prints the tables, or writes them and the plot into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=6000)
    parser.add_argument(
        "--seeds", type=int, default=10, help="of the first table; the second has half as many"
    )
    parser.add_argument(
        "--write", action="store_true", help="into docs/simulation.md and docs/dataset-affinity.svg"
    )
    options = parser.parse_args()
    shape = Shape(jobs=options.jobs)
    found = compare(POLICIES, shape, options.seeds)
    first = policies_table(found)
    print(first, flush=True)
    second = variations_table(shape, max(1, options.seeds // 2))
    print(second)
    if options.write:
        tables = {"datasets": lambda: f"{first}\n{second}"}
        PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")
        PLOT.write_text(plot(found), encoding="utf-8")


if __name__ == "__main__":
    main()
