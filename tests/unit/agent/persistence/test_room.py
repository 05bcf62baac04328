# SPDX-License-Identifier: Apache-2.0
"""Room for another allocation, by what the file system says of itself."""

import asyncio
import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.persistence.room import ENOUGH_BYTES, Room
from gigaslice.core.errors import StorageError
from tests.fakes.eventually import until

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

    def changed(usable):
        told.append(usable)

    async def run():
        room = Room(STATE, changed, look)
        for _ in states:
            await room.check()
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

    def changed(usable):
        told.append(usable)

    room, gone = Room(tmp_path, changed), Room(tmp_path / "nowhere", changed)
    asyncio.run(room.check())
    assert (room.problem, told) == ("", [])
    asyncio.run(gone.check())
    assert "nowhere" in gone.problem and told == [False]


# --- what the file system does not say of itself ---------------------------------------------------------------------


class Disk:
    """Trials end as `answer` says: None, or an error that they raise; `tries` counts them."""

    def __init__(self):
        self.answer, self.tries, self.told = None, 0, []
        self.room = Room(STATE, self.changed, lambda _: file_system(), probe=self.probe, patience=30)

    def changed(self, usable):
        self.told.append(usable)

    def probe(self):
        self.tries += 1
        if callable(self.answer):
            self.answer()
        elif self.answer:
            raise self.answer


QUOTA = StorageError("cannot write: Disk quota exceeded; raise the disk quota, or make room within it")


def test_a_write_that_failed_withdraws_at_once_until_a_trial_succeeds():
    async def story(disk):
        for _ in range(2):
            await disk.room.check()
            assert (disk.told, disk.tries) == ([], 1), "one at the start; no other is due yet"
        disk.answer = QUOTA
        disk.room.write_failed(str(QUOTA))
        await disk.room.check()
        assert (disk.told, disk.tries, disk.room.problem) == ([False], 1, str(QUOTA))
        for tries in (2, 3, 4):
            await disk.room.check()
            assert (disk.told, disk.tries, disk.room.problem) == ([False], tries, str(QUOTA))
        disk.answer = None
        await disk.room.check()
        assert (disk.told, disk.room.problem) == ([False, True], "")

    asyncio.run(story(Disk()))


def test_a_failure_rings_and_is_not_waited_for():
    async def story(disk):
        disk.room._interval = 3600.0
        task = asyncio.create_task(disk.room.run())
        await asyncio.sleep(0.01)
        disk.room.write_failed("why")
        while not disk.told:
            await asyncio.sleep(0.01)
        assert disk.told == [False]
        task.cancel()

    asyncio.run(asyncio.wait_for(story(Disk()), 60))


def test_trials_find_it_before_a_pod_does():
    async def story(disk):
        await disk.room.check()
        disk.answer = QUOTA
        disk.room._tried_at -= 3600
        await disk.room.check()
        assert (disk.told, disk.tries) == ([False], 2)

    asyncio.run(story(Disk()))


def test_a_disk_that_hangs_cannot_be_used_and_is_tried_once_at_a_time():
    going_on = threading.Event()

    async def story(disk):
        disk.answer = lambda: going_on.wait(60)
        disk.room._patience = 0.01
        for _ in range(3):
            await disk.room.check()
            await until(lambda: disk.tries)  # its thread may begin later than that
            assert (disk.told, disk.tries) == ([False], 1)
            assert "has not answered" in disk.room.problem
        going_on.set()
        disk.room._patience = 60
        await disk.room.check()
        assert (disk.told, disk.tries) == ([False, True], 1)

    asyncio.run(story(Disk()))
