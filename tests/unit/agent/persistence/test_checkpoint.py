# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import threading
import warnings

import pytest

from agent.persistence import codec
from agent.persistence.checkpoint import CheckpointFile
from agent.roles.records import CODEC
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.errors import CheckpointError, CheckpointVersionError, StorageError
from tests.fakes.nodes import allocation

FIRST = AllocationTable().with_allocation(allocation(1, (0, range(8))))
SECOND = FIRST.with_allocation(allocation(2, (1, range(4))))
THIRD = SECOND.without([SECOND.allocations[0].id])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.json"


def test_nothing_there_is_no_allocation_table(path):
    assert CheckpointFile(path, CODEC).load().table is None
    assert CheckpointFile(path, CODEC).peek() == AllocationTable()


def test_the_last_allocation_table_is_found_and_the_one_before_is_kept(path):
    file = CheckpointFile(path, CODEC)
    for table in (FIRST, SECOND, THIRD):
        file.save(table)
        file.sync()
    file.tidy()
    assert CheckpointFile(path, CODEC).load().table == THIRD
    assert CODEC.decode_table(path.with_name("checkpoint.json.previous").read_bytes()) == SECOND
    assert sorted(found.name for found in path.parent.iterdir()) == [
        "checkpoint.json",
        "checkpoint.json.previous",
    ]


def test_it_is_the_agents_alone(path):
    CheckpointFile(path, CODEC).save(FIRST)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_is_kept_aside_and_the_one_before_is_used(path):
    file = CheckpointFile(path, CODEC)
    file.save(FIRST)
    file.save(SECOND)
    path.write_bytes(path.read_bytes()[:-5])
    loaded = CheckpointFile(path, CODEC).load()
    assert loaded.table == FIRST
    assert len(loaded.notes) == 1
    assert [found.name for found in path.parent.glob("*.corrupt-*")]


def test_both_damaged_is_no_allocation_table_and_both_are_kept(path):
    file = CheckpointFile(path, CODEC)
    file.save(FIRST)
    file.save(SECOND)
    for found in (path, path.with_name("checkpoint.json.previous")):
        found.write_bytes(b"")
    loaded = CheckpointFile(path, CODEC).load()
    assert loaded.table is None
    assert len(loaded.notes) == 2
    assert len(list(path.parent.glob("*.corrupt-*"))) == 2


def test_two_damaged_files_within_a_second_do_not_share_a_name(path):
    for _ in range(3):
        path.write_bytes(b"x")
        CheckpointFile(path, CODEC).load()
    assert len(list(path.parent.glob("*.corrupt-*"))) == 3


def test_a_newer_file_is_refused_and_left_alone(path, monkeypatch):
    monkeypatch.setattr(codec, "VERSION", 1)
    raw = codec.sealed(b'{"next":1,"allocations":[]}', version=9)
    path.write_bytes(raw)
    with pytest.raises(CheckpointVersionError, match="start the newer gigaslice again"):
        CheckpointFile(path, CODEC).load()
    assert path.read_bytes() == raw


def test_peek_changes_nothing(path):
    file = CheckpointFile(path, CODEC)
    file.save(FIRST)
    file.save(SECOND)
    path.write_bytes(b"x")
    assert file.peek() == FIRST
    path.with_name("checkpoint.json.previous").write_bytes(b"y")
    with pytest.raises(CheckpointError):
        file.peek()
    assert sorted(found.read_bytes() for found in path.parent.iterdir()) == [b"x", b"y"]


def test_the_next_file_is_made_ahead_and_no_matter_what_is_in_it(path):
    file = CheckpointFile(path, CODEC)
    new = path.with_name("checkpoint.json.new")
    for table in (FIRST, SECOND, THIRD):
        file.make_ahead()
        assert new.read_bytes() == b""
        file.save(table)
        assert file.load().table == table
    new.write_bytes(b"x" * 100_000)  # an agent that was killed while it wrote a long one
    file.make_ahead()
    file.save(FIRST)
    assert file.load().table == FIRST
    assert path.stat().st_size < 100_000


CALLS = ("open", "fstat", "ftruncate", "write", "close", "rename", "unlink", "stat", "fsync")
KILLED = 9


def work(file):
    """What an agent does: saves, more of them than are kept, with and without a file made ahead."""
    file.make_ahead()
    file.save(THIRD)
    file.sync()
    file.tidy()
    file.save(SECOND)
    file.save(THIRD)
    file.sync()
    file.tidy()


def die_before(number, place):
    """Makes the process end as by a signal just before its NUMBERth call that reaches a file; PLACE gets its name."""
    counted, write, proof = [], os.write, os.open(place, os.O_WRONLY | os.O_CREAT)

    def dying(name, real):
        def call(*arguments, **keywords):
            if len(counted) == number:
                write(proof, name.encode())
                os._exit(KILLED)
            counted.append(name)
            return real(*arguments, **keywords)

        return call

    for name in CALLS:
        setattr(os, name, dying(name, getattr(os, name)))


def in_a_child(job):
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # threads of other tests do not matter to the child
        child = os.fork()
    if child == 0:
        code = 1
        try:
            job()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_dying_before_any_call_leaves_one_of_the_allocation_table_that_were_saved(tmp_path):
    number, code, killed_before = 0, KILLED, []
    while code == KILLED:
        path = tmp_path / str(number) / "checkpoint.json"
        path.parent.mkdir()
        file = CheckpointFile(path, CODEC)
        file.save(FIRST)
        file.save(SECOND)

        path.with_name("checkpoint.json.new").write_bytes(b"x" * 5000)  # of an agent that was killed earlier
        place = tmp_path / f"{number}.place"

        def job(number=number, file=file, place=place):
            die_before(number, place)
            work(file)

        code = in_a_child(job)
        assert bool(place.read_text()) == (code == KILLED), "a case that does not kill is the last"
        killed_before += [place.read_text()] if code == KILLED else []
        loaded = CheckpointFile(path, CODEC).load()
        assert loaded.table in (SECOND, THIRD), number
        assert loaded.notes == ()
        file.save(FIRST)
        assert file.load().table == FIRST
        number += 1
    assert code == 0
    assert len(killed_before) == number - 1 > 39, "each case killed, but the last"
    assert set(killed_before) == set(CALLS), "a kind of call that the code does not make proves nothing"


# --- power failures ---------------------------------------------------------------------------------------------------


class Disk:
    """What a power failure leaves: names as far as their journal was written, contents as they were synced.

    Knows the files of one directory, by the calls of CheckpointFile. As on ext4 and XFS names change in their order and
    may be on the disk at any time after the call; contents are there after an fsync alone.
    """

    def __init__(self, monkeypatch, directory):
        self.directory = directory
        self.names: dict[str, int] = {}  # on the disk, after the last fsync of the directory
        self.journal: list[tuple[str, str, int]] = []  # (what it was called, what it is called, inode) since
        self.contents: dict[int, bytes] = {}  # that were synced
        self.held: list[int] = []
        self.looking = False  # at what a power failure would leave, elsewhere
        self.seen = lambda: None
        for name in ("open", "rename", "unlink", "fsync", "write", "ftruncate", "close"):
            monkeypatch.setattr(os, name, self._around(name, getattr(os, name)))

    def _around(self, name, real):
        def call(*arguments, **keywords):
            if not self.looking:
                self.seen()
            before = self._inode(arguments[0]) if name in ("rename", "unlink") else None
            result = real(*arguments, **keywords)
            if self.looking:
                pass
            elif name == "rename":
                self.journal.append((self._name(arguments[0]), self._name(arguments[1]), before))
            elif name == "unlink":
                self.journal.append((self._name(arguments[0]), "", before))
            elif name == "open" and arguments[1] & os.O_CREAT:
                self.held.append(os.dup(result))  # so that no later file gets its inode
                self.journal.append(("", self._name(arguments[0]), os.fstat(result).st_ino))
            elif name == "fsync":
                self._synced(arguments[0])
            return result

        return call

    def _name(self, path):
        return pathlib.Path(path).name

    def _inode(self, path):
        try:
            return pathlib.Path(path).stat().st_ino
        except FileNotFoundError:
            return None

    def _synced(self, fd):
        found = str(pathlib.Path(f"/proc/self/fd/{fd}").readlink())
        if found == str(self.directory):
            self.names, self.journal = self._after(len(self.journal)), []
        else:
            self.contents[os.fstat(fd).st_ino] = pathlib.Path(found).read_bytes()

    def _after(self, steps):
        names = dict(self.names)
        for old, new, inode in self.journal[:steps]:
            names.pop(old, None)
            if new:
                names[new] = inode
        return names

    def forget(self):
        """Lets go of files that are kept for their inodes."""
        for fd in self.held:
            os.close(fd)

    def after_a_failure(self, folder):
        """Directories as they may be found, one for each part of the journal that was written."""
        self.looking = True
        for steps in range(len(self.journal) + 1):
            found = folder / str(steps)
            found.mkdir(parents=True)
            for name, inode in self._after(steps).items():
                (found / name).write_bytes(self.contents.get(inode, b""))
            yield found
        self.looking = False


def tables(number):
    made = [FIRST]
    for one in range(2, number + 1):
        made.append(made[-1].with_allocation(allocation(one, (1, range(one, one + 1)))))
    return made


def newest(directory, made):
    """Number of the allocation table that a successor finds there; -1: none."""
    found = CheckpointFile(directory / "checkpoint.json", CODEC).load().table
    return made.index(found) if found is not None else -1


@pytest.mark.parametrize("saves", [1, 2, 3, 5])
def test_what_was_synced_survives_a_power_failure_at_any_call(tmp_path, monkeypatch, saves):
    """However many saves follow, and whatever is tidied meanwhile."""
    made, directory = tables(4 * saves + 1), tmp_path / "state"
    directory.mkdir()
    at, promised, failures = [0], [-1], [0]

    with monkeypatch.context() as patched:
        disk = Disk(patched, directory)

        def look():
            for found in disk.after_a_failure(tmp_path / f"failure-{at[0]}"):
                assert newest(found, made) >= promised[0]
                failures[0] += 1
            at[0] += 1

        disk.seen = look
        file = CheckpointFile(directory / "checkpoint.json", CODEC)
        for number in range(4 * saves):
            file.save(made[number])
            file.tidy()
            if (number + 1) % saves == 0:
                file.sync()
                promised[0] = number
                file.tidy()
    disk.forget()
    assert failures[0] > 20


def test_a_sync_at_any_moment_of_a_save_keeps_what_was_saved_before_it(tmp_path, monkeypatch):
    """It runs in another thread; only while names change it waits."""
    synced = 0
    for moment in range(40):
        made, directory = tables(4), tmp_path / f"state-{moment}"
        directory.mkdir()
        with monkeypatch.context() as patched:
            disk = Disk(patched, directory)
            file = CheckpointFile(directory / "checkpoint.json", CODEC)
            file.save(made[0])
            file.sync()
            file.save(made[1])
            left = [moment]

            def now(left=left, disk=disk, file=file):
                left[0] -= 1
                if left[0] == -1 and not file._names.locked():
                    disk.seen = lambda: None
                    file.sync()
                    left.append(True)

            disk.seen = now
            file.save(made[2])
            file.save(made[3])
            disk.seen = lambda: None
            disk.forget()
            if len(left) > 1:
                synced += 1
                for found in disk.after_a_failure(tmp_path / f"failure-{moment}"):
                    assert newest(found, made) >= 1, moment
    assert synced > 5


def test_a_sync_waits_while_names_change(tmp_path):
    file = CheckpointFile(tmp_path / "checkpoint.json", CODEC)
    file.save(FIRST)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (file.sync(), done.set()))
    with file._names:
        thread.start()
        assert not done.wait(0.05)
    thread.join(60)
    assert done.is_set()


def test_a_allocation_table_that_was_synced_is_found_behind_two_that_were_not(path):
    file = CheckpointFile(path, CODEC)
    for number, table in enumerate((FIRST, SECOND, THIRD)):
        file.save(table)
        if number == 0:
            file.sync()
        file.tidy()
    for lost in (path, path.with_name("checkpoint.json.previous")):
        lost.write_bytes(b"")
    successor = CheckpointFile(path, CODEC)
    loaded = successor.load()
    assert loaded.table == FIRST and len(loaded.notes) == 2
    for table in (SECOND, THIRD, FIRST, SECOND):
        successor.save(table)
    assert CheckpointFile(path, CODEC).load().table == SECOND


def test_no_room_is_one_line_and_the_allocation_table_before_stays(path, monkeypatch):
    file = CheckpointFile(path, CODEC)
    file.save(FIRST)

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left on device"):
        file.save(SECOND)
    monkeypatch.undo()
    assert file.load().table == FIRST


def test_a_checkpoint_that_is_a_directory(path):
    path.mkdir()
    with pytest.raises(StorageError):
        CheckpointFile(path, CODEC).load()


def test_old_files_go_later_or_at_the_next_start(path):
    file = CheckpointFile(path, CODEC)
    for table in (FIRST, SECOND, THIRD):
        file.save(table)
    assert len(list(path.parent.glob("*.ended-*"))) == 1
    successor = CheckpointFile(path, CODEC)
    assert successor.load().table == THIRD
    successor.tidy()
    assert len(list(path.parent.glob("*.ended-*"))) == 1, "it may be the only one that is on the disk"
    successor.sync()
    successor.tidy()
    assert list(path.parent.glob("*.ended-*")) == []
    file.tidy()


def test_old_files_do_not_pile_up_when_nobody_tidies(path):
    file = CheckpointFile(path, CODEC)
    for number in range(100):
        file.save((FIRST, SECOND)[number % 2])
    assert len(list(path.parent.iterdir())) < 50


def table_number(path):
    """Which of the tables of `numbered` a new agent finds."""
    return CheckpointFile(path, CODEC).load().table.next_number


def numbered(number):
    return AllocationTable(next_number=number)


def test_after_a_kill_the_newest_of_many_old_files_is_found(path):
    """With two digits a number comes before one with a single digit by its name, and not by its age."""
    file = CheckpointFile(path, CODEC)
    for number in range(1, 15):
        file.save(numbered(number))
    for damaged in (path, path.with_name(f"{path.name}.previous")):
        damaged.write_bytes(b"damaged")
    assert table_number(path) == 12


def test_what_a_killed_agent_left_is_not_overwritten_by_its_successor(path):
    file = CheckpointFile(path, CODEC)
    for number in range(1, 5):
        file.save(numbered(number))
    successor = CheckpointFile(path, CODEC)
    successor.load()
    old = {one: one.read_bytes() for one in path.parent.glob("*.ended-*")}
    successor.save(numbered(5))
    successor.save(numbered(6))
    now = {one: one.read_bytes() for one in path.parent.glob("*.ended-*")}
    assert len(old) == 2 and len(now) == 4
    assert old.items() <= now.items()
