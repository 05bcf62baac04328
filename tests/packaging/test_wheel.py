# SPDX-License-Identifier: Apache-2.0
"""The wheel: built from what the Dockerfile copies, unpacked elsewhere, and used from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import vcuda
from release.versions import package_version
from tests.unit.manifests.dockerfile import COPIED, ROOT

pytestmark = pytest.mark.timeout(600)  # the library is compiled, beside other tests


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without an environment of its own: what it needs is in ours, as the build requirements say.

    Not optimised: `make` compiles the same files with the flags of the release, and `make test-dist` runs such a wheel.
    """
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", "*.o", ".*", "_lib")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=unwanted)
        else:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment["MAKEFLAGS"] = "-- NATIVE_LTO=-O0"
    result = subprocess.run(
        [*command, "--disable-pip-version-check", "--wheel-dir", str(folder), str(source)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
def test_what_is_in_the_wheel(wheel: Path) -> None:
    assert wheel.name.startswith(f"gigaslice-{package_version(vcuda.__version__)}-cp310-abi3-linux_")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert archive.read("vcuda/_lib/libvcuda.so")[:4] == b"\x7fELF"
    assert {
        "gigaslice/roles/dataset_node/sources/_tree.abi3.so",
        "vcuda/_native.abi3.so",
        "vcuda/py.typed",
        "vcuda/probe.py",
        "agent/__init__.py",
        "gigaslice/py.typed",
    } <= names
    modules = {
        str(path.relative_to(ROOT))
        for top in ("agent", "gigaslice", "gigaslice_cli", "vcuda")
        for path in (ROOT / top).rglob("*.py")
    }
    assert modules - names == set(), "a package that the image leaves out"
    assert not [name for name in names if name.endswith((".c", ".h"))]
    tops = {name.split("/")[0] for name in names}
    assert tops == {
        "agent",
        "gigaslice",
        "gigaslice_cli",
        "vcuda",
        f"gigaslice-{package_version(vcuda.__version__)}.dist-info",
    }


@pytest.mark.slow
def test_it_works_away_from_the_sources(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import vcuda, gigaslice.roles.dataset_node.sources.posix; "
        "print(vcuda.__file__); print(vcuda.library_path()); print(vcuda.parse_size('8GiB'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    package = tmp_path / "site" / "vcuda"
    assert result.stdout.split() == [
        str(package / "__init__.py"),
        str(package / "_lib" / "libvcuda.so"),
        str(8 << 30),
    ]


def test_the_commands_are_installed() -> None:
    scripts = Path(sys.executable).parent
    assert (scripts / "gigaslice").exists()
    result = subprocess.run(
        [str(scripts / "vcuda"), "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == f"vcuda {vcuda.__version__}\n"
