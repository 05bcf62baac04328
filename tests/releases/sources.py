# SPDX-License-Identifier: Apache-2.0
"""The code of a release, as much as a node runs of it and `reading` needs: packed beside its fixtures, and built again.

A tag is not enough: a shallow clone has none, and a test that is skipped there says nothing. Packed is the Python of
the agent and of what that imports, and the C of limits page and ledger, as they stand in the tree. The library with its
hooks is kept as it was built: containers go on with those bytes, and another compiler would make others.
"""

from __future__ import annotations

import ast
import fcntl
import io
import lzma
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = "code.tar.xz"
PROCESSOR = "x86_64"
LIBRARY = f"libvcuda-{PROCESSOR}.so.xz"
READER = "tests/releases/reading.py"
_WHOLE = ("agent", "gigaslice_cli", "vcuda")
_OURS = ("agent", "gigaslice", "gigaslice_cli", "vcuda")
_NATIVE = ("native/base", "native/shm")


def packed() -> bytes:
    """The archive: the same bytes for the same tree."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(_names()):
            content = (ROOT / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return compressed(raw.getvalue())


def compressed(content: bytes) -> bytes:
    """CONTENT as small as xz makes it."""
    return lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)


def library(release: Path, target: Path) -> Path:
    """Writes the library of the release whose fixtures are in RELEASE to TARGET, and returns that.

    Raises FileNotFoundError where this processor is not the one whose library is kept.
    """
    if os.uname().machine != PROCESSOR:
        raise FileNotFoundError(f"the library of {release.name} is kept for {PROCESSOR} alone")
    target.write_bytes(lzma.decompress((release / LIBRARY).read_bytes()))
    return target


def _names() -> set[str]:
    names = {READER, "pyproject.toml", "setup.py"}
    for directory in _NATIVE:
        names |= {_relative(path) for path in (ROOT / directory).iterdir() if path.is_file()}
    waiting = [_relative(path) for top in _WHOLE for path in (ROOT / top).rglob("*.py")]
    waiting.append(READER)
    while waiting:
        name = waiting.pop()
        names.add(name)
        for imported in _imported(ROOT / name):
            if imported not in names:
                names.add(imported)
                waiting.append(imported)
    return names


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _imported(path: Path) -> Iterator[str]:
    """The files of ours that a file imports, with the packages above them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            for end in range(1, len(parts) + 1) if parts[0] in _OURS else ():
                base = ROOT.joinpath(*parts[:end])
                for file in (base.with_suffix(".py"), base / "__init__.py"):
                    if file.is_file():
                        yield _relative(file)


def built(release: Path, place: Path) -> Path:
    """The tree of the release whose fixtures are in RELEASE, unpacked and compiled below PLACE once; its root."""
    raw = (release / ARCHIVE).read_bytes()
    place.mkdir(parents=True, exist_ok=True)
    with (place / f"{release.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        stat = (release / ARCHIVE).stat()
        tree = place / f"{release.name}-{stat.st_size}-{stat.st_mtime_ns}"
        if not (tree / "built").exists():
            with tarfile.open(fileobj=io.BytesIO(lzma.decompress(raw))) as archive:
                archive.extractall(tree, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            compile_native(tree)
            (tree / "build").mkdir(exist_ok=True)
            (tree / "build" / "libvcuda.so").write_bytes(
                b"\x7fELF, a stand-in for the library of " + release.name.encode()
            )
            (tree / "built").touch()
    return tree


def compile_native(tree: Path) -> None:
    """Compiles the reader of limits pages and ledgers in a tree."""
    done = subprocess.run(
        [sys.executable, "-c", "from vcuda._build import ffi; ffi.compile()"],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{tree} was not compiled: {done.stdout[-2000:]}{done.stderr[-2000:]}")
