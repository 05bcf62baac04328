# SPDX-License-Identifier: Apache-2.0
"""`make bench`: prints the tables of docs/benchmarks.md, docs/simulation.md and docs/datasets.md.

    python -m tests.bench [PART…]        all of them, or those named: driver, agent, … , decisions

Compiles the C harness first. Each part is a program of its own, so that none measures what another has left in memory.
The tables go to standard output; which part it is goes to standard error.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from gigaslice.runtime.command_line.command import report, speak_as

ROOT = Path(__file__).resolve().parents[2]
HARNESS = Path("build/bench/driver_bench")
_DECISIONS = (
    *("pytest", "-o", "python_files=bench_*.py", "--benchmark-columns=min,median,max"),
    *("--benchmark-disable-gc", "tests/bench"),
)
PARTS: dict[str, tuple[str, ...]] = {
    **{
        name: (f"tests.bench.{name}",)
        for name in ("driver", "crowd", "agent", "claims", "shares", "time_slices")
    },
    "fits": ("tests.bench.fits", "--pairs", "40"),
    **{name: (f"tests.bench.{name}",) for name in ("simulation", "dataset_simulation", "scheduler")},
    **{name: (f"tests.bench.{name}",) for name in ("dataset_fetch", "dataset_image")},
    "dataset_deletion": ("tests.bench.dataset_deletion", "--files", "10000"),
    **{
        name: (f"tests.bench.{name}",)
        for name in ("dataset_start", "dataset_reading", "dataset_busy", "dataset_training")
    },
    "decisions": _DECISIONS,
}
"""Name -> the arguments of `python -m`, in the order of `make bench`."""


def harness() -> list[str]:
    """The command that compiles what calls the driver."""
    include = os.environ.get("CUDA_INCLUDE", "build/include")
    flags = ["-std=c17", "-O2", "-Wall", "-Wextra", "-Werror", "-isystem", include, "-fno-strict-aliasing"]
    return [os.environ.get("CC", "gcc"), *flags, "-o", str(HARNESS), "tests/bench/driver_bench.c", "-ldl"]


def main(argv: list[str] | None = None) -> int:
    """Runs the parts; the exit code of the first that fails, whose successors are left out."""
    parser = argparse.ArgumentParser(prog="bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)} (default: all)")
    parts = parser.parse_args(argv).parts or [*PARTS]
    if unknown := [name for name in parts if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; write some of {', '.join(PARTS)}")
    speak_as("bench")
    (ROOT / HARNESS.parent).mkdir(parents=True, exist_ok=True)
    commands = [("compiling the harness", harness())]
    commands += [(name, [sys.executable, "-m", *PARTS[name]]) for name in parts]
    for number, (name, command) in enumerate(commands, 1):
        report(0, f"{number} of {len(commands)}: {name}")
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code:
            return report(1, f"{name} ended with {code}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
