# SPDX-License-Identifier: Apache-2.0
"""The shipped build/libvcuda.so on the oldest glibc to be had: a program charges to its limit and is refused."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.cross.libc import Libc, charge_to_the_limit, oldest, write_page
from tests.native.running import LIBRARY, ROOT, Place, run

BUILT = ROOT / "build" / "x86_64-2.17"
MODES = (
    "dlsym",
    "default",
    "proc1",
    "proc2",
)  # the others ask libc.so.6 for dlsym, which old ones keep in libdl


def check(libc: Libc, directory: Path) -> dict[str, list[str]]:
    """Mistakes of each case."""
    start = (str(libc.loader), "--library-path", f"{libc.libraries}:{BUILT / 'fakedriver'}")
    cases = {}
    for mode in MODES:
        place = Place(directory / mode)
        place.directory.mkdir()
        env = place.env("1100MiB", LD_BIND_NOW="1")
        cases[f"quota, driver reached by {mode}"] = charge_to_the_limit(
            place, env, (*start, str(BUILT / "native/clients/client")), mode
        )
    place = Place(directory / "lookup")
    command = (*start, BUILT / "native/clients/lookup")
    plain, under = run(command, place.plain_env()), run(command, place.env())
    cases["lookups of an unlimited program are as without the library"] = (
        [] if plain.stdout == under.stdout != "" else [under.stdout + under.stderr]
    )
    # The compiler's C library of 2.17 is a list of symbols: enough to link against, nothing to run.
    link = (
        ROOT / "build/zig/cc-x86_64",
        "-O2",
        "-o",
        directory / "linked",
        ROOT / "build/zig/empty.c",
        LIBRARY,
    )
    linked = run((*link, "-Wl,--no-allow-shlib-undefined"), place.plain_env())
    cases["every import is one of glibc 2.17 (linked against its symbol list, not run)"] = (
        [] if linked.returncode == 0 else [linked.stderr]
    )
    return cases


def main() -> int:
    """0: all is well, and the page is written."""
    libc = oldest(ROOT / "build" / "oldlibc", "amd64")
    with tempfile.TemporaryDirectory() as directory:
        cases = check(libc, Path(directory))
    page = write_page(
        "oldlibc.md",
        [
            "# The library on an old C library",
            "",
            "Written by `make test-oldlibc` on {date}; not edited by hand. The library is the shipped x86-64 one, the",
            "driver the simulated one. The C library and its loader are the oldest that the Debian archive in use has:",
            f"**libc6 {libc.version}**. Nothing older was run; for glibc 2.17 the imports are linked, not run.",
            "",
            "| case | result |",
            "| --- | --- |",
            *(f"| {case} | {'; '.join(wrong) or 'passed'} |" for case, wrong in cases.items()),
        ],
    )
    print(page.read_text())
    return 1 if any(cases.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
