# SPDX-License-Identifier: Apache-2.0
"""Training that waits for data, emulated: the experiments of the published cache (tables 6 and 7), without GPUs.

    python -m tests.bench.dataset_training [--steps N] [--rounds N] [--scale X] [--write]

The paper (Inspur, Computer Systems & Applications 31(9), 2022) trains ResNet-50 on A100s with a batch of 256 per GPU,
and prints what a step takes when the data are read from the storage and from the node's cache. Here a GPU is a process
that computes by sleeping as long as the printed step from the cache, divided by `--scale`. Its two loader threads read
whole files in random order, some batches ahead, and all processes of a job wait for each other after every step.

* remote: every file takes longer by what gives the printed step from the storage, so the waiting share is the printed
  one. That is the emulation's input, and measured again.
* cached: the same files on the mount of a node's image.
* synthetic: batches that are there already.

What is measured is whether the cached run keeps up with the synthetic one, beside the work of all loaders, and so has
the printed gain. Needs root for the mount.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gigaslice.core.dataset.image import plan
from gigaslice.roles.dataset_node.mounts.linux import LinuxMounts
from tests import steps
from tests.bench.dataset_fetch import make_tree
from tests.bench.dataset_image import as_image, listed
from tests.bench.dataset_reading import read_all
from tests.bench.scratch import load, own_mounts, scratch, spread
from tests.bench.svg import columns

PLOT = Path(__file__).resolve().parents[2] / "docs/dataset-training.svg"
_BATCH, _LOADERS, _AHEAD = 256, 2, 4
_WARM_STEPS = 2 * _LOADERS  # before the first measured one; the batches that were read ahead are used up then


@dataclass(frozen=True, slots=True)
class Experiment:
    """One line of the paper's tables. direct, cached: seconds a step. gain: as printed."""

    name: str
    gpus: int
    direct: float
    cached: float
    gain: float


EXPERIMENTS = (
    Experiment("table 6, 2 GPUs", 2, 3.20, 2.30, 1.39),
    Experiment("table 6, 8 GPUs", 8, 3.05, 1.87, 1.63),
    Experiment("table 7, 8 GPUs", 8, 8 * 256 / 867.61, 8 * 256 / 1017.96, 1.17),
)
"""Table 7 prints images a second; with 8 batches of 256 they are these steps."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Where the batches come from. root: None for batches that are there. delay: seconds more for every file."""

    root: Path | None
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job of so many GPUs. compute: seconds of a step. steps: that are measured."""

    arm: Arm
    names: Sequence[str]
    gpus: int
    compute: float
    steps: int


def _loaded(arm: Arm, names: Sequence[str]) -> int:
    if arm.root is not None:
        for name in names:
            if arm.delay:
                time.sleep(arm.delay)
            read_all(arm.root, (name,))
    return len(names)


def _batches(arm: Arm, names: Sequence[str], seed: int, pool: ThreadPoolExecutor) -> Iterator[Future[int]]:
    """Batches in order, some under way."""
    draw = random.Random(seed)
    waiting: list[Future[int]] = []
    while True:
        while len(waiting) < _AHEAD:
            waiting.append(pool.submit(_loaded, arm, draw.sample(names, _BATCH)))
        yield waiting.pop(0)


def _gpu(job: Job, seed: int, together: object, told: object) -> None:
    sys.setswitchinterval(
        0.0002
    )  # a loader must not keep the step from going on, as one of another process cannot
    with ThreadPoolExecutor(_LOADERS) as pool:
        batches = _batches(job.arm, job.names, seed, pool)
        began = 0.0
        for step in range(_WARM_STEPS + job.steps):
            if step == _WARM_STEPS:
                began = time.perf_counter()
            assert next(batches).result() == _BATCH
            time.sleep(job.compute)
            together.wait()  # type: ignore[attr-defined]
        told.put((time.perf_counter() - began) / job.steps)  # type: ignore[attr-defined]
        pool.shutdown(cancel_futures=True)


def step_of(job: Job) -> float:
    """Seconds that a step of a job takes."""
    context = multiprocessing.get_context("fork")
    together, told = context.Barrier(job.gpus), context.Queue()
    running = [context.Process(target=_gpu, args=(job, seed, together, told)) for seed in range(job.gpus)]
    for one in running:
        one.start()
    found = [told.get() for _ in running]
    for one in running:
        one.join()
    return max(found)


def overhead(root: Path, names: Sequence[str], delay: float) -> float:
    """What a read of a file after a sleep takes beyond the sleep, in the median."""
    found = []
    for name in names[:100]:
        began = time.perf_counter()
        _loaded(Arm(root, delay), (name,))
        found.append(time.perf_counter() - began - delay)
    return statistics.median(found)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scale", type=float, default=4.0, help="how many times as fast as in the paper")
    parser.add_argument("--write", action="store_true", help="the plot into docs/dataset-training.svg")
    chosen = parser.parse_args()
    if why := own_mounts():
        print(f"(training left out: {why})")
        return
    with scratch() as base:
        source, where = base / "source", base / "mounted"
        make_tree(source, chosen.files)
        as_image(source, base / "image", plan(listed(source)))
        names = [one.relative_to(source).as_posix() for one in sorted(source.rglob("*.jpg"))]
        where.mkdir()
        mounts = LinuxMounts()
        mounts.image(base / "image", where)
        try:
            read_all(where, names)
            print(
                "| experiment | waiting share printed | measured | gain printed | measured | range "
                f"| cached by synthetic | range |\n| --- |{' ---: |' * 4} --- | ---: | --- |"
            )
            drawn = [
                measure(one, source, where, names, chosen)
                for one in steps.each(EXPERIMENTS, lambda one: f"the job of {one.name}")
            ]
        finally:
            mounts.unmount(where)
    print(f"\n{load()}\n")
    if chosen.write:
        labels = [one.name for one in EXPERIMENTS]
        charts = [
            (name, "{:.0f}", [each[index] for each in drawn])
            for index, name in enumerate(("remote", "cached", "synthetic"))
        ]
        title = f"Images a second of the emulated job, {chosen.scale:g} times as fast as the paper's"
        PLOT.write_text(columns(title, labels, charts), encoding="utf-8")


def measure(
    one: Experiment, source: Path, where: Path, names: Sequence[str], chosen: argparse.Namespace
) -> list[float]:
    """A line of the table. Returns images a second: remote, cached, synthetic."""
    compute = one.cached / chosen.scale
    steps: dict[str, list[float]] = {"remote": [], "cached": [], "synthetic": []}
    for _ in range(chosen.rounds):
        delay = one.direct / chosen.scale * _LOADERS / _BATCH
        delay -= overhead(source, names, delay)
        arms = {"remote": Arm(source, delay), "cached": Arm(where), "synthetic": Arm(None)}
        for name, arm in arms.items():
            steps[name].append(step_of(Job(arm, names, one.gpus, compute, chosen.steps)))
    gains = [a / b for a, b in zip(steps["remote"], steps["cached"], strict=True)]
    kept = [b / a for a, b in zip(steps["cached"], steps["synthetic"], strict=True)]
    share = 1 - compute / statistics.median(steps["remote"])
    print(
        f"| {one.name} | {1 - one.cached / one.direct:.0%} | {share:.0%} | {one.gain:.2f} | {spread(gains)} "
        f"| {spread(kept, '{:.3f}')} |",
        flush=True,
    )
    return [one.gpus * _BATCH / statistics.median(found) for found in steps.values()]


if __name__ == "__main__":
    main()
