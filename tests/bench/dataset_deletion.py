# SPDX-License-Identifier: Apache-2.0
"""What deleting a dataset costs: the call, until its room is back, and the volumes that are published meanwhile.

    python -m tests.bench.dataset_deletion [--files N] [--pairs N] [--at DIR]

Each pair deletes the image of so many files of 16 KiB from the store of a node, and the same files with `rm -rf`, in
turns, each after everything was synced. While the one or the other goes on, volumes of another dataset are published
and removed without a pause, and beside them a small file is written and synced: no call can be faster than the disk.
Mounts are the kernel's where this program may mount, else a table in memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gigaslice.core.dataset.image import plan
from gigaslice.roles.dataset_node.mounts.linux import LinuxMounts
from gigaslice.roles.dataset_node.store import (
    Budget,
    DatasetMetadata,
    DatasetStore,
    Volume,
    VolumeSource,
    digest_of,
)
from tests.bench.dataset_image import as_image, listed, make_source, removed
from tests.bench.scratch import load, own_mounts, percentile, scratch, spread
from tests.fakes.mounts import MemoryMounts
from tests.steps import each

_SIZE = 16_384
_SMALL, _LARGE = "1" * 64, "2" * 64
_QUIET_SECONDS = 3.0


class Publishing:
    """Publishes and removes volumes until it is ended; the milliseconds of each publishing, and of a synced file."""

    def __init__(self, store: DatasetStore, root: Path) -> None:
        self.took: list[float] = []
        self.synced: list[float] = []
        self._store, self._root = store, root
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._publish, self._sync)]

    def __enter__(self) -> Publishing:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for one in self._threads:
            one.join()

    def _publish(self) -> None:
        target = self._root / "pods" / "p" / "mount"
        target.parent.mkdir(parents=True, exist_ok=True)
        volume = Volume("p", str(target), "uid", "default", "p")
        while not self._ended.is_set():
            began = time.perf_counter()
            self._store.publish(volume, [VolumeSource(key=_SMALL)])
            self.took.append((time.perf_counter() - began) * 1000)
            self._store.remove(volume.id, volume.target)

    def _sync(self) -> None:
        while not self._ended.is_set():
            began = time.perf_counter()
            with (self._root / "synced").open("wb") as file:
                file.write(bytes(300))
                os.fsync(file.fileno())
            self.synced.append((time.perf_counter() - began) * 1000)
            time.sleep(0.005)


def fetched(store: DatasetStore, key: str, source: Path) -> None:
    """Has the files of SOURCE in the store."""
    made = plan(listed(source))
    part = store.begin_fetch(DatasetMetadata(key, made.size, str(source)))
    as_image(source, part.image, made)
    store.complete(part, digest_of(part.image))
    part.bits.unlink(missing_ok=True)


def row(name: str, found: list[float]) -> str:
    """A line of the table of calls."""
    cells = (statistics.median(found), percentile(found, 0.99), max(found))
    return f"| {name} | {len(found)} | {' | '.join(f'{one:.1f}' for one in cells)} |"


def measure(at: Path, store: DatasetStore, files: int, pairs: int) -> None:
    """Prints the tables."""
    few, many, copy = at / "few", at / "many", at / "copy"
    make_source(few, 10, _SIZE)
    make_source(many, files, _SIZE)
    fetched(store, _SMALL, few)
    calls, rooms, trees = [], [], []
    kinds = ("nothing is deleted", "the image is deleted", "`rm -rf` of the files")
    took: dict[str, list[float]] = {name: [] for name in kinds}
    synced: dict[str, list[float]] = {name: [] for name in kinds}

    def during(name: str, work: Callable[[], None]) -> None:
        with Publishing(store, at) as published:
            work()
        took[name] += published.took
        synced[name] += published.synced

    def delete() -> None:
        began = time.perf_counter()
        assert not store.evict([_LARGE])
        calls.append(time.perf_counter() - began)
        while store.trash_bytes:
            time.sleep(0.001)
        rooms.append(time.perf_counter() - began)

    def remove() -> None:
        began = time.perf_counter()
        removed(copy)
        trees.append(time.perf_counter() - began)

    for _ in each(range(pairs), "pairs of deletions", even=True):
        fetched(store, _LARGE, many)
        shutil.copytree(many, copy)
        os.sync()
        during(kinds[0], lambda: time.sleep(_QUIET_SECONDS))
        during(kinds[1], delete)
        os.sync()
        during(kinds[2], remove)
    print(f"| deleting {files:,} files' image | seconds | range | `rm -rf` against it | range |")
    print("| --- | ---: | --- | ---: | --- |")
    for name, found in (("the call", calls), ("until the room is back", rooms)):
        ratios = [tree / one for tree, one in zip(trees, found, strict=True)]
        print(f"| {name} | {spread(found, '{:.4f}')} | {spread(ratios, '{:.1f}')} |")
    print("\n| publishing a volume while | calls | median ms | p99 ms | most ms |\n| --- |" + " ---: |" * 4)
    for name in kinds:
        print(row(name, took[name]))
        print(row("a small file written and synced", synced[name]))
    print(f"\n{load()}\n", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--at", help="a directory on the disk that is measured; default: that of temporary files"
    )
    chosen = parser.parse_args()
    mounts = MemoryMounts() if (why := own_mounts()) else LinuxMounts()
    if why:
        print(f"(mounts in memory: {why})\n")
    with scratch(chosen.at) as at:
        store = DatasetStore(at / "state", mounts, budget=Budget(keep_free=0.0))
        store.open()
        try:
            measure(at, store, chosen.files, chosen.pairs)
        finally:
            store.close()
            if not why:
                for one in sorted((one.point for one in mounts.table()), key=len, reverse=True):
                    if one.startswith(f"{at}/"):
                        mounts.unmount(Path(one))


if __name__ == "__main__":
    main()
