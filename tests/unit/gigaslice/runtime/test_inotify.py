# SPDX-License-Identifier: Apache-2.0
"""inotify on real files and directories."""

import os
import select
from pathlib import Path

import pytest

from gigaslice.runtime import inotify
from gigaslice.runtime.inotify import Event, Inotify


@pytest.fixture
def notify():
    queue = Inotify()
    yield queue
    queue.close()


def test_entries_of_a_directory_come_and_go(notify, tmp_path):
    watch = notify.add(str(tmp_path), inotify.CREATED | inotify.DELETED | inotify.ONLY_DIRECTORY)
    assert notify.read() == []
    (tmp_path / "ä").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "ä").rmdir()
    assert select.select([notify], [], [], 5)[0]
    assert notify.read() == [
        Event(watch, inotify.CREATED | inotify.DIRECTORY, "ä".encode()),
        Event(watch, inotify.CREATED, b"file"),
        Event(watch, inotify.DELETED | inotify.DIRECTORY, "ä".encode()),
    ]


def test_a_file_is_written(notify, tmp_path):
    path = tmp_path / "file"
    path.touch()
    watch = notify.add(str(path), inotify.MODIFIED)
    path.write_text("x")
    assert {event.watch for event in notify.read()} == {watch}


def test_a_watch_that_was_removed_is_silent(notify, tmp_path):
    notify.remove(notify.add(str(tmp_path), inotify.CREATED))
    (tmp_path / "file").touch()
    assert not any(event.mask & inotify.CREATED for event in notify.read())


def test_a_queue_that_overflows_says_so(notify, tmp_path):
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 100_000:
        pytest.skip(f"the queue holds {most} events")
    watch = notify.add(str(tmp_path), inotify.CREATED | inotify.DELETED)
    for _ in range(most // 2 + 1):
        (tmp_path / "entry").touch()
        (tmp_path / "entry").unlink()
    events = []
    while more := notify.read():
        events += more
    assert len(events) == most + 1 and {event.watch for event in events[:-1]} == {watch}
    assert events[-1].watch == -1 and events[-1].mask & inotify.OVERFLOW


def test_what_cannot_be_watched_is_an_error_with_its_path(notify, tmp_path):
    with pytest.raises(FileNotFoundError) as failure:
        notify.add(str(tmp_path / "none"), inotify.CREATED)
    assert failure.value.filename == str(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        notify.add(str(tmp_path / "file"), inotify.CREATED | inotify.ONLY_DIRECTORY)


def test_it_is_closed_once(tmp_path):
    queue = Inotify()
    number = queue.fileno()
    queue.close()
    queue.close()
    assert queue.fileno() == -1
    with pytest.raises(OSError):
        os.fstat(number)
