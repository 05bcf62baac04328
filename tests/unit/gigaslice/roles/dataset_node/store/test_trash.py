# SPDX-License-Identifier: Apache-2.0
"""What was deleted: gone at once, its room back soon, and promised to one fetch only."""

import contextlib
import errno
import fcntl
import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gigaslice.core.dataset.errors import CacheFullError, DatasetError
from gigaslice.roles.dataset_node.store import Budget, DatasetMetadata, VolumeSource, digest_of
from gigaslice.roles.dataset_node.store import cache as cache_module
from gigaslice.roles.dataset_node.store import trash as trash_module
from gigaslice.roles.dataset_node.store.state_paths import StatePaths
from gigaslice.roles.dataset_node.store.trash import Trash, TrashPace
from tests.unit.gigaslice.roles.dataset_node.store.conftest import KEYS, MIB


class Held:
    """Has nothing removed from a trash until it is released."""

    def __init__(self, monkeypatch):
        self.go = threading.Event()
        real = Trash._remove

        def remove(trash, one):
            while not self.go.wait(0.01):
                if trash.closed:
                    return
            real(trash, one)

        monkeypatch.setattr(Trash, "_remove", remove)


@pytest.fixture
def held(monkeypatch):
    return Held(monkeypatch)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def eventually(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def keys(world):
    return {KEYS.index(one.metadata.key) for one in world.store.stored()}


def thrown(world):
    return sorted(path.name for path in (world.root / "state/trash").iterdir())


def test_a_deletion_waits_for_nothing_and_neither_does_anything_else(world, held):
    world.fetch(1, 600)
    world.fetch(2, 100)
    assert world.store.evict([KEYS[1]]) == {}
    assert keys(world) == {2} and world.store.ready(KEYS[1]) is None
    assert world.store.room() == 900, "it counts as room"
    assert world.store.trash_bytes == 600 and len(thrown(world)) == 1, "which the disk does not have yet"
    world.store.publish(world.volume("p"), [VolumeSource(key=KEYS[2])])
    world.fetch(3, 100)
    held.go.set()
    world.emptied()
    assert world.store.trash_bytes == 0 and world.store.room() == 800


def test_a_dataset_that_was_deleted_can_be_fetched_and_deleted_again_meanwhile(world, held):
    for _ in range(3):
        world.fetch(1, 100)
        assert world.store.evict([KEYS[1]]) == {}
    assert len(thrown(world)) == 3
    world.fetch(1, 100)
    held.go.set()
    world.emptied()
    assert world.store.ready(KEYS[1]) is not None and world.store.room() == 900


def test_what_was_unpacked_once_is_mounted_for_all_who_came_meanwhile(world, held, threads):
    """Without EROFS the image goes when its tree is there, and its room comes back with the trash."""
    unpacking, go, trees = threading.Event(), threading.Event(), []

    def unpack(image, directory):
        unpacking.set()
        assert go.wait(20)
        directory.mkdir()
        trees.append(directory)

    world.mounts.has_erofs, world.unpack = False, unpack
    world.again()
    world.fetch(1, 300)
    volumes = [world.volume(name) for name in "ab"]
    first = threads.submit(world.store.publish, volumes[0], [VolumeSource(key=KEYS[1])])
    assert unpacking.wait(20)
    second = threads.submit(world.store.publish, volumes[1], [VolumeSource(key=KEYS[1])])
    time.sleep(0.05)
    go.set()
    first.result(20), second.result(20)
    assert len(trees) == 1
    assert all(world.store.published(one.id) and world.mounts.at(one.target) for one in volumes)
    assert world.store.trash_bytes == 300
    held.go.set()
    world.emptied()
    assert world.store.trash_bytes == 0


def test_a_fetch_waits_for_the_room_that_it_was_promised(world, held, threads):
    world.fetch(1, 600)
    begun = threads.submit(world.store.begin_fetch, world.metadata(2, 600))
    eventually(lambda: keys(world) == {2})
    time.sleep(0.05)
    assert not begun.done() and not (world.root / f"state/partial/{KEYS[2]}.img").exists()
    assert world.store.evict([KEYS[2]]) == {KEYS[2]: "in use: it is being fetched"}
    with pytest.raises(CacheFullError):  # of what the trash gives back nothing is left
        world.store.begin_fetch(world.metadata(3, 400))
    held.go.set()
    assert begun.result(20).image.stat().st_size == 600
    assert world.store.room() == 400


def test_room_that_is_there_is_given_in_the_order_of_the_promises(world, held, threads):
    """The second promise is smaller. It does not take what the first one waits for."""
    world.fetch(1, 500)
    first = threads.submit(world.store.begin_fetch, world.metadata(2, 600))
    eventually(lambda: keys(world) == {2})
    second = threads.submit(world.store.begin_fetch, world.metadata(3, 250))
    eventually(lambda: keys(world) == {2, 3})
    time.sleep(0.05)
    assert not first.done() and not second.done()
    held.go.set()
    assert first.result(20).size == 600 and second.result(20).size == 250


def test_room_that_another_program_takes_meanwhile_is_the_file_system_s_to_refuse(
    world, held, threads, monkeypatch
):
    world.fetch(1, 600)
    begun = threads.submit(world.store.begin_fetch, world.metadata(2, 600))
    eventually(lambda: keys(world) == {2})
    world.outside = 900

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    held.go.set()
    with pytest.raises(CacheFullError, match="no room for 600 bytes of s3://bucket/2: No space left"):
        begun.result(20)
    assert keys(world) == set() and world.store.idle() == ()
    world.emptied()
    assert not list((world.root / "state/partial").iterdir())
    monkeypatch.undo()
    world.outside = 0
    world.fetch(2, 600)


def test_the_cache_s_own_limit_holds_for_what_is_in_the_trash_too(world, held, threads):
    world.size = 1 << 40
    world.store.close()
    world.again()
    world.store._room._budget = Budget(capacity=1000, keep_free=0.0)
    world.fetch(1, 600)
    begun = threads.submit(world.store.begin_fetch, world.metadata(2, 600))
    eventually(lambda: keys(world) == {2})
    time.sleep(0.05)
    assert not begun.done()
    held.go.set()
    assert begun.result(20)


def test_the_end_of_the_service_ends_the_wait_and_the_next_start_empties_the_trash(world, held, threads):
    world.fetch(1, 600)
    begun = threads.submit(world.store.begin_fetch, world.metadata(2, 600))
    eventually(lambda: keys(world) == {2})
    world.store.interrupt()
    with pytest.raises(DatasetError, match="the dataset service ends"):
        begun.result(20)
    assert keys(world) == set()
    world.store.close()
    assert [thread.name for thread in threading.enumerate() if thread.name == "dataset-trash"] == []
    assert thrown(world)
    world.again()
    assert world.store.room() == 1000 and world.store.trash_bytes == 600
    held.go.set()
    world.emptied()
    assert keys(world) == set()


class Refusing:
    """Has the removal of files in a trash fail until it is told otherwise."""

    def __init__(self, monkeypatch, number):
        self.number, self.tries = number, 0
        real = Path.unlink

        def unlink(path, missing_ok=False):
            if path.parent.name == "trash" and self.number:
                self.tries += 1
                raise OSError(self.number, os.strerror(self.number))
            real(path, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", unlink)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EPERM])
def test_what_cannot_be_removed_is_tried_again_seldom_and_no_fetch_waits_for_it(world, monkeypatch, number):
    world.trash_pace = TrashPace(retry=0.1, longest_retry=0.2)
    world.again()
    refusing, begun = Refusing(monkeypatch, number), time.monotonic()
    world.fetch(1, 600)
    warned = []
    monkeypatch.setattr(world.store._trash._log, "warning", lambda *what, **more: warned.append((what, more)))
    world.store.evict([KEYS[1]])
    eventually(lambda: world.store.trash_failures == 1)
    assert world.store.trash_bytes == 600 and world.store.room() == 400
    world.fetch(2, 300)
    with pytest.raises(CacheFullError):
        world.store.begin_fetch(world.metadata(3, 400))
    time.sleep(1)
    eventually(lambda: refusing.tries >= 2)
    assert refusing.tries <= 3 + (time.monotonic() - begun) / 0.1, "it is no busy loop"
    assert len(warned) == 1 and os.strerror(number) in warned[0][1]["detail"]
    refusing.number = 0
    world.emptied()
    assert world.store.room() == 700


def test_other_things_are_removed_while_one_cannot_be(world, monkeypatch):
    refusing = Refusing(monkeypatch, errno.EIO)
    world.fetch(1, 100)
    world.store.evict([KEYS[1]])
    eventually(lambda: world.store.trash_failures == 1)
    refusing.number = 0
    world.fetch(2, 100)
    world.store.evict([KEYS[2]])
    eventually(lambda: world.store.trash_bytes == 100)


def test_a_dataset_that_cannot_be_deleted_stays(world, monkeypatch):
    world.fetch(1, 600)
    real = Path.replace

    def refused(path, target):
        if Path(target).parent.name == "trash":
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", refused)
        assert "not deleted: Read-only file system" in world.store.evict([KEYS[1]])[KEYS[1]]
        with pytest.raises(CacheFullError, match="which no pod uses, cannot be deleted: Read-only"):
            world.store.begin_fetch(world.metadata(2, 600))
        assert keys(world) == {1} and world.store.evictions == 0
        assert world.store.ready(KEYS[1]) is not None
        world.store.publish(world.volume("p"), [VolumeSource(key=KEYS[1])])
    world.again()
    assert keys(world) == {1}


class Crash(BaseException):
    """The end of the process: no clean-up of the program's is made."""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("complete", [False, True])
def test_a_crash_at_any_step_of_a_deletion_leaves_nothing_that_is_half(world, monkeypatch, late, complete):
    ends = []
    for crash in itertools.count():
        part = world.store.begin_fetch(world.metadata(1))
        part.image.write_bytes(b"\1" * 100)
        part.bits.write_bytes(b"1")
        if complete:
            world.store.complete(part, digest_of(part.image))
        steps = itertools.count()

        def step(real, *given, steps=steps, crash=crash, **more):
            if not late and next(steps) == crash:
                raise Crash
            found = real(*given, **more)
            if late and next(steps) == crash:
                raise Crash
            return found

        with monkeypatch.context() as patched:
            patched.setattr(Trash, "_add", lambda *_: None)  # what is in it is left to the next start
            for name in ("replace", "unlink"):
                real = getattr(Path, name)
                patched.setattr(
                    Path, name, lambda *given, real=real, step=step, **more: step(real, *given, **more)
                )
            try:
                world.store.evict([KEYS[1]]) if complete else world.store.discard(KEYS[1])
            except Crash:
                pass
            else:
                break
        world.again()
        world.emptied()
        found = [one.complete for one in world.store.stored()]
        ends.append(found)
        if found == [True]:
            assert world.store.ready(KEYS[1]).digest == digest_of(world.root / f"state/objects/{KEYS[1]}.img")
        elif found == [False]:
            assert world.store.begin_fetch(world.metadata(1)).resumed
        world.store.evict([KEYS[1]]) if complete else world.store.discard(KEYS[1])
        world.emptied()
        for name in ("objects", "partial"):
            assert not list((world.root / "state" / name).iterdir()), (crash, name)
    assert len(ends) >= 2 and ends == sorted(ends, reverse=True), (
        "there up to one step, and gone from there on"
    )
    assert ends[-1] == []


@pytest.fixture
def trash(tmp_path):
    """One with small steps: large files go in several, and names of trees are read in several batches."""
    places = StatePaths(tmp_path)
    for one in places.directories:
        one.mkdir()
    made = Trash(places, TrashPace(step=MIB, files=7))
    made.open()
    yield made
    made.close()


def emptied(trash):
    eventually(lambda: trash.last == 0)


def test_a_large_file_goes_in_steps_and_its_room_comes_back_with_each(trash, tmp_path, monkeypatch):
    sizes, real = [], os.ftruncate

    def truncate(fd, size):
        real(fd, size)
        sizes.append((size, trash.coming))

    image = tmp_path / "objects/x.img"
    image.write_bytes(bytes(4 * MIB + 5))
    monkeypatch.setattr(os, "ftruncate", truncate)
    trash.take(image, 4 * MIB + 5)
    emptied(trash)
    assert [size for size, _ in sizes] == [3 * MIB + 5, 2 * MIB + 5, MIB + 5, 5, 0]
    assert [coming for _, coming in sizes] == sorted((coming for _, coming in sizes), reverse=True)
    assert sizes[-1] == (0, 0)
    assert not list((tmp_path / "trash").iterdir())


@pytest.mark.parametrize("how", ["open", "link", "lease"])
def test_a_file_that_is_still_in_use_keeps_its_bytes(trash, tmp_path, monkeypatch, how):
    image = tmp_path / "objects/x.img"
    image.write_bytes(b"x" * (4 * MIB))
    with contextlib.ExitStack() as stack:
        if how == "link":
            os.link(image, tmp_path / "kept")
        reader = stack.enter_context(image.open("rb")) if how == "open" else None
        if how == "lease":  # a file system without leases
            monkeypatch.setattr(fcntl, "F_SETLEASE", 9999)
            monkeypatch.setattr(os, "ftruncate", lambda *_: pytest.fail("cut, though it may be in use"))
        trash.take(image, 4 * MIB)
        emptied(trash)
        assert not list((tmp_path / "trash").iterdir())
        if reader is not None:
            assert reader.read() == b"x" * (4 * MIB)
        if how == "link":
            assert (tmp_path / "kept").read_bytes() == b"x" * (4 * MIB)


def test_a_program_that_opens_a_file_of_the_trash_does_no_harm(tmp_path, monkeypatch):
    """While it is looked at whether a file is open, the kernel signals who opens it; SIGIO would end the service."""
    path, seen, real = tmp_path / "x", [], fcntl.fcntl
    path.write_bytes(b"x")

    def between(fd, command, value=0):
        if (command, value) == (fcntl.F_SETLEASE, fcntl.F_UNLCK):
            with pytest.raises(BlockingIOError):
                os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        return real(fd, command, value)

    before = {
        number: signal.signal(number, lambda *got: seen.append(got[0]))
        for number in (signal.SIGIO, signal.SIGURG)
    }
    try:
        fd = os.open(path, os.O_RDWR)
        monkeypatch.setattr(fcntl, "fcntl", between)
        assert trash_module._is_only_opener(fd)
        assert real(fd, fcntl.F_GETLEASE) == fcntl.F_UNLCK
        os.close(fd)
        assert seen == [signal.SIGURG]
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def test_a_deep_tree_goes_and_what_its_links_lead_to_stays(trash, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("stays")
    tree = tmp_path / "objects/x.tree"
    tree.mkdir()
    for number in range(20):
        (tree / f"f{number}").write_bytes(bytes(5000))
    (tree / "link").symlink_to(outside)
    fd, made = os.open(tree, os.O_RDONLY), []
    for _ in range(1200):  # deeper than a recursion goes, and longer than a path may be
        os.mkdir("d" * 10, dir_fd=fd)
        inner = os.open("d" * 10, os.O_RDONLY, dir_fd=fd)
        os.symlink(outside, "link", dir_fd=inner)
        made.append(fd)
        if len(made) > 50:
            os.close(made.pop(0))
        fd = inner
    for one in (*made, fd):
        os.fchmod(one, 0o555)
        os.close(one)
    trash.take(tree, 20 * 8192)
    assert trash.coming <= 20 * 8192
    emptied(trash)
    assert not list((tmp_path / "trash").iterdir()) and (outside / "f").read_text() == "stays"


def test_a_tree_whose_removal_was_cut_off_goes_after_the_next_start(trash, tmp_path, monkeypatch):
    tree = tmp_path / "objects/x.tree"
    for number in range(30):
        (tree / f"d{number}").mkdir(parents=True)
        (tree / f"d{number}/f").write_bytes(b"x")
    removed, real = [], os.unlink

    def unlink(*given, **more):
        real(*given, **more)
        removed.append(1)
        if len(removed) == 10:
            trash.interrupt()

    monkeypatch.setattr(os, "unlink", unlink)
    trash.take(tree, 1000)
    eventually(lambda: len(removed) == 10)
    trash.close()
    left = list((tmp_path / "trash").iterdir())
    assert left and trash.last
    again = Trash(StatePaths(tmp_path))
    again.open()
    emptied(again)
    again.close()
    assert not list((tmp_path / "trash").iterdir())


def test_a_reservation_holds_up_nothing(world, monkeypatch, threads):
    go, real = threading.Event(), os.posix_fallocate

    def slow(fd, offset, size):
        assert go.wait(20)
        real(fd, offset, size)

    world.fetch(1, 100)
    monkeypatch.setattr(cache_module.os, "posix_fallocate", slow)
    begun = threads.submit(world.store.begin_fetch, world.metadata(2, 700))
    eventually(lambda: keys(world) == {1, 2})
    assert world.store.room() == 200
    world.store.publish(world.volume("p"), [VolumeSource(key=KEYS[1])])
    with pytest.raises(CacheFullError):
        world.store.begin_fetch(DatasetMetadata(KEYS[3], 300, "s3://bucket/3"))
    go.set()
    assert begun.result(20)
    assert world.store.room() == 200


def test_what_was_discarded_while_it_waited_is_not_begun(world, held, threads):
    """No caller does that now; it must not leave a file that nothing is known of."""
    world.fetch(1, 600)
    begun = threads.submit(world.store.begin_fetch, world.metadata(2, 600))
    eventually(lambda: keys(world) == {2})
    ended = threads.submit(world.store.discard, KEYS[2])
    time.sleep(0.05)
    held.go.set()
    assert begun.result(20) and ended.result(20) is None
    world.emptied()
    assert keys(world) == set() and not list((world.root / "state/partial").iterdir())
