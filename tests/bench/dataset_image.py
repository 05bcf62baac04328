# SPDX-License-Identifier: Apache-2.0
"""What the image of a dataset costs beside its files: to lay out, to write, to hash, to delete.

`python -m tests.bench.dataset_image [--files 50000] [--size 16384] [--rounds 3] [--at DIR]`: small files in a local
directory are copied one after the other as a program would, and written as an image by the fetch engine, in turns,
each followed by sync; then both are deleted, and their directory is synced. The ratio is the median of the ratios
within a round. A finished image is copied too: what a node does with a pack. Latency of a source is not in here: a
local directory has none.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.image import ImagePlan, plan
from gigaslice.core.dataset.listing import Listing
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.sources.posix import PosixSource
from gigaslice.roles.dataset_node.store import PartialImage, digest_of
from tests.bench.scratch import scratch
from tests.steps import each

_PER_DIRECTORY = 500


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of WORK; those of programs that it starts count."""
    before, begun = os.times(), time.perf_counter()
    work()
    wall, after = time.perf_counter() - begun, os.times()
    return wall, sum(after[:4]) - sum(before[:4])


def make_source(root: Path, files: int, size: int) -> None:
    """FILES files of SIZE random bytes, each another, in directories of 500."""
    block = os.urandom(size + files)
    for number in each(range(files), "making files", even=True):
        if number % _PER_DIRECTORY == 0:
            directory = root / f"class{number // _PER_DIRECTORY:05d}"
            directory.mkdir(parents=True)
        (directory / f"image_{number:08d}.jpeg").write_bytes(block[number : number + size])


def listed(root: Path) -> Listing:
    """The listing of ROOT as a node takes it."""

    async def run() -> Listing:
        source = PosixSource(root)
        try:
            return await source.list()
        finally:
            await source.close()

    return asyncio.run(run())


def as_files(source: Path, target: Path) -> None:
    """Copies a tree file by file, by one thread."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    os.sync()


def as_image(source: Path, target: Path, made: ImagePlan) -> None:
    """Writes the image of a tree as a node does."""

    async def run() -> None:
        reader = PosixSource(source, keep_cached=True)
        try:
            bits = target.with_suffix(".bits")
            await fetch(
                made,
                made.listing,
                reader,
                PartialImage("", target, bits, made.size, resumed=False),
                bounds=FetchLimits(),
            )
        finally:
            await reader.close()

    with target.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, made.size)
    asyncio.run(run())
    os.sync()


def copied(image: Path, target: Path) -> None:
    """Copies a finished image."""
    shutil.copyfile(image, target)
    os.sync()


def removed(path: Path) -> None:
    """Deletes what is at PATH, by the tools that an administrator has, and has that on the disk."""
    subprocess.run(["rm", "-rf", str(path)], check=True)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def row(name: str, found: list[tuple[float, float]], base: list[tuple[float, float]] | None = None) -> str:
    """One line of the table: medians, and the median of the ratios within a round."""
    wall, cpu = (statistics.median(one[index] for one in found) for index in (0, 1))
    ratio = ""
    if base:
        ratio = f"{statistics.median(one[0] / other[0] for one, other in zip(base, found, strict=True)):.1f}"
    return f"| {name} | {wall:.2f} | {cpu:.2f} | {ratio} |"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--at", help="a directory on the disk that is measured; default: that of temporary files"
    )
    known = parser.parse_args()
    with scratch(known.at) as made_at:
        _measure(made_at, known.files, known.size, known.rounds)


def _measure(at: Path, files: int, size: int, rounds: int) -> None:
    source = at / "source"
    make_source(source, files, size)
    steps: dict[str, list[tuple[float, float]]] = {}
    for _ in each(range(rounds), "rounds", even=True):
        made = plan(listed(source))
        for name, work in _round(at, source, made).items():
            steps.setdefault(name, []).append(timed(work))
        (at / "copy").unlink()
    print(f"{files:,} files of {size:,} bytes; the image has {made.size / (files * size) - 1:.2%} more\n")
    print("| step | wall s | CPU s | times faster than as files |\n| --- | ---: | ---: | ---: |")
    base = {"write as an image": "copy as files", "copy a finished image": "copy as files"}
    base["delete the image"] = "delete the files"
    for name, found in steps.items():
        print(row(name, found, steps.get(base.get(name, ""))))
    gib = made.size / (1 << 30)
    read, held = (
        statistics.median(one[1] for one in steps[name]) / gib
        for name in ("hash the image", "hash as many bytes in memory")
    )
    print(f"\nBLAKE3: {read:.2f} CPU seconds per GiB read from the page cache, {held:.2f} in memory\n")


def _round(at: Path, source: Path, made: ImagePlan) -> dict[str, Callable[[], object]]:
    """The steps of a round, in their order."""
    files, image, listing = at / "files", at / "image", made.listing
    return {
        "list the directory": lambda: listed(source),
        "check and hash the listing": lambda: Listing.of(listing.entries),
        "lay out the image": lambda: plan(listing),
        "make its metadata": lambda: sum(len(data) for _, data in made.metadata()),
        "copy as files": lambda: as_files(source, files),
        "write as an image": lambda: as_image(source, image, made),
        "copy a finished image": lambda: copied(image, at / "copy"),
        "hash the image": lambda: digest_of(image),
        "hash as many bytes in memory": lambda: _hashed(made.size),
        "delete the files": lambda: removed(files),
        "delete the image": lambda: removed(image),
    }


def _hashed(size: int) -> bytes:
    digest, piece = hasher(), os.urandom(256 << 10)
    for _ in range(size // len(piece)):
        digest.update(piece)
    return digest.digest()


if __name__ == "__main__":
    main()
