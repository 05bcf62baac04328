# SPDX-License-Identifier: Apache-2.0
"""Reading a dataset: from its image, from a directory, and from the source itself. Needs root.

    python -m tests.bench.dataset_reading [--files N] [--epochs N] [--write]

Everything reads whole files of 16 KiB in random order. The image is mounted as a node mounts it. The same files are in
an ext4 file system that mkfs.ext4 has filled, mounted read-only by a loop device, and in a directory of the machine's
own disk. Two that are compared take turns every few hundred files, so both meet the same machine. In the first epoch
both have been mounted just before and the pages of both images were dropped; in the others everything is in memory.

The second epoch from the cache is compared with reading the source again, where each read takes a millisecond longer,
by one and by eight processes.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from gigaslice.core.dataset.image import plan
from gigaslice.roles.dataset_node.mounts.linux import LinuxMounts
from tests import steps
from tests.bench.dataset_fetch import DELAY, SIZE, make_tree
from tests.bench.dataset_image import as_image, listed
from tests.bench.scratch import load, own_mounts, scratch, spread
from tests.bench.svg import bars

PLOT = Path(__file__).resolve().parents[2] / "docs/dataset-reading.svg"
_TURN = 250
_DIRECT = 4000  # files that are read from the source for one figure
_WORKERS = (1, 8)

T = TypeVar("T")


def read_all(root: Path, names: Sequence[str]) -> None:
    """Reads whole files, as a data loader does."""
    for name in names:
        fd = os.open(f"{root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        while os.read(fd, 1 << 20):
            pass
        os.close(fd)


def in_turns(
    first: Path,
    second: Path,
    names: Sequence[T],
    turn: int = _TURN,
    read: Callable[[Path, Sequence[T]], None] = read_all,
) -> tuple[float, float, float, float]:
    """Wall and CPU seconds of an epoch on FIRST, and on SECOND, which take turns of so many files."""
    spent = [0.0] * 4
    for at in range(0, len(names), turn):
        both = [(first, 0), (second, 2)]
        for root, index in both if at // turn % 2 else reversed(both):
            wall, cpu = time.perf_counter(), time.process_time()
            read(root, names[at : at + turn])
            spent[index] += time.perf_counter() - wall
            spent[index + 1] += time.process_time() - cpu
    return spent[0], spent[1], spent[2], spent[3]


def shuffled(names: Sequence[T], seed: int) -> list[T]:
    """Another order of all."""
    order = list(names)
    random.Random(seed).shuffle(order)
    return order


def dropped(path: Path) -> None:
    """Takes a file's pages out of memory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


@contextlib.contextmanager
def mounted(image: Path, ext4: Path, base: Path) -> Iterator[tuple[Path, Path]]:
    """Both file systems, mounted afresh, with nothing of them in memory."""
    mounts, where, other = LinuxMounts(), base / "mounted", base / "mounted-ext4"
    for path in (where, other):
        path.mkdir(exist_ok=True)
    dropped(image)
    dropped(ext4)
    try:
        mounts.image(image, where)
        _loop_mount(ext4, other)
        yield where, other
    finally:
        for path in (where, other):
            mounts.unmount(path)


def _loop_mount(image: Path, where: Path) -> None:
    """By a loop device that reads past the page cache, so that ext4 is as on a disk. It goes with the mount."""
    command = ["losetup", "--read-only", "--direct-io=on", "--find", "--show", str(image)]
    device = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    try:
        subprocess.run(["mount", "-t", "ext4", "-o", "ro,noatime", device, str(where)], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def make_ext4(source: Path, image: Path, files: int, size: int = SIZE) -> None:
    """An ext4 file system with the files of SOURCE, which have SIZE bytes each."""
    with image.open("wb") as file:
        file.truncate(files * (size + size // 8 + (8 << 10)) + (64 << 20))
    command = [
        "mkfs.ext4",
        "-q",
        "-F",
        "-m",
        "0",
        "-N",
        str(files + files // 8 + 1000),
        "-d",
        str(source),
        str(image),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def row(name: str, found: Sequence[tuple[float, float, float, float]], files: int) -> None:
    """A line of the first table."""
    mine, other = (statistics.median(one[index] for one in found) / files * 1e6 for index in (0, 2))
    wall = spread([one[0] / one[2] for one in found])
    cpu = spread([one[1] / one[3] for one in found])
    print(f"| {name} | {len(found)} | {mine:.1f} | {other:.1f} | {wall} | {cpu} |", flush=True)


def epochs(base: Path, source: Path, names: Sequence[str], number: int) -> None:
    """The image against ext4 and against the machine's disk."""
    image, ext4 = base / "image", base / "ext4"
    head = "| an epoch | pairs | image µs a file | directory µs a file | ratio | range | ratio of CPU time | range |"
    print(f"{head}\n| --- |{' ---: |' * 3} ---: | --- | ---: | --- |")
    first = []
    for seed in steps.each(range(max(2, number // 4)), "first epochs", even=True):
        with mounted(image, ext4, base) as (where, other):
            first.append(in_turns(where, other, shuffled(names, seed)))
    row("the first after the mount, ext4", first, len(names))
    with mounted(image, ext4, base) as (where, other):
        for root in (where, other, source):
            read_all(root, names)
        row(
            "in memory, ext4",
            [
                in_turns(where, other, shuffled(names, one))
                for one in steps.each(range(number), "epochs in memory", even=True)
            ],
            len(names),
        )
        warm = [
            in_turns(where, source, shuffled(names, one))
            for one in steps.each(range(number), "epochs against the machine's own disk", even=True)
        ]
        row("in memory, the machine's own disk (ext4)", warm, len(names))


def _worker(root: Path, names: list[str], delay: float, start: object, done: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    for name in names:
        if delay:
            time.sleep(delay)
        read_all(root, (name,))
    done.wait()  # type: ignore[attr-defined]


def rate(root: Path, names: Sequence[str], workers: int, delay: float = 0.0) -> float:
    """Files a second of so many processes together."""
    context = multiprocessing.get_context("fork")
    start, done = context.Barrier(workers + 1), context.Barrier(workers + 1)
    parts = [list(names[one::workers]) for one in range(workers)]
    running = [context.Process(target=_worker, args=(root, part, delay, start, done)) for part in parts]
    for one in running:
        one.start()
    start.wait()
    began = time.perf_counter()
    done.wait()
    seconds = time.perf_counter() - began
    for one in running:
        one.join()
    return len(names) / seconds


def against_source(base: Path, source: Path, names: Sequence[str], pairs: int) -> list[tuple[str, float]]:
    """Epoch 2 from the cache against reading the source again. Returns the bars of the plot."""
    found = []
    print(
        "\n| epoch 2 | pairs | cache files/s | source files/s | ratio | range |\n| --- |"
        + " ---: |" * 4
        + " --- |"
    )
    with mounted(base / "image", base / "ext4", base) as (where, _):
        read_all(where, shuffled(names, 1))
        for workers in _WORKERS:
            both = []
            for seed in steps.each(range(pairs), f"epochs with {workers} processes", even=True):
                order = shuffled(names, seed + 2)
                both.append((rate(where, order, workers), rate(source, order[:_DIRECT], workers, DELAY)))
            cache, direct = (statistics.median(one[index] for one in both) for index in (0, 1))
            ratios = [mine / other for mine, other in both]
            processes = "1 process" if workers == 1 else f"{workers} processes"
            print(
                f"| {processes} | {pairs} | {cache:,.0f} | {direct:,.0f} | {spread(ratios, '{:.1f}')} |",
                flush=True,
            )
            found += [(f"{processes}, from the source", direct), (f"{processes}, from the cache", cache)]
    return found


def plot(rates: Sequence[tuple[str, float]]) -> str:
    """Files a second by who reads what."""
    title = "Epoch 2, files of 16 KiB, the source with 1 ms a read: thousand files a second"
    return bars(title, "k/s", [(name, each / 1000) for name, each in rates])


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument(
        "--epochs", type=int, default=12, help="pairs of each kind; a fourth of them are first ones"
    )
    parser.add_argument("--at", help="a directory on the disk that is measured")
    parser.add_argument("--write", action="store_true", help="the plot into docs/dataset-reading.svg")
    chosen = parser.parse_args()
    if why := own_mounts():
        print(f"(reading left out: {why})")
        return
    with scratch(chosen.at) as base:
        source = base / "source"
        make_tree(source, chosen.files)
        as_image(source, base / "image", plan(listed(source)))
        make_ext4(source, base / "ext4", chosen.files)
        names = [one.relative_to(source).as_posix() for one in sorted(source.rglob("*.jpg"))]
        print(f"{chosen.files:,} files of 16 KiB\n")
        epochs(base, source, names, chosen.epochs)
        drawn = against_source(base, source, names, max(3, chosen.epochs // 2))
    print(f"\n{load()}\n")
    if chosen.write:
        PLOT.write_text(plot(drawn), encoding="utf-8")


if __name__ == "__main__":
    main()
