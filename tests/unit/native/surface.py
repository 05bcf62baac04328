# SPDX-License-Identifier: Apache-2.0
"""Every function of the CUDA driver API and of NVML, and what the library does about it.

`cuda.csv` and `nvml.csv` have a line for each: its family, the decision, and why where the family does not say it.

| decision | meaning |
| --- | --- |
| hook | takes, returns or shows device memory, launches work, or hands out functions: exported by the library |
| pass | goes to the driver untouched |
| later | nothing to do until a feature exists that needs it |
| inline | a function of the header, not of the driver |
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
DECISIONS = ("hook", "pass", "later", "inline")

# The three faces of cuda.h: today's names, all ABI versions, the per-thread default stream.
FACES = ((), ("-D__CUDA_API_VERSION_INTERNAL",), ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",))
# Their headers need those of a graphics API, which need not be there: read as text.
GRAPHICS = ("cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a table."""

    symbol: str
    family: str
    decision: str
    why: str


@cache
def table(name: str) -> dict[str, Entry]:
    """The lines of cuda.csv or nvml.csv by symbol."""
    with (HERE / f"{name}.csv").open(newline="") as file:
        entries = [Entry(**row) for row in csv.DictReader(file)]
    found = {entry.symbol: entry for entry in entries}
    assert len(found) == len(entries), "a symbol has two lines"
    return found


def header(name: str) -> Path | None:
    """A header of NVIDIA's that the library is built with."""
    import nvidia

    found = (Path(root) / "cu13" / "include" / name for root in nvidia.__path__)
    return next((path for path in found if path.exists()), None)


def _called(text: str, prefix: str) -> Iterator[str]:
    """Names in TEXT that begin with PREFIX and are followed by a parameter list."""
    yield from re.findall(rf"\b({prefix}[A-Z]\w*)\s*\(", text)


def declared_in(text: str) -> set[str]:
    """CUDA driver functions that a piece of C declares, by compiling nothing but its preprocessor lines."""
    names: set[str] = set()
    for face in FACES:
        command = ["gcc", "-E", "-P", "-x", "c", *face, "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        names |= set(_called(done.stdout, "cu"))
    return names


def declared_cuda() -> set[str]:
    """Every function that the CUDA headers of this build declare, in all ABI versions."""
    main = header("cuda.h")
    assert main is not None, "the CUDA headers are missing: run make"
    names = declared_in(f'#include "{main}"\n')
    for name in GRAPHICS:
        path = header(name)
        text = "" if path is None else re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        names |= {found for found in _called(text, "cu") if f"CUDAAPI {found}" in text}
    return {name for name in names if not name.startswith("cuWGL")}  # Windows


def declared_nvml() -> set[str]:
    """Every function that nvml.h of this build declares."""
    path = header("nvml.h")
    assert path is not None, "nvml.h is missing: run make"
    return set(re.findall(r"nvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(", path.read_text())) | set(
        re.findall(r"DECLDIR\s+(nvml\w+)\s*\(", path.read_text())
    )
