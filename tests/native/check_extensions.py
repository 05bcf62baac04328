# SPDX-License-Identifier: Apache-2.0
"""What must hold for the extensions of Python, so that wheels for glibc 2.17 can be made of them. As compiled here:

    python tests/native/check_extensions.py vcuda/_native.abi3.so …

This system's C library gives a name its newest version, so versions say little here: what is refused is a name that did
not exist in 2.17. Wheels are compiled against the symbols of 2.17 (release/wheels.py), which fails for the same names,
and much later.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from check_library import NEWEST_GLIBC, tool

# Before 2.33 these were compiled into each program, and so they have no older version.
COMPILED_IN = {"stat", "fstat", "lstat", "fstatat", "mknod", "mknodat"}
# 2.34 took other libraries into libc, and gave their names a new version.
TAKEN_IN = re.compile(r"(?:pthread|sem|dl|shm|timer|mq|aio)_?\w+")


def mistakes(file: Path) -> Iterator[str]:
    """What a glibc of 2013 has not, and what ties an extension to one version of Python."""
    for version, name in re.findall(
        r"\(?GLIBC_([0-9.]+)\)?\s+(\w+)$", tool("objdump", "-T", str(file)), re.MULTILINE
    ):
        number = tuple(map(int, version.split(".")))
        known = name.removesuffix("64") in COMPILED_IN or (number == (2, 34) and TAKEN_IN.fullmatch(name))
        if number > NEWEST_GLIBC and not known:
            yield f"uses {name}, which glibc has from {version} on"
    if not file.name.endswith(".abi3.so"):
        yield "is for one version of Python: it does not use the limited API"


def main() -> int:
    """Returns 1 where there is a mistake, 2 for files that are not there."""
    files = [Path(name) for name in sys.argv[1:]]
    if not files or not all(file.is_file() for file in files):
        print(f"usage: {sys.argv[0]} EXTENSION… (build them with make extension)", file=sys.stderr)
        return 2
    found = [f"{file}: {mistake}" for file in files for mistake in mistakes(file)]
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
