# SPDX-License-Identifier: Apache-2.0
"""Programs that a preloaded library cannot reach are recognised by their file."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from vcuda.program import MUSL, find_program, preload_obstacle


def script(path: Path, first: bytes) -> Path:
    path.write_bytes(first + b"\n")
    path.chmod(0o755)
    return path


def elf(path: Path, loader: bytes | None, *, bits: int = 2, machine: int | None = None) -> Path:
    """The beginning of an ELF file with this interpreter."""
    if machine is None:
        machine = struct.unpack_from("<H", Path(sys.executable).resolve().read_bytes(), 18)[0]
    head = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9) + struct.pack("<HH12xQ14xHH", 3, machine, 64, 56, 1)
    head = head.ljust(64, b"\0")
    kind = 3 if loader else 1
    name = (loader or b"") + b"\0"
    path.write_bytes(head + struct.pack("<IIQQQQ8x8x", kind, 4, 120, 0, 0, len(name)) + name)
    path.chmod(0o755)
    return path


def test_ordinary_programs() -> None:
    assert preload_obstacle(Path(sys.executable)) == ""
    assert preload_obstacle(Path("/bin/sh")) == ""


@pytest.mark.parametrize(
    ("loader", "options", "reason"),
    [
        (b"/lib64/ld-linux-x86-64.so.2", {}, ""),
        (b"/lib/ld-musl-x86_64.so.1", {}, "musl"),
        (None, {}, "statically linked"),
        (b"/lib/ld-linux.so.2", {"bits": 1}, "64-bit"),
        (b"/lib/ld-linux.so.2", {"machine": 8}, "processor"),
    ],
)
def test_headers(tmp_path: Path, loader: bytes | None, options: dict[str, int], reason: str) -> None:
    found = preload_obstacle(elf(tmp_path / "program", loader, **options))
    assert reason in found and bool(reason) == bool(found)


def test_a_truly_static_program(tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text("int main(void) { return 0; }\n")
    made = subprocess.run(
        ["gcc", "-static", "-o", tmp_path / "static", source], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this machine has no static C library")
    assert "statically linked" in preload_obstacle(tmp_path / "static")


def test_the_dynamic_loader_as_the_program(tmp_path: Path) -> None:
    """It preloads what LD_PRELOAD says into the program that it is told to run."""
    listing = subprocess.run(
        ["ldd", shutil.which("sh") or ""], capture_output=True, text=True, check=True
    ).stdout
    loader = next(Path(word) for word in listing.split() if "/ld-" in word)
    assert preload_obstacle(loader) == ""
    link = tmp_path / "ld.so"
    link.symlink_to(loader)
    assert preload_obstacle(link) == ""
    assert preload_obstacle(elf(tmp_path / "ld-2.31.so", None)) == ""
    assert preload_obstacle(elf(tmp_path / "ld-musl-x86_64.so.1", None)) == MUSL
    assert "statically linked" in preload_obstacle(elf(tmp_path / "build-ld-linux", None))


def test_scripts_are_judged_by_their_interpreter(tmp_path: Path) -> None:
    static = elf(tmp_path / "static", None)
    assert preload_obstacle(script(tmp_path / "a", b"#!/bin/sh -e")) == ""
    assert "statically" in preload_obstacle(script(tmp_path / "b", b"#! " + bytes(static)))
    assert preload_obstacle(script(tmp_path / "c", b"#!")) == ""
    assert preload_obstacle(script(tmp_path / "d", b"#!/nonexistent")) == ""


def test_files_cut_anywhere_do_not_break_the_reader(tmp_path: Path) -> None:
    whole = elf(tmp_path / "program", b"/lib64/ld-linux-x86-64.so.2").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:size])
        assert isinstance(preload_obstacle(tmp_path / "cut"), str)


def test_finding_programs(tmp_path: Path) -> None:
    made = script(tmp_path / "tool", b"#!/bin/sh")
    (tmp_path / "data").write_text("x")
    assert find_program("tool", str(tmp_path)) == made
    assert find_program(str(made), "") == made
    assert find_program("data", str(tmp_path)) is None
    assert find_program("no-such-tool", str(tmp_path)) is None
    assert shutil.which("sh") and find_program("sh", "/nonexistent:/bin") == Path("/bin/sh")


def test_a_script_that_is_its_own_interpreter_is_left_to_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "again"
    assert preload_obstacle(script(path, b"#!" + bytes(path))) == ""


def test_an_interpreter_that_is_a_script_is_followed(tmp_path: Path) -> None:
    last = elf(tmp_path / "static", None)
    for name in ("one", "two", "three"):
        last = script(tmp_path / name, b"#!" + bytes(last))
    assert "statically linked" in preload_obstacle(last)
