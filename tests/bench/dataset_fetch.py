# SPDX-License-Identifier: Apache-2.0
"""What fetching costs: many small files from a source with latency, against a plain copy in the same run.

    python -m tests.bench.dataset_fetch [--files N] [--pairs N] [--reads N ...] [--no-s3] [--write]

A plain copy is one thread that reads a file and writes it as a file, as cp does. Both read the same tree through the
same delay for each read. A pack is the same dataset as one image beside a manifest: the delay is for each range. A
fetch is everything up to an image on the disk that may be mounted: listing, plan, reads, hash, fdatasync; the copy is
not synced at all. Files are made once and are in the page cache for both. Ratios are of the pairs, the median of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gigaslice.core.dataset.image import plan
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.packing.make import make_pack
from gigaslice.roles.dataset_node.sources.opening import OpenedSource, open_source
from gigaslice.roles.dataset_node.sources.posix import PosixSource
from gigaslice.roles.dataset_node.sources.protocol import DataSource
from tests import steps
from tests.bench.scratch import load, scratch, spread
from tests.bench.svg import columns
from tests.fakes.dataset_layout import PartFiles
from tests.fakes.dataset_sources import Slow
from tests.fakes.storage_servers import KEY, SECRET, rclone_s3

PLOT = Path(__file__).resolve().parents[2] / "docs/dataset-fetch.svg"
SIZE = 16 << 10
DELAY = 0.001
_LISTINGS = 9


def make_tree(root: Path, files: int) -> None:
    """Files that no disk compresses."""
    for index in steps.each(range(files), "making files", even=True):
        path = root / f"{index // 1000:03}" / f"{index:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(SIZE))


def plain_copy(root: Path, to: Path, delay: float) -> float:
    """Seconds of a copy, file by file."""
    began = time.perf_counter()
    for where, _, names in os.walk(root):
        target = to / Path(where).relative_to(root)
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            time.sleep(delay)
            (target / name).write_bytes((Path(where) / name).read_bytes())
    return time.perf_counter() - began


def fetched(source, where: Path) -> tuple[float, float]:
    """Wall and CPU seconds of a fetch."""

    async def run() -> None:
        listing = await source.list()
        layout = plan(listing)
        part = PartFiles.begin(where, layout.size)
        with part.image.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, layout.size)
            await fetch(layout, listing, source, part, bounds=FetchLimits())
            os.fdatasync(file.fileno())
        await source.close()

    began, cpu = time.perf_counter(), time.process_time()
    asyncio.run(run())
    return time.perf_counter() - began, time.process_time() - cpu


def ratios(found: list[tuple[float, float]], plain: list[float]) -> list[float]:
    """How many times as fast as the plain copy, pair by pair, in rising order."""
    return sorted(before / after for before, (after, _) in zip(plain, found, strict=True))


def listed_again(root: Path) -> list[float]:
    """CPU seconds of each of some listings of a directory, in rising order."""

    async def once() -> float:
        source = PosixSource(root)
        cpu = time.process_time()
        await source.list()
        cpu = time.process_time() - cpu
        await source.close()
        return cpu

    return sorted(asyncio.run(once()) for _ in range(_LISTINGS))


def row(name: str, found: list[tuple[float, float]], plain: list[float], files: int) -> None:
    """One line of the table."""
    wall = statistics.median(one for one, _ in found)
    cpu = statistics.median(one for _, one in found)
    each = ratios(found, plain)
    print(
        f"| {name} | {wall:.2f} | {spread(each, '{:.1f}')} "
        f"| {cpu / files * 1e6:.0f} | {cpu / files * 5000:.2f} |",
        flush=True,
    )


def cases_of(root: Path, pack: Path, reads: list[int]) -> dict[str, Callable[[], DataSource]]:
    """What is measured beside the plain copy, by its name in the table."""
    cases: dict[str, Callable[[], DataSource]] = {}
    for name, path, make in (("on the fly", root, Slow), ("from a pack", pack, _slow_pack)):
        for most in reads:
            cases[f"{name}, {most} reads at once"] = partial(_slow, path, most, make)
    cases["a local directory"] = partial(PosixSource, root, parallel=16)
    return cases


def _slow(path: Path, most: int, make: Callable[[DataSource, float], DataSource]) -> DataSource:
    return make(PosixSource(path, parallel=most), DELAY)


def _slow_pack(source: DataSource, delay: float) -> DataSource:
    """A pack behind the same delay."""
    return OpenedSource(SourceSpec.parse("/pack"), Slow(source, delay))


def measure(base: Path, cases: dict[str, Callable[[], DataSource]], pairs: int) -> tuple[list[float], dict]:
    """Seconds of the plain copies, and wall and CPU seconds of each case, pair by pair."""
    plain: list[float] = []
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in steps.each(range(pairs), "pairs of plain copies and fetches", even=True):
        plain.append(plain_copy(base / "bucket/set", base / "copy", DELAY))
        shutil.rmtree(base / "copy")
        for name, source in cases.items():
            where = base / "part"
            where.mkdir()
            found[name].append(fetched(source(), where))
            shutil.rmtree(where)
    return plain, found


def plot(
    files: int, found: dict[str, list[tuple[float, float]]], plain: list[float], reads: list[int]
) -> str:
    """The curves over the number of reads at once."""
    return columns(
        f"{files:,} files of 16 KiB, 1 ms a read: times as fast as a plain copy",
        ["plain copy", *(f"{most} reads at once" for most in reads)],
        [
            (name, "{:.1f}", [1.0, *(statistics.median(ratios(found[f"{name}, {most} reads at once"], plain))
                                     for most in reads)])
            for name in ("on the fly", "from a pack")
        ],
    )  # fmt: skip


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--reads", type=int, nargs="+", default=[1, 4, 16, 64], help="at once")
    parser.add_argument("--no-s3", action="store_true", help="leave the S3 server out")
    parser.add_argument("--write", action="store_true", help="the plot into docs/dataset-fetch.svg")
    chosen = parser.parse_args()
    with scratch() as base:
        root, pack = base / "bucket/set", base / "pack"
        make_tree(root, chosen.files)
        make_pack(root, pack)
        plain, found = measure(base, cases_of(root, pack, chosen.reads), chosen.pairs)
        print(
            f"{chosen.files} files of 16 KiB, {chosen.pairs} pairs; plain copy {statistics.median(plain):.2f} s\n"
        )
        print(
            "| | seconds | times as fast as the plain copy | range | CPU µs a file | cores at 5,000 files/s |"
        )
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for name, times in found.items():
            row(name, times, plain, chosen.files)
        print(f"\nCPU seconds of listing the directory again: {spread(listed_again(root))}")
        print(f"\n{load()}")
        if chosen.write:
            PLOT.write_text(plot(chosen.files, found, plain, chosen.reads), encoding="utf-8")
        if chosen.no_s3:
            return
        try:
            with rclone_s3(base) as endpoint:
                print_objects(endpoint, base, plain, chosen.files)
        except BaseException as error:  # noqa: BLE001  (pytest's skip is one)
            print(f"(S3 left out: {error})")


def print_objects(endpoint: str, base: Path, plain: list[float], files: int) -> None:
    """The same from an S3 server on this machine, whose own CPU is not counted."""

    def opened():
        spec = SourceSpec.parse("s3://bucket/set", {"endpoint": endpoint})
        secret = {"access_key": KEY, "secret_key": SECRET}
        return asyncio.run(open_source(spec, secret, mounts=None, local_addresses=True))

    found = []
    for _ in steps.each(plain, "fetches from S3", even=True):
        where = base / "part"
        where.mkdir()
        found.append(fetched(opened(), where))
        shutil.rmtree(where)
    row("S3 (rclone serve s3, loopback)", found, plain, files)


if __name__ == "__main__":
    main()
