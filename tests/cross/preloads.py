# SPDX-License-Identifier: Apache-2.0
"""Real libraries that programs are preloaded with, beside the library, in both orders: everything stays limited.

Allocators and OpenMP look the next function of a name up before anything in the process works, some of them from inside
malloc. Nothing of them is kept in the repository: they come through apt, with lists of its own below build/.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cross.libc import write_page
from tests.native.running import CLIENTS, LIBRARY, ROOT, Place
from tests.nvidia_smi.packages import Archive
from tests.steps import each, step

SUITES = (
    "bullseye",
    "bookworm",
    "trixie",
)  # what is newer may want a newer C library, and is passed over then
# Package -> pattern of the file in it. Names changed when time got wider.
PRELOADS = {
    "libjemalloc2": "libjemalloc.so.2",
    "libtcmalloc-minimal4": "libtcmalloc_minimal.so.4",
    "libtcmalloc-minimal4t64": "libtcmalloc_minimal.so.4",
    "libmimalloc2.0": "libmimalloc.so.2.?",
    "libomp5-11": "libomp.so.5",
    "libomp5-14": "libomp.so.5",
    "libomp5-16": "libomp.so.5",
    "libomp5-19": "libomp.so.5",
}
WAYS = ("simple", "threads", "reopen", "forks", "clones", "constructor")
SECONDS = 60
# OpenMP starts with its first call, and looks for a tool then.
STARTED = """
import ctypes
everything, cuda = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
threads = getattr(everything, "omp_get_max_threads", lambda: 1)()
context, block = ctypes.c_void_p(), ctypes.c_uint64()
first = cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)
second = [cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size << 20)) for size in (1, 2048)]
print("limited" if threads > 0 and (*first, *second) == (0, 0, 0, 0, 2) else (threads, first, second))
"""


@dataclass(frozen=True)
class Preload:
    """One unpacked library."""

    name: str
    file: Path


def fetch(directory: Path) -> list[Preload]:
    """Those of PRELOADS that the archive has and that this system's C library can load."""
    with step("reading the lists of Debian's archive"):
        archive = Archive(directory, SUITES, "main", "amd64")
    found = []
    for package, pattern in each(
        PRELOADS.items(), lambda preload: f"fetching {preload[0]}", total=len(PRELOADS)
    ):
        listing = subprocess.run(
            ["apt-cache", *archive.options, "madison", package], capture_output=True, text=True, check=False
        ).stdout
        for version in sorted({line.split("|")[1].strip() for line in listing.splitlines()}):
            file = next(archive.unpack(package, version).rglob(pattern), None)
            if file is None:
                continue
            plain = (
                directory / f"{package}-{version.replace(':', '-')}.so"
            )  # a colon would end its name in LD_PRELOAD
            shutil.copy(file, plain)
            if loads(plain):
                found.append(Preload(f"{package} {version}", plain.resolve()))
    return found


def loads(file: Path) -> bool:
    """Whether a program starts with it, without the library."""
    env = {"LD_PRELOAD": str(file)}
    done = subprocess.run(["/bin/true"], env=env, capture_output=True, text=True, check=False)
    return (done.returncode, done.stderr) == (0, "")


def outcome(place: Place, preload: list[Path], command: list[str]) -> str:
    """What was wrong; "" when everything that the program says is that it is limited."""
    env = place.env("1GiB") | {"LD_PRELOAD": ":".join(map(str, preload))}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "hangs"
    said = set(done.stdout.split("\n")) - {"", "not initialised"}
    return (
        ""
        if (done.returncode, said, done.stderr) == (0, {"limited"}, "")
        else f"{done.returncode} {said} {done.stderr}"
    )


def mistakes(preload: Preload, directory: Path) -> Iterator[str]:
    """Ways in which a program with PRELOAD is not limited as one without it is."""
    commands = {way: [str(CLIENTS / "ways"), way, str(CLIENTS / "plugin-constructor.so")] for way in WAYS}
    commands["started"] = [sys.executable, "-c", STARTED]
    for order, tools in (("before", [preload.file, LIBRARY]), ("behind", [LIBRARY, preload.file])):
        for way, command in commands.items():
            place = Place(directory / f"{preload.name} {order} {way}".replace("/", "-"))
            place.directory.mkdir()
            wrong = outcome(place, tools, command)
            if wrong:
                yield f"{order}, {way}: {wrong}"


def main() -> int:
    """0: all is well, and the page is written."""
    preloads = fetch(ROOT / "build" / "preloads")
    if not preloads:
        sys.exit("test-preloads: nothing in the Debian archive of /etc/apt: see apt-get's messages")
    with tempfile.TemporaryDirectory() as scratch:
        results = {
            preload.name: list(mistakes(preload, Path(scratch)))
            for preload in each(preloads, lambda preload: f"programs beside {preload.name}")
        }
    write_page(
        "preloads.md",
        [
            "# Beside other preloads",
            "",
            "Written by `make test-preloads` on {date}; not edited by hand. Debian's packages of allocators and of",
            "OpenMP, preloaded before and behind the library: threads, forks, clones, a driver that is opened again,",
            "first calls from a constructor, and a Python program that starts OpenMP. Everything has to be limited.",
            "",
            "| preload | result |",
            "| --- | --- |",
            *(f"| {name} | {'; '.join(wrong) or 'passed'} |" for name, wrong in results.items()),
        ],
    )
    for name, wrong in results.items():
        print(f"{name}: {'; '.join(wrong) or 'passed'}")
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
