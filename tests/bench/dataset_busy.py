# SPDX-License-Identifier: Apache-2.0
"""Reading a dataset's image against ext4 on a machine that is kept busy, by the size of the files. Needs root.

    python -m tests.bench.dataset_busy [--pairs N] [--spinning N] [--at DIR]

The file systems are those of `dataset_reading`: the image as a node mounts it, and an ext4 file system with the same
files by a loop device. Everything is read in random order: whole files, and parts of a large one. The two file systems
take turns every few reads, so both meet the same machine.

A busy machine is one where this program keeps twice as many children computing as there are processors. They end with
the measurement, with this program, and by themselves after ten minutes. Rounds with them and without alternate; what
else runs on the machine is in both, and the load below the table says how much that was.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gigaslice.core.dataset.image import plan
from tests.bench.dataset_image import as_image, listed, make_source
from tests.bench.dataset_reading import in_turns, make_ext4, mounted, shuffled
from tests.bench.scratch import load, own_mounts, scratch, spread
from tests.steps import each

Times = tuple[float, float, float, float]
"""Wall and CPU seconds on the image, and on ext4."""
Part = tuple[str, int]
"""A file's name, and where in it to begin to read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """FILES files of SIZE bytes, each read in parts of PART bytes, as many as READS in an epoch."""

    size: int
    files: int
    part: int
    reads: int
    passes_in_memory: int
    """An epoch in memory is so short that one time slice of another program would decide it."""

    def label(self) -> str:
        """For the table."""
        whole = self.part >= self.size
        return (
            f"{self.size >> 10:,} KiB, whole"
            if whole
            else f"{self.part >> 10:,} KiB of {self.size >> 20:,} MiB"
        )

    def parts(self, names: Sequence[str], seed: int) -> list[Part]:
        """What an epoch reads, in its order."""
        parts = [(name, offset) for name in names for offset in range(0, self.size, self.part)]
        return shuffled(parts, seed)[: self.reads]


_READINGS = (
    Reading(1 << 10, 1000, 1 << 10, 1000, 16),
    Reading(16 << 10, 1000, 16 << 10, 1000, 16),
    Reading(1 << 20, 50, 1 << 20, 50, 8),
    Reading(64 << 20, 2, 64 << 10, 400, 16),
)
_TURN_BYTES = 4 << 20
_MOST_READS_A_TURN = 250
_LONGEST_SPIN_SECONDS = 600.0
_PR_SET_PDEATHSIG = 1


def _spin(parent: int) -> None:
    """Computes until it is ended, or its parent is, or its time is over."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    deadline = time.monotonic() + _LONGEST_SPIN_SECONDS
    while os.getppid() == parent and time.monotonic() < deadline:
        for _ in range(100_000):
            pass


@contextlib.contextmanager
def kept_busy(children: int) -> Iterator[None]:
    """Keeps so many children computing."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_spin, args=(os.getpid(),), daemon=True) for _ in range(children)]
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _row(reading: Reading, state: str, machine: str, epochs: Sequence[Times], reads: int) -> None:
    image, ext4 = (statistics.median(epoch[column] for epoch in epochs) / reads * 1e6 for column in (0, 2))
    wall = spread([epoch[0] / epoch[2] for epoch in epochs])
    cpu = spread([epoch[1] / epoch[3] for epoch in epochs])
    cells = (reading.label(), state, machine, len(epochs), f"{image:.1f}", f"{ext4:.1f}", wall, cpu)
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def measure(base: Path, reading: Reading, pairs: int, spinning: int) -> None:
    """The lines of one kind of reading."""
    source, image, ext4 = base / "source", base / "image", base / "ext4"
    make_source(source, reading.files, reading.size)
    as_image(source, image, plan(listed(source)))
    make_ext4(source, ext4, reading.files, reading.size)
    names = [path.relative_to(source).as_posix() for path in sorted(source.rglob("*.jpeg"))]
    turn = max(1, min(_MOST_READS_A_TURN, _TURN_BYTES // reading.part))

    def read(root: Path, parts: Sequence[Part]) -> None:
        for name, offset in parts:
            fd = os.open(f"{root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            os.pread(fd, reading.part, offset)
            os.close(fd)

    first: dict[int, list[Times]] = {0: [], spinning: []}
    later: dict[int, list[Times]] = {0: [], spinning: []}
    for number in each(range(pairs), f"rounds of {reading.label()}", even=True):
        parts = reading.parts(names, number)
        for children in sorted(first, reverse=bool(number % 2)):
            with mounted(image, ext4, base) as (image_root, ext4_root):
                with kept_busy(children):
                    first[children].append(in_turns(image_root, ext4_root, parts, turn, read))
                for root in (image_root, ext4_root):  # a part that was read ahead is no longer there, perhaps
                    read(root, parts)
                again = shuffled(parts, number) * reading.passes_in_memory
                with kept_busy(children):
                    later[children].append(in_turns(image_root, ext4_root, again, turn, read))
    for state, epochs_by_children, passes in (
        ("the first after the mount", first, 1),
        ("in memory", later, reading.passes_in_memory),
    ):
        for children, epochs in epochs_by_children.items():
            machine = f"{children} programs compute" if children else "as it is"
            _row(reading, state, machine, epochs, reading.reads * passes)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=8, help="rounds of each kind")
    parser.add_argument(
        "--spinning", type=int, default=2 * (os.cpu_count() or 1), help="how many children compute"
    )
    parser.add_argument("--at", help="a directory on the disk that is measured")
    arguments = parser.parse_args()
    if reason := own_mounts():
        print(f"(reading on a busy machine left out: {reason})")
        return
    print("| what is read | an epoch | machine | pairs | image µs a read | ext4 µs a read |", end="")
    print(" ratio | range | ratio of CPU time | range |")
    print(f"| --- | --- | --- |{' ---: |' * 4} --- | ---: | --- |")
    load_before = load()
    for reading in _READINGS:
        with scratch(arguments.at) as base:
            measure(base, reading, arguments.pairs, max(1, arguments.spinning))
    print(f"\nBefore: {load_before}. After: {load()}\n")


if __name__ == "__main__":
    main()
