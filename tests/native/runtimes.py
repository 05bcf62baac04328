# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's CUDA runtimes on the simulated driver: what each of them is handed when it looks the driver's functions up.

A witness in front of all (clients/witness.c) writes down every answer, once without and once with the library.
`python -m tests.native.runtimes` downloads the wheels of RELEASES into build/runtimes, tries each runtime, and writes
docs/runtimes.md; `make test-runtimes` does that. The suite tries the one that comes with the headers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fakedriver.env import write_machine
from tests.native.check_library import listed_symbols, shared_symbols
from tests.native.running import CLIENTS, LIBRARY, ROOT, Place, run
from tests.steps import each

WHEELS = ROOT / "build" / "runtimes"
REPORT = ROOT / "docs" / "runtimes.md"
CUDA_VERSION = 13050  # of the simulated driver: newer than every runtime below
RELEASES = {
    "nvidia-cuda-runtime-cu11": ("11.7.99", "11.8.89"),
    "nvidia-cuda-runtime-cu12": (
        *(
            "12.0.146",
            "12.1.105",
            "12.2.140",
            "12.3.101",
            "12.4.127",
            "12.5.82",
            "12.6.77",
            "12.8.90",
            "12.9.79",
        ),
    ),
    "nvidia-cuda-runtime": ("13.0.96", "13.1.80", "13.2.75", "13.3.29", "13.4.92", "13.5.37"),
}
OURS, DRIVERS = "libvcuda.so", "libcuda.so.1"


@dataclass(frozen=True)
class Lookup:
    """One line of the witness: a question, the driver's code, and the function that was handed out ("-": none)."""

    question: str
    code: int
    symbol: str
    file: str

    @property
    def way(self) -> str:
        """dlsym, v1 or v2."""
        return self.question.split()[0]


@dataclass(frozen=True)
class Trial:
    """What one runtime was handed, and what is wrong with it."""

    name: str
    lookups: list[Lookup]
    mistakes: list[str]

    def count(self, way: str = "", file: str = "") -> int:
        """Lookups by WAY that were answered from FILE; all of them where an argument is empty."""
        return sum(way in ("", found.way) and file in ("", found.file) for found in self.lookups)


def machine(directory: Path) -> Place:
    """A simulated machine whose driver is newer than all runtimes."""
    return Place(directory, write_machine(directory, like="two-24g", cuda_version=CUDA_VERSION))


def watch(place: Place, program: tuple[str | Path, ...], *, limited: bool) -> list[Lookup]:
    """The lookups of PROGRAM. The log is the same whether or not the library stands behind the witness."""
    log = place.directory / "witness.log"
    log.unlink(missing_ok=True)
    preload = [CLIENTS / "witness.so", *([LIBRARY] if limited else [])]
    env = place.env("1GiB") | {"LD_PRELOAD": ":".join(map(str, preload)), "WITNESS_LOG": str(log)}
    done = run(program, env)
    if done.returncode != 0:
        raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr}")
    return [read_line(line) for line in log.read_text().splitlines()]


def read_line(line: str) -> Lookup:
    question, _, answer = line.rpartition(": ")
    code, symbol, file = answer.split()
    return Lookup(question, int(code), symbol, file)


def mistakes(plain: list[Lookup], limited: list[Lookup]) -> Iterator[str]:
    """With the library the same questions get the same functions, ours exactly where one is hooked."""
    hooked = listed_symbols() - shared_symbols()
    if [(at.question, at.code, at.symbol) for at in plain] != [
        (at.question, at.code, at.symbol) for at in limited
    ]:
        yield "the library changed a question, a code or a function"
    for found in limited:
        expected = "-" if found.symbol == "-" else OURS if found.symbol in hooked else DRIVERS
        if found.file != expected:
            yield f"{found.question} was answered with {found.symbol} of {found.file}, not of {expected}"
    if not any(found.file == OURS for found in limited):
        yield "no function of the library was handed out"


def try_runtime(place: Place, name: str, *program: str | Path) -> Trial:
    """PROGRAM without and with the library."""
    plain = watch(place, program, limited=False)
    limited = watch(place, program, limited=True)
    return Trial(name, limited, list(mistakes(plain, limited)))


def shared_runtimes(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("libcudart.so.*") if not path.is_symlink())


def link_static(archive: Path, output: Path) -> Path:
    """The test program with the runtime inside, as nvcc links by default."""
    source = ROOT / "tests/native/clients/runtime.c"
    command = ["gcc", "-std=gnu17", "-DSTATIC", "-o", output, source, archive, "-ldl", "-lrt", "-lpthread"]
    subprocess.run(command, check=True, capture_output=True)
    return output


def try_folder(place: Place, folder: Path, name: str) -> Iterator[Trial]:
    """The shared and, where there is one, the static runtime of an unpacked wheel."""
    for library in shared_runtimes(folder):
        yield try_runtime(place, name, CLIENTS / "runtime", library)
    for archive in sorted(folder.rglob("libcudart_static.a")):
        program = link_static(archive, place.directory / "runtime-static")
        yield try_runtime(place, f"{name}, linked statically", program)


def fetch(package: str, version: str) -> Path:
    """The wheel, unpacked; downloaded unless it is there."""
    folder = WHEELS / f"{package}-{version}"
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", scratch, f"{package}=={version}"], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def report(trials: list[Trial]) -> str:
    """docs/runtimes.md."""
    lines = [
        "# CUDA runtimes",
        "",
        "What `make test-runtimes` found: NVIDIA's own CUDA runtimes, from the wheels of the package index, started on",
        "the simulated driver (which says that it is CUDA 13.5) with a tool in front that writes down every function",
        "they are handed. With the library each gets the same answers, codes and versions of functions as without it;",
        "of these, exactly the hooked functions are the library's. All ask with a NULL status. A wheel without a row",
        "“linked statically” has no `libcudart_static.a`.",
        "",
        "| runtime | by `dlsym` | `cuGetProcAddress` | `…_v2` | the library's | the driver's | none | mistakes |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {trial.name} | {trial.count('dlsym')} | {trial.count('v1')} | {trial.count('v2')} | "
        f"{trial.count(file=OURS)} | {trial.count(file=DRIVERS)} | {trial.count(file='-')} | {len(trial.mistakes)} |"
        for trial in trials
    ]
    lines += [
        "",
        "“None” are functions that the simulated driver has not, graphics for the most part. The runtime stops after",
        "these lookups there: it then asks for private tables of NVIDIA's driver, which only NVIDIA can fill. So what",
        "`cudaMalloc` does with the functions is tested on a GPU, by `make test-gpu`.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Try every release; exit code 1 when one got a wrong function."""
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory() as scratch:
        place = machine(Path(scratch))
        releases = [(package, version) for package, versions in RELEASES.items() for version in versions]
        for package, version in each(releases, lambda release: f"runtime {release[1]}"):
            trials += try_folder(place, fetch(package, version), version)
    REPORT.write_text(report(trials), encoding="utf-8")
    for trial in trials:
        print(f"{trial.name}: {len(trial.lookups)} lookups, {len(trial.mistakes)} mistakes")
        print("".join(f"  {mistake}\n" for mistake in trial.mistakes), end="")
    return 1 if any(trial.mistakes for trial in trials) else 0


if __name__ == "__main__":
    sys.exit(main())
