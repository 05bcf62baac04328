# SPDX-License-Identifier: Apache-2.0
"""`make test-dist [VERSION=]`: what is in dist/ is installed and started, each in an environment of its own.

The wheel under every Python that there is, the sources built as pip builds them, the commands of the pages literally,
the chart rendered, the list of components compared with what was installed. CUDA programs run on the simulated driver.
Writes docs/proofs/distributions.md. Takes minutes and needs pip's packages, and so it is no part of `make test`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from release import names, versions
from release.wheels import programs
from tests.cross.libc import write_page
from tests.fakedriver.env import driver_env
from tests.packaging.foreign import FOREIGN, run_foreign
from tests.packaging.page_blocks import run_pages
from vcuda.version import VERSION as PRESENT

VERSION = sys.argv[1] if len(sys.argv) > 1 else PRESENT
"""Of what is in dist/: `make release VERSION=` makes it for a version that the tree has not."""
ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
MINORS = range(10, 15)
GIB = 1 << 30
NATIVE = "import vcuda._native, gigaslice.roles.dataset_node.sources._tree as tree; print(tree.__file__)"


def interpreters() -> Iterator[Path]:
    """One interpreter of each version that a wheel is for, as far as this machine has them."""
    places = [*os.environ.get("PATH", "").split(":"), *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    for minor in MINORS:
        candidates = (Path(place) / f"python3.{minor}" for place in places)
        for candidate in candidates:
            run = (
                subprocess.run([str(candidate), "-c", ""], capture_output=True, check=False)
                if candidate.exists()
                else None
            )
            if (
                run is not None and run.returncode == 0
            ):  # a shim of a version manager may have nothing behind it
                yield candidate
                break


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise AssertionError(
            f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        )
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Of a user: nothing of a checkout, of pytest and of make."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "PYTHON", "VCUDA", "GIGASLICE"))
    }


def installed(python: Path, what: Path, folder: Path, extras: str = "[cluster,dataset]") -> Path:
    """An environment with WHAT and nothing else, made by PYTHON; only wheels, so that nothing is compiled."""
    environment = folder / "venv"
    run(python, "-m", "venv", environment, cwd=folder, env=clean_environment())
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--only-binary", ":all:", f"{what}{extras}", cwd=folder, env=clean_environment())
    return environment


def starts(environment: Path, folder: Path) -> None:
    """Both commands, both extensions, the imports of all roles, and a program under a limit."""
    binaries = environment / "bin"
    assert run(binaries / "vcuda", "--version", cwd=folder).strip() == f"vcuda {VERSION}"
    assert run(binaries / "gigaslice", "version", cwd=folder).strip() == f"gigaslice {VERSION}"
    assert str(environment) in run(binaries / "python", "-c", NATIVE, cwd=folder, env=clean_environment())
    for role in ("node", "scheduler", "controller", "dataset", "driver-limits"):
        assert (
            "usage"
            in run(binaries / "gigaslice", role, "--help", cwd=folder, env=clean_environment()).lower()
        )
    program = folder / "total.py"
    program.write_text(TOTAL)
    machine = {**driver_env("two-24g", folder / "machine"), "XDG_RUNTIME_DIR": str(folder)}
    said = run(
        binaries / "vcuda", "run", "--memory", "8GiB", "--", sys.executable, program, cwd=folder, env=machine
    )
    assert said == f"{8 * GIB}\n", said


TOTAL = """import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, total = ctypes.c_int(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
print(total.value, flush=True)
"""


def check_wheel(wheel: Path) -> str:
    """What auditwheel says of it, and that nothing in it has debug data."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in programs(wheel).items():
            file = Path(folder) / Path(name).name
            file.write_bytes(content)
            sections = run("readelf", "--section-headers", "--wide", file, cwd=ROOT)
            assert not re.search(r"\.(?:debug_\w+|symtab)\s", sections), f"{name} has symbols or debug data"
    tool = [sys.executable, "-m", "auditwheel", "show", wheel]
    said = " ".join(run(*tool, cwd=ROOT).split())
    match = re.search(r'platform tag: "(\w+)"', said)
    assert match is not None, said
    assert "manylinux" in match[1], said
    return f"{wheel.stat().st_size // 1024} KiB, {match[1]}"


def check_debug(wheel: Path, processor: str) -> str:
    """The debug data are those of the library in the wheel: by its build id, and by the name and sum in it."""
    file = DIST / names.debug(VERSION, processor)
    library = programs(wheel)["vcuda/_lib/libvcuda.so"]
    with tempfile.TemporaryDirectory() as folder:
        shipped = Path(folder) / "libvcuda.so"
        shipped.write_bytes(library)
        identifiers = {
            re.findall(r"Build ID: (\w+)", run("readelf", "--notes", path, cwd=ROOT))[0]
            for path in (shipped, file)
        }
    assert len(identifiers) == 1, identifiers
    link = b"libvcuda.so.debug".ljust(20, b"\0") + zlib.crc32(file.read_bytes()).to_bytes(4, "little")
    assert link in library, "the library names other debug data"
    return f"{len(library) // 1024} KiB installed, {file.stat().st_size // 1024} KiB of debug data beside the release"


def check_sdist(folder: Path) -> str:
    """A wheel from the sources as pip makes it, with the packages that they ask for and no others."""
    sdist = DIST / names.sdist(VERSION)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check"]
    run(*pip, "--wheel-dir", folder, sdist, cwd=folder, env=clean_environment())
    (wheel,) = folder.glob("*.whl")
    starts(installed(Path(sys.executable), wheel, folder), folder)
    return wheel.name


def check_chart(folder: Path) -> str:
    """The packed chart is rendered, and names the image of its version."""
    helm = Path(sys.executable).parent / "helm"
    chart = DIST / f"gigaslice-{VERSION}.tgz"
    text = run(helm, "template", "gigaslice", chart, "--namespace", "gigaslice", cwd=folder)
    assert f"gigaslice:{VERSION}" in text
    return f"{text.count('kind: ')} objects"


def check_sbom(environment: Path) -> str:
    """Everything that is installed with the wheel is in the list of components, and has a licence."""
    document = json.loads((DIST / names.sbom(VERSION)).read_text())
    listed = {one["name"].lower().replace("_", "-"): one for one in document["components"]}
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(environment / "bin" / "python"),
        "list",
        "--format",
        "json",
    ]
    there = {one["name"].lower().replace("_", "-") for one in json.loads(run(*pip, cwd=ROOT))}
    missing = there - set(listed) - {"pip", "setuptools", "gigaslice"}
    assert not missing, missing
    without = sorted(name for name, one in listed.items() if not one.get("licenses"))
    assert not without, f"without a licence: {without}"
    described = document["metadata"]["component"]
    assert (described["name"], described["version"]) == ("gigaslice", VERSION)
    return f"{len(listed)} packages, each with its licence"


def check_metadata() -> str:
    """Description and fields of wheels and sources, as an index reads them."""
    packages = [path for path in DIST.iterdir() if path.name.endswith((".whl", ".tar.gz"))]
    assert len(packages) == 3, packages
    run(sys.executable, "-m", "twine", "check", "--strict", *packages, cwd=DIST)
    return ""


def main() -> int:
    """Returns 0 where everything passed, 1 otherwise, and 3 where dist/ is not there."""
    if not list(DIST.glob(f"gigaslice-{versions.package_version(VERSION)}-*.whl")):
        print(f"error: no wheel of {VERSION} in dist/: make dist", file=sys.stderr)
        return 3
    rows: list[tuple[str, str]] = []
    wrong = 0

    def case(name: str, check: Callable[[], str]) -> None:
        nonlocal wrong
        try:
            rows.append((name, check() or "passed"))
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            wrong += 1
            rows.append((name, f"**failed**: {str(error).splitlines()[0]}"))
            print(f"{name}: {error}", file=sys.stderr)
        print(f"{rows[-1][0]}: {rows[-1][1]}", flush=True)

    here = names.wheel(DIST, VERSION, os.uname().machine)
    for processor in ("x86_64", "aarch64"):
        wheel = names.wheel(DIST, VERSION, processor)
        case(f"the wheel for {processor}", lambda wheel=wheel: check_wheel(wheel))  # type: ignore[misc]
        case(f"its library, {processor}", lambda wheel=wheel, of=processor: check_debug(wheel, of))  # type: ignore[misc]
    case("what an index would show (twine check --strict)", check_metadata)
    with tempfile.TemporaryDirectory(prefix="gigaslice-dist-") as text:
        folder = Path(text)
        for python in interpreters():
            case(f"installed and started, {python.name}", lambda python=python: _tried(python, here, folder))  # type: ignore[misc]
        case("the list of components", lambda: check_sbom(installed_once(here, folder)))
        case(
            "the commands of the pages, literally",
            lambda: run_pages(installed_once(here, folder), folder / "pages"),
        )
        for name, check in (("the sources, built by pip", check_sdist), ("the chart", check_chart)):
            place = folder / name.replace(" ", "-")
            place.mkdir()
            case(name, lambda check=check, place=place: check(place))  # type: ignore[misc]
        for of in FOREIGN:
            wheel = names.wheel(DIST, VERSION, of.processor)
            what = f"the wheel for {of.processor} with Debian's Python {of.python}"
            emulated = "" if of.processor == os.uname().machine else ", emulated"
            case(what + emulated, lambda of=of, wheel=wheel: run_foreign(of, wheel, folder))  # type: ignore[misc]
    _write(rows)
    return 1 if wrong else 0


def _tried(python: Path, wheel: Path, folder: Path) -> str:
    place = folder / python.name
    place.mkdir()
    starts(installed(python, wheel, place), place)
    shutil.rmtree(place)
    return ""


def installed_once(wheel: Path, folder: Path) -> Path:
    """The environment of this Python that several cases use."""
    place = folder / "once"
    if not (place / "venv").exists():
        place.mkdir()
        installed(Path(sys.executable), wheel, place)
    return place / "venv"


def _write(rows: Sequence[tuple[str, str]]) -> None:
    write_page(
        "distributions.md",
        [
            "# What people install",
            "",
            "Written by `make test-dist` on {date}; not edited by hand. The files of `make dist`, each installed into",
            "an environment of its own that has nothing of a checkout, and started. CUDA programs ran on the simulated",
            "driver.",
            "",
            "| case | result |",
            "| --- | --- |",
            *(f"| {name} | {result} |" for name, result in rows),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
