# SPDX-License-Identifier: Apache-2.0
"""`python -m release.names WHAT …`: the names of a release's files, for the Makefile."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from release import versions

ROOT = Path(__file__).resolve().parents[1]


def sdist(version: str) -> str:
    """The name of the archive of sources."""
    return f"gigaslice-{versions.package_version(version)}.tar.gz"


def debug(version: str, processor: str) -> str:
    """The name of the library's debug data."""
    return f"libvcuda-{version}-{processor}.so.debug"


def sbom(version: str) -> str:
    """The name of the list of components."""
    return f"gigaslice-{version}.cdx.json"


def wheel(dist: Path, version: str, processor: str) -> Path:
    """The wheel for PROCESSOR in DIST. Raises FileNotFoundError where there is none, or more than one."""
    pattern = f"gigaslice-{versions.package_version(version)}-*_{processor}.whl"
    matches = sorted(dist.glob(pattern))
    if len(matches) != 1:
        raise FileNotFoundError(f"{len(matches)} files {dist / pattern}: make wheels makes one")
    return matches[0]


def main(arguments: Sequence[str]) -> int:
    """Prints one name. Returns 0, or 1 where the file is not there."""
    what, *more = arguments
    version = versions.present(ROOT)
    try:
        names = {
            "sdist": lambda: str(Path(more[0]) / sdist(version)),
            "debug": lambda: debug(version, more[0]),
            "sbom": lambda: sbom(version),
            "wheel": lambda: str(wheel(Path(more[0]), version, os.uname().machine)),
        }
        print(names[what]())
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
