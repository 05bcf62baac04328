# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.persistence.lock import LockFile
from gigaslice.core.errors import LockedError, StorageError

ROOT = Path(__file__).resolve().parents[4]


def test_the_second_is_told_who_has_it(tmp_path):
    first, second = (
        LockFile(tmp_path / "lock", "the state directory"),
        LockFile(tmp_path / "lock", "the state directory"),
    )
    first.acquire()
    with pytest.raises(LockedError, match=rf"the state directory is served by process {os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_a_killed_holder_leaves_nothing_behind(tmp_path):
    code = (
        "import os, pathlib, sys; from agent.persistence.lock import LockFile; "
        "LockFile(pathlib.Path(sys.argv[1]), 'x').acquire(); os._exit(9)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], cwd=ROOT, check=False)
    assert ended.returncode == 9
    assert (tmp_path / "lock").read_text().strip().isdigit()
    LockFile(tmp_path / "lock", "x").acquire()


def test_a_holder_whose_number_is_unreadable(tmp_path):
    first = LockFile(tmp_path / "lock", "x")
    first.acquire()
    (tmp_path / "lock").write_bytes(b"\xff\n")
    with pytest.raises(LockedError, match="another process"):
        LockFile(tmp_path / "lock", "x").acquire()


def test_where_no_file_can_be_made(tmp_path):
    with pytest.raises(StorageError, match="lock file"):
        LockFile(tmp_path / "missing" / "lock", "x").acquire()


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        LockFile(tmp_path / "lock", "x").acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_releasing_twice_is_harmless(tmp_path):
    lock = LockFile(tmp_path / "lock", "x")
    lock.release()
    lock.acquire()
    lock.release()
    lock.release()
    other = LockFile(tmp_path / "lock", "x")
    other.acquire()
    lock.release()
    with pytest.raises(LockedError):
        lock.acquire()
    other.release()
