# SPDX-License-Identifier: Apache-2.0
"""`python -m release.wheels PROCESSOR`: a wheel that installs without a compiler, on every glibc from 2.17 on.

The library is built before, and named by LIBRARY. The two extensions are compiled here, by the cross compiler of
native/cross.mk, which knows the symbols of an old C library; a compiler of this system would bind them to its own. They
use the limited API of Python 3.10, and so one wheel serves all versions from that on. auditwheel says whether what
came out is what its name promises, and gives it the name.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLATFORM = "manylinux2014"
_UNWANTED = shutil.ignore_patterns("__pycache__", "*.so", "*.o", ".*", "_lib", "*.egg-info")


class PlatformError(Exception):
    """A wheel needs something newer than its platform has."""


def main(arguments: Sequence[str]) -> int:
    """Returns 0, 1 where a wheel could not be made, and 2 for a Python whose headers are of one processor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("processor", choices=("x86_64", "aarch64"))
    parser.add_argument("--library", type=Path, required=True, help="libvcuda.so for it, without debug data")
    parser.add_argument("--compiler", type=Path, required=True, help="compiles for it")
    parser.add_argument("--sdist", type=Path, required=True)
    parser.add_argument("--dist", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    if _headers_of_one_processor() and chosen.processor != os.uname().machine:
        print(
            f"error: the headers of {sys.executable} are Debian's, which differ by processor: make the environment "
            "with another Python (make clean; make PYTHON=...), or build on that processor",
            file=sys.stderr,
        )
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="gigaslice-wheel-") as folder:
            wheel = _built(Path(folder), chosen)
            _named(wheel, chosen.processor, chosen.dist)
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd))} failed: see above", file=sys.stderr)
        return 1
    except PlatformError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _headers_of_one_processor() -> bool:
    """Whether pyconfig.h includes one by the processor that it is compiled for, as Debian's does."""
    header = Path(sysconfig.get_path("include")) / "pyconfig.h"
    return header.is_file() and "linux-gnu" in header.read_text(encoding="utf-8")


def _built(folder: Path, chosen: argparse.Namespace) -> Path:
    """A wheel with the name that this system would give it."""
    shutil.unpack_archive(chosen.sdist, folder)
    (source,) = folder.glob("gigaslice-*/")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        "LIBVCUDA": str(chosen.library.resolve()),
        "CC": str(chosen.compiler.resolve()),
        "LDSHARED": f"{chosen.compiler.resolve()} -shared",
        "CFLAGS": "-g0",
        "LDFLAGS": "-Wl,--strip-all",
        "_PYTHON_HOST_PLATFORM": f"linux-{chosen.processor}",
    }
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    made = folder / "made"
    subprocess.run(
        [*pip, "--disable-pip-version-check", "--wheel-dir", str(made), str(source)],
        env=environment,
        check=True,
    )
    (wheel,) = made.glob("*.whl")
    return wheel


def _named(wheel: Path, processor: str, dist: Path) -> None:
    """Puts the wheel into DIST under the name of the oldest platform on which it runs, by auditwheel.

    Raises PlatformError where that is another one than PLATFORM. It is not named to auditwheel, which takes names of
    this machine's processor alone.
    """
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "auditwheel", "repair", "--only-plat"]
    made = wheel.parent / "named"
    subprocess.run([*command, "--wheel-dir", str(made), str(wheel)], env=environment, check=True)
    (named,) = made.glob("*.whl")
    if f"{PLATFORM}_{processor}" not in named.name:
        raise PlatformError(
            f"{named.name} is not for {PLATFORM}: auditwheel show says which symbols are newer"
        )
    shutil.copy(named, dist / named.name)


def programs(wheel: Path) -> dict[str, bytes]:
    """The ELF files in a wheel, by name."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if name.endswith(".so")}
    return {name: content for name, content in contents.items() if content.startswith(b"\x7fELF")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
