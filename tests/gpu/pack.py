# SPDX-License-Identifier: Apache-2.0
"""What a machine with a GPU and without a network needs: python -m tests.gpu.pack. Run where `make` and an
index are.

Into build/gpu: `cost`, `trace.so` and `demo-client`, compiled here; and `site`, the packages that the agent
needs and CUDA's runtime 12, unpacked for the Python of that machine. With build/libvcuda.so and
vcuda/_native.abi3.so that is all there is to bring along. Exit 0: complete. 1: something is missing, and said.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.gpu.world import ROOT

HERE, PACK = Path(__file__).resolve().parent, ROOT / "build/gpu"
# What the agent imports and a machine made for CUDA lacks, or has in any version: pyproject.toml's, with their needs.
PACKAGES = (
    "cffi>=2.0,<3",
    "structlog>=24.1,<27",
    "h11>=0.14,<1",
    "orjson>=3.10,<4",
    "aiohttp>=3.14.5,<4",
    "aiohappyeyeballs",  # and the next seven: aiohttp's
    "aiosignal",
    "attrs",
    "frozenlist",
    "idna",
    "multidict",
    "propcache",
    "yarl",
    "grpcio>=1.66,<2",
    "protobuf>=6.30,<8",
    "prometheus-client>=0.21,<1",
    "nvidia-ml-py>=12.560,<14",
    "typing-extensions",
    "PyYAML>=6.0,<7",
    "rich>=13.7,<16",
    "markdown-it-py",  # and the next two: rich's
    "mdurl",
    "pygments",
    "blessed>=1.17",  # and the next two: gpustat's
    "jinxed>=2.1,<3",
    "wcwidth",
    "psutil>=6.0,<8",
)
SOURCES = ("gpustat>=1.1,<2",)  # pure Python, published as sources: the demo asks it in a pod
RUNTIME = "nvidia-cuda-runtime-cu12>=12.8,<13"
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
LARGEST = 48 << 20


def compile_here(pack: Path) -> list[str]:
    """The programs in C; what is wrong."""
    driver = ROOT / "build/fakedriver"  # linked by name alone: on the other machine it is NVIDIA's
    commands = {
        "cost": [str(HERE / "cost.c"), "-ldl"],
        "trace.so": ["-shared", "-fPIC", str(HERE / "trace.c"), "-ldl", "-lpthread"],
        "demo-client": [
            "-I",
            str(ROOT / "build/include"),
            str(ROOT / "tests/demo/client.c"),
            "-L",
            str(driver),
            "-l:libcuda.so.1",
            "-l:libnvidia-ml.so.1",
        ],
    }
    wrong = []
    for name, words in commands.items():
        command = ["gcc", "-std=gnu17", "-O2", "-o", str(pack / name), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            wrong.append(f"{name} does not compile: {done.stderr.strip()[-300:]}")
    return wrong


def download(python: str, wheels: Path) -> list[str]:
    """Wheels for that Python; what is wrong."""
    wrong = []
    for package in (*PACKAGES, RUNTIME):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            str(wheels),
        ]
        command += ["--python-version", python, "--implementation", "cp", "--disable-pip-version-check"]
        command += [word for platform in PLATFORMS for word in ("--platform", platform)]
        done = subprocess.run([*command, package], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            wrong.append(f"{package}: {(done.stderr.strip() or 'pip says nothing').splitlines()[-1][:200]}")
    for package in SOURCES:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels)]
        done = subprocess.run([*command, package], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            wrong.append(f"{package}: {(done.stderr.strip() or 'pip says nothing').splitlines()[-1][:200]}")
    return wrong


def unpack(wheels: Path, site: Path) -> None:
    """All wheels side by side: a folder for PYTHONPATH. Files that no import reads stay behind."""
    shutil.rmtree(site, ignore_errors=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            names = [
                name for name in archive.namelist() if not name.endswith((".a", ".h", ".hpp", ".cuh", ".pyi"))
            ]
            archive.extractall(site, names)


def size(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(argv: list[str]) -> int:
    """Make it."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.pack", description=__doc__)
    parser.add_argument(
        "--python", default="3.12", help="version of the other machine's python3 (default 3.12)"
    )
    parser.add_argument("--no-packages", action="store_true", help="only what is compiled here")
    parser.add_argument("--pack", type=Path, default=PACK)
    options = parser.parse_args(argv)
    options.pack.mkdir(parents=True, exist_ok=True)
    wrong = compile_here(options.pack)
    if not options.no_packages:
        with tempfile.TemporaryDirectory() as wheels:
            wrong += download(options.python, Path(wheels))
            unpack(Path(wheels), options.pack / "site")
    if size(options.pack) > LARGEST:
        wrong.append(
            f"{options.pack} has {size(options.pack) >> 20} MiB, which may be too much to bring along"
        )
    for path in (ROOT / "build/libvcuda.so", ROOT / "vcuda/_native.abi3.so"):
        if not path.exists():
            wrong.append(f"{path.relative_to(ROOT)} is missing: run make")
    for one in wrong:
        print(f"pack: {one}", file=sys.stderr)
    print(
        f"bring along: build/libvcuda.so vcuda/_native.abi3.so {options.pack} ({size(options.pack) >> 20} MiB)"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
