# SPDX-License-Identifier: Apache-2.0
"""The aarch64 build under qemu-user: unit tests, lookups through the assembly stubs, and quotas charged to the byte.

The emulator notes every page of the address space that a program reserves, in memory of its own. The simulated driver
reserves 16 TiB, which would take all that the machine has; under a limit of address space it reserves less.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cross.libc import Libc, charge_to_the_limit, oldest, write_page
from tests.cross.oldlibc import MODES
from tests.native.running import ROOT, Place, run

BUILT = ROOT / "build" / "aarch64-2.17"
CLIENTS = BUILT / "native" / "clients"
# They stop a process after single instructions with ptrace, which the emulator has not.
STEPPED = r"step_.*|kill_every_instruction"
ADDRESS_SPACE = 128 << 30


def unit_tests(start: tuple[str, ...]) -> tuple[int, list[str]]:
    """How many were run, and the last lines of those that failed."""
    command = (*start, str(BUILT / "native/release/run_tests"))
    names = subprocess.run([*command, "--list"], capture_output=True, text=True, check=True).stdout.split()
    chosen = [name for name in names if not re.fullmatch(STEPPED, name)]
    done = subprocess.run(
        ["env", "VC_TEST_TIMEOUT=10", *command, *chosen], capture_output=True, text=True, check=False
    )
    return len(chosen), [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()[-5:]


def check(start: tuple[str, ...], directory: Path) -> dict[str, list[str]]:
    """Mistakes of each case."""
    count, wrong = unit_tests(start)
    cases = {f"{count} unit tests of the C code (those with ptrace left out)": wrong}
    library = BUILT / "libvcuda.so"
    place = Place(directory / "lookup", library=library)
    place.directory.mkdir()
    for arguments in ((), ("load",)):
        command = (*start, CLIENTS / "lookup", *arguments)
        plain, under = run(command, place.plain_env()), run(command, place.env())
        cases[f"lookups of an unlimited program are as without the library {' '.join(arguments)}"] = (
            [] if plain.stdout == under.stdout != "" else [under.stdout + under.stderr]
        )
    limited = run((*start, CLIENTS / "lookup", "load"), place.env("1GiB"))
    cases["hooked functions come from the library, others from the driver"] = (
        []
        if "cuMemAlloc_v2 in libcuda: libvcuda.so" in limited.stdout
        and "cuDriverGetVersion in libcuda: libcuda.so.1" in limited.stdout
        else [limited.stdout + limited.stderr]
    )
    for mode in MODES:
        place = Place(directory / mode, library=library)
        place.directory.mkdir()
        cases[f"quota, driver reached by {mode}"] = charge_to_the_limit(
            place, place.env("1100MiB"), (*start, str(CLIENTS / "client")), mode
        )
    tail = run(
        (*start, ROOT / "build/zig/empty-aarch64"),
        place.env("1GiB", LD_PRELOAD=f"{library}:{CLIENTS / 'tail.so'}"),
    )
    cases["RTLD_NEXT through the tail jump keeps the caller's place in the chain"] = (
        [] if tail.stdout.splitlines() == ["no further one", "libc"] else [tail.stdout + tail.stderr]
    )
    return cases


def starter(libc: Libc, qemu: str) -> tuple[str, ...]:
    """How to start an aarch64 program."""
    return (qemu, str(libc.loader), "--library-path", f"{libc.libraries}:{BUILT / 'fakedriver'}")


def main() -> int:
    """0: all is well, and the page is written."""
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None:
        print("error: qemu-aarch64-static is missing: install qemu-user-static", file=sys.stderr)
        return 3
    version = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )[0]
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    libc = oldest(ROOT / "build" / "arm64libc", "arm64")
    with tempfile.TemporaryDirectory() as directory:
        cases = check(starter(libc, qemu), Path(directory))
    page = write_page(
        "aarch64.md",
        [
            "# The library on aarch64",
            "",
            "Written by `make test-aarch64` on {date}; not edited by hand. Built by `make native-aarch64`, exports and",
            "imports checked by `tests/native/check_library.py`, run on the simulated driver under emulation:",
            f"{version}, libc6 {libc.version} (arm64).",
            "No real aarch64 processor and no GPU took part. **Memory ordering is what the emulator makes of it**,",
            "and on x86-64 that is x86-64's: what a weaker one may do was [reviewed](memory-order.md), not run.",
            "Tests that stop a process after single instructions were left out, as the emulator has no ptrace.",
            "",
            "| case | result |",
            "| --- | --- |",
            *(f"| {case.strip()} | {'; '.join(wrong) or 'passed'} |" for case, wrong in cases.items()),
        ],
    )
    print(page.read_text())
    return 1 if any(cases.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
