"""Room for another allocation, by what the file system says of itself."""

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.state.room import ENOUGH_BYTES, Room

STATE = Path("/state")


def file_system(free=ENOUGH_BYTES, files=1000, flag=0, reserved=0):
    blocks = free // 4096
    return SimpleNamespace(
        f_bfree=blocks,
        f_bavail=blocks - reserved // 4096,
        f_frsize=4096,
        f_files=2000,
        f_ffree=files,
        f_flag=flag,
    )


def looked(*states):
    """What was told after each of STATES, and the problems."""
    told, problems, rest = [], [], list(states)

    def look(_path):
        state = rest.pop(0)
        if isinstance(state, Exception):
            raise state
        return state

    async def changed(usable):
        told.append(usable)

    async def run():
        room = Room(STATE, changed, look)
        for _ in states:
            await room.look()
            problems.append(room.problem)

    asyncio.run(run())
    return told, problems


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (file_system(ENOUGH_BYTES - 4096), "free"),
        (file_system(files=3), "3 more files"),
        (file_system(flag=os.ST_RDONLY), "read-only"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
    ],
)
def test_what_is_in_the_way_is_said_and_ends(state, text):
    told, (first, bad, worse, good) = looked(file_system(), state, state, file_system())
    assert told == [False, True], "once for each change"
    assert first == good == ""
    assert text in bad and bad == worse and "/state" in bad


def test_a_file_system_that_does_not_count_files():
    full = file_system()
    full.f_files = full.f_ffree = 0  # btrfs
    assert looked(full) == ([], [""])


def test_what_is_kept_for_root_counts_for_root(monkeypatch):
    state = file_system(reserved=ENOUGH_BYTES)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert looked(state) == ([], [""])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert looked(state)[0] == [False]


def test_a_real_directory(tmp_path):
    told = []

    async def changed(usable):
        told.append(usable)

    room, gone = Room(tmp_path, changed), Room(tmp_path / "nowhere", changed)
    asyncio.run(room.look())
    assert (room.problem, told) == ("", [])
    asyncio.run(gone.look())
    assert "nowhere" in gone.problem and told == [False]
