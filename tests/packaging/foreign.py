# SPDX-License-Identifier: Apache-2.0
"""The wheels under Debian's own Pythons, fetched through apt: of another processor by qemu-user, and of a version that
this machine has not. Nothing of them is installed; they are unpacked below build/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.cross.libc import oldest_package
from tests.nvidia_smi.packages import Archive

__all__ = ["FOREIGN", "Foreign", "run_foreign"]

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("libc6", "libgcc-s1", "libexpat1", "zlib1g")


@dataclass(frozen=True, slots=True)
class Foreign:
    """A Python of Debian. architecture: Debian's name. suite: which has it. python: its version."""

    architecture: str
    processor: str
    suite: str
    python: str

    @property
    def packages(self) -> tuple[str, ...]:
        """What it consists of."""
        parts = (
            f"libpython{self.python}-minimal",
            f"libpython{self.python}-stdlib",
            f"python{self.python}-minimal",
        )
        return (*LIBRARIES, *parts)


FOREIGN = (Foreign("arm64", "aarch64", "bookworm", "3.11"), Foreign("amd64", "x86_64", "sid", "3.14"))
PROGRAM = """
import os, platform, sys, tempfile
import vcuda
from gigaslice.roles.dataset_node.sources import _tree
assert platform.machine() == sys.argv[1], platform.machine()
with tempfile.TemporaryDirectory() as folder:
    page, ledger = os.path.join(folder, "limits"), os.path.join(folder, "ledger")
    gpus = [vcuda.GpuLimit("GPU-58a9c2ed-a697-4a1c-9aa1-906b87e19b3f", 8 << 30)]
    vcuda.create_limits(page, bytes(16), gpus)
    vcuda.create_ledger(ledger, bytes(16), gpus)
    vcuda.set_memory_limit(page, gpus[0].uuid, 6 << 30)
    assert vcuda.read_limits(page).gpus[0].memory_bytes == 6 << 30
    assert vcuda.read_ledger(ledger).gpu_uuids == (gpus[0].uuid,)
print(platform.python_version(), vcuda.library_path().name, _tree.__file__.rpartition("/")[2])
"""


def run_foreign(foreign: Foreign, wheel: Path, folder: Path) -> str:
    """Imports the extensions of a wheel and uses a limits page; says with what.

    Raises AssertionError where it does not work, SystemExit where Debian's packages cannot be had.
    """
    place = ROOT / "build" / "foreign" / f"{foreign.architecture}-{foreign.python}"
    root = _unpacked(foreign, place)
    site = folder / f"{foreign.architecture}-site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        str(site),
    ]
    of_it = ["--platform", f"manylinux2014_{foreign.processor}", "--python-version", foreign.python]
    subprocess.run([*pip, *of_it, "--only-binary", ":all:", "cffi>=2,<3"], check=True)
    python = root / "usr" / "bin" / f"python{foreign.python}"
    done = subprocess.run(
        [*_starter(foreign, root), str(python), "-c", PROGRAM, foreign.processor],
        env={"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(site), "PATH": os.environ["PATH"]},
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1500:]
    version, library, extension = done.stdout.split()
    return f"Python {version}: {library} is there, {extension} and the ledger's extension work"


def _unpacked(foreign: Foreign, place: Path) -> Path:
    root = place / "root"
    if not (place / "whole").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        archive = Archive(place, (foreign.suite,), "main", foreign.architecture)
        for name in foreign.packages:
            _, package = oldest_package(archive, name)
            subprocess.run(["cp", "-a", f"{package}/.", str(root)], check=True)
        (place / "whole").touch()
    return root


def _starter(foreign: Foreign, root: Path) -> list[str]:
    """What a program of ROOT is started by: the emulator, or the loader of its own C library."""
    if foreign.processor != os.uname().machine:
        return [_emulator(), "-L", str(root)]
    loader = next(root.rglob("ld-linux-*.so.*"))
    libraries = {str(path.parent) for path in root.rglob("lib*.so.*")}
    return [str(loader), "--library-path", ":".join(sorted(libraries))]


def _emulator() -> str:
    """qemu-aarch64-static of this system, or Debian's, unpacked below build/."""
    installed = shutil.which("qemu-aarch64-static")
    if installed:
        return installed
    archive = Archive(ROOT / "build" / "foreign" / "qemu", ("bookworm",), "main")
    _, place = oldest_package(archive, "qemu-user-static")
    return str(place / "usr" / "bin" / "qemu-aarch64-static")
