# SPDX-License-Identifier: Apache-2.0
"""install_library: names, repeated and simultaneous calls, and files that are already there."""

from __future__ import annotations

import concurrent.futures
import errno
import hashlib
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

import vcuda
from vcuda import errors, install

CONTENT = b"\x7fELF and some bytes" * 100_000
PLAIN = f"libvcuda-{vcuda.__version__}.so"
HASHED = f"libvcuda-{vcuda.__version__}-{hashlib.sha256(CONTENT).hexdigest()[:12]}.so"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "built.so"
    path.write_bytes(CONTENT)
    return path


def names(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def test_a_copy_under_the_versioned_name(tmp_path: Path, source: Path) -> None:
    target = install.install_library(tmp_path / "a" / "b", source)
    assert target == tmp_path / "a" / "b" / PLAIN
    assert target.read_bytes() == CONTENT
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert names(target.parent) == {PLAIN}


def test_again_changes_nothing(tmp_path: Path, source: Path) -> None:
    first = install.install_library(tmp_path / "lib", source)
    before = first.stat()
    assert install.install_library(tmp_path / "lib", source) == first
    assert first.stat() == before or first.stat().st_mtime_ns == before.st_mtime_ns
    assert first.stat().st_ino == before.st_ino


def test_a_different_file_is_never_overwritten(tmp_path: Path, source: Path) -> None:
    """A running process may have it mapped: same version, other bytes, other name."""
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / PLAIN).write_bytes(b"an older build")
    for _ in range(2):
        assert install.install_library(lib, source) == lib / HASHED
    assert (lib / PLAIN).read_bytes() == b"an older build"
    assert names(lib) == {PLAIN, HASHED}


def test_a_damaged_copy_gets_a_new_file(tmp_path: Path, source: Path) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    for name in (PLAIN, HASHED):
        (lib / name).write_bytes(CONTENT[:1000])
    with (lib / HASHED).open("rb") as mapped:
        assert install.install_library(lib, source) == lib / HASHED
        assert mapped.read() == CONTENT[:1000]
    assert (lib / HASHED).read_bytes() == CONTENT


def test_without_hard_links(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    assert install.install_library(tmp_path / "lib", source) == tmp_path / "lib" / HASHED
    assert names(tmp_path / "lib") == {HASHED}


def _install(arguments: tuple[Path, Path]) -> tuple[str, int]:
    target = install.install_library(*arguments)
    return target.name, len(target.read_bytes())


@pytest.mark.parametrize("taken", [False, True], ids=["empty", "name taken"])
def test_eight_processes_at_once(tmp_path: Path, source: Path, taken: bool) -> None:
    lib = tmp_path / "lib"
    expected = {HASHED if taken else PLAIN}
    if taken:
        lib.mkdir()
        (lib / PLAIN).write_bytes(b"other")
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(8, mp_context=context) as pool:
        results = list(pool.map(_install, [(lib, source)] * 32))
    assert set(results) == {(name, len(CONTENT)) for name in expected}
    assert names(lib) == expected | ({PLAIN} if taken else set())


def test_nothing_is_left_after_a_failure(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.SystemError_, match="No space left"):
        install.install_library(tmp_path / "lib", source)
    assert names(tmp_path / "lib") == set()


def test_a_source_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(errors.LibraryMissingError):
        install.install_library(tmp_path / "lib", tmp_path / "missing.so")


def test_a_directory_that_is_a_file(tmp_path: Path, source: Path) -> None:
    with pytest.raises(errors.VcudaError):
        install.install_library(source, source)


def test_this_installation_has_a_library() -> None:
    assert vcuda.library_path().read_bytes()[:4] == b"\x7fELF"


def test_no_library_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(errors.LibraryMissingError, match="make native"):
        install._library_of(tmp_path / "vcuda")
    for inside in ("build", "vcuda/_lib"):  # a wheel's own library comes before a build directory
        (tmp_path / inside).mkdir(parents=True)
        (tmp_path / inside / "libvcuda.so").touch()
        assert install._library_of(tmp_path / "vcuda") == tmp_path / inside / "libvcuda.so"


def test_what_every_user_can_read(tmp_path: Path) -> None:
    file = tmp_path / "closed" / "file"
    file.parent.mkdir(mode=0o700)
    file.touch(mode=0o644)
    assert install.is_readable_by_all(Path("/usr/bin/env"))
    assert not install.is_readable_by_all(file), "the directory is closed"
    assert not install.is_readable_by_all(tmp_path / "missing")
