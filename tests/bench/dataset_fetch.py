"""What fetching costs: many small files from a source with latency, against a plain copy in the same run.

    python -m tests.bench.dataset_fetch [--files N] [--pairs N]

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
import tempfile
import time
from pathlib import Path

from gigaslice.dataset.image import plan
from gigaslice.dataset.source_spec import SourceSpec
from gigaslice.dataset_node.fetching.bounds import Bounds
from gigaslice.dataset_node.fetching.engine import fetch
from gigaslice.dataset_node.packing.make import make_pack
from gigaslice.dataset_node.sources.opening import OpenedSource, open_source
from gigaslice.dataset_node.sources.posix import PosixSource
from tests.fakes.dataset_layout import PartFiles
from tests.fakes.dataset_sources import Slow
from tests.fakes.storage_servers import KEY, SECRET, rclone_s3

SIZE = 16 << 10
DELAY = 0.001


def make_tree(root: Path, files: int) -> None:
    """Files that no disk compresses."""
    for index in range(files):
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
            await fetch(layout, listing, source, part, bounds=Bounds())
            os.fdatasync(file.fileno())
        await source.close()

    began, cpu = time.perf_counter(), time.process_time()
    asyncio.run(run())
    return time.perf_counter() - began, time.process_time() - cpu


class _SlowPack(OpenedSource):
    """A pack behind the same delay."""

    def __init__(self, pack: Path) -> None:
        super().__init__(SourceSpec.parse(str(pack)), Slow(PosixSource(pack), DELAY))


def row(name: str, found: list[tuple[float, float]], plain: list[float], files: int) -> None:
    """One line of the table."""
    wall = statistics.median(one for one, _ in found)
    cpu = statistics.median(one for _, one in found)
    ratio = statistics.median(before / after for before, (after, _) in zip(plain, found, strict=True))
    cores = cpu / files * 5000
    print(f"| {name} | {wall:.2f} | {ratio:.1f} | {cpu / files * 1e6:.0f} | {cores:.2f} |", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        base = Path(made)
        root, pack = base / "bucket/set", base / "pack"
        make_tree(root, chosen.files)
        make_pack(root, pack)
        cases = {
            "on the fly, 1 ms a read": lambda: Slow(PosixSource(root), DELAY),
            "from a pack, 1 ms a read": lambda: _SlowPack(pack),
            "a local directory": lambda: PosixSource(root, parallel=16),
        }
        plain: list[float] = []
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for _ in range(chosen.pairs):
            plain.append(plain_copy(root, base / "copy", DELAY))
            shutil.rmtree(base / "copy")
            for name, source in cases.items():
                where = base / "part"
                where.mkdir()
                found[name].append(fetched(source(), where))
                shutil.rmtree(where)
        print(
            f"{chosen.files} files of 16 KiB, {chosen.pairs} pairs; plain copy {statistics.median(plain):.2f} s\n"
        )
        print("| | seconds | times as fast as the plain copy | CPU µs a file | cores at 5,000 files/s |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for name, times in found.items():
            row(name, times, plain, chosen.files)
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
    for _ in plain:
        where = base / "part"
        where.mkdir()
        found.append(fetched(opened(), where))
        shutil.rmtree(where)
    row("S3 (rclone serve s3, loopback)", found, plain, files)


if __name__ == "__main__":
    main()
