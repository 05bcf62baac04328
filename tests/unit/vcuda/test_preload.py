# SPDX-License-Identifier: Apache-2.0
"""LD_PRELOAD's entry: found by glibc's loader, whatever it calls its library directory, and by no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vcuda import install, preload

LIBRARY = Path(__file__).resolve().parents[3] / "build" / "libvcuda.so"


@pytest.fixture(autouse=True)
def open_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of tests are closed to others, which matters to root alone."""
    monkeypatch.setattr(install, "is_open_to_all", lambda directory: True)


@pytest.mark.parametrize(
    ("user", "is_open", "linked"), [(0, False, False), (0, True, True), (1000, False, True)]
)
def test_what_another_user_must_find_does_not_lie_where_he_cannot_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, is_open: bool, linked: bool
) -> None:
    """Root's programs may become other users; theirs may not."""
    monkeypatch.setattr(preload.os, "geteuid", lambda: user)
    monkeypatch.setattr(install, "is_open_to_all", lambda directory: is_open)
    assert ("$LIB" in str(preload.entry_for(LIBRARY, tmp_path))) is linked


def test_this_machines_loader_finds_the_library(tmp_path: Path) -> None:
    entry = preload.entry_for(LIBRARY, tmp_path)
    assert entry == tmp_path / "preload" / "$LIB" / "libvcuda.so"
    assert not entry.exists(), "a loader that takes the path as it is finds nothing"
    maps = "print(open('/proc/self/maps').read())"
    done = subprocess.run(
        [sys.executable, "-c", maps],
        env={"LD_PRELOAD": str(entry)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(LIBRARY) in done.stdout and done.stderr == ""


@pytest.mark.parametrize("name", ["", "lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"])
def test_it_is_there_by_every_name(tmp_path: Path, name: str) -> None:
    entry = preload.entry_for(LIBRARY, tmp_path)
    assert Path(str(entry).replace("$LIB", name)).samefile(LIBRARY)


def test_a_directory_is_shared_and_a_new_library_takes_the_old_ones_place(tmp_path: Path) -> None:
    old = tmp_path / "old.so"
    old.symlink_to(LIBRARY)
    entry = preload.entry_for(old, tmp_path / "quota")
    assert preload.entry_for(LIBRARY, tmp_path / "quota") == entry
    links = [path for path in (tmp_path / "quota").rglob("*") if not path.is_dir()]
    assert {path.name for path in links} == {"libvcuda.so"}
    assert {path.readlink() for path in links} == {LIBRARY}


@pytest.mark.parametrize("trouble", ["closed", "unfound"])
def test_otherwise_it_is_the_library_itself(tmp_path: Path, trouble: str) -> None:
    """Better a program of musl that does not start than a limit that does not hold."""
    if trouble == "closed":
        (tmp_path / "preload").touch()
        assert preload.entry_for(LIBRARY, tmp_path) == LIBRARY
    else:
        assert preload.entry_for(LIBRARY, tmp_path, folders=("usr-lib-of-another",)) == LIBRARY
