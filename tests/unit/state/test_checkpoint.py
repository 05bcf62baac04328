import os
import warnings
from pathlib import Path

import pytest

from agent.errors import CheckpointError, CheckpointVersionError, StorageError
from agent.state import codec
from agent.state.checkpoint import CheckpointFile
from agent.state.records import Book
from tests.fakes.nodes import grant

FIRST = Book().with_grant(grant(1, (0, range(8))))
SECOND = FIRST.with_grant(grant(2, (1, range(4))))
THIRD = SECOND.without([SECOND.grants[0].id])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.json"


def test_nothing_there_is_no_book(path):
    assert CheckpointFile(path).load().book is None
    assert CheckpointFile(path).peek() == Book()


def test_the_last_book_is_found_and_the_one_before_is_kept(path):
    file = CheckpointFile(path)
    for book in (FIRST, SECOND, THIRD):
        file.save(book)
        file.sync()
    file.tidy()
    assert CheckpointFile(path).load().book == THIRD
    assert codec.decode_book(path.with_name("checkpoint.json.previous").read_bytes()) == SECOND
    assert sorted(found.name for found in path.parent.iterdir()) == [
        "checkpoint.json",
        "checkpoint.json.previous",
    ]


def test_it_is_the_agents_alone(path):
    CheckpointFile(path).save(FIRST)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_is_kept_aside_and_the_one_before_is_used(path):
    file = CheckpointFile(path)
    file.save(FIRST)
    file.save(SECOND)
    path.write_bytes(path.read_bytes()[:-5])
    loaded = CheckpointFile(path).load()
    assert loaded.book == FIRST
    assert len(loaded.notes) == 1
    assert [found.name for found in path.parent.glob("*.corrupt-*")]


def test_both_damaged_is_no_book_and_both_are_kept(path):
    file = CheckpointFile(path)
    file.save(FIRST)
    file.save(SECOND)
    for found in (path, path.with_name("checkpoint.json.previous")):
        found.write_bytes(b"")
    loaded = CheckpointFile(path).load()
    assert loaded.book is None
    assert len(loaded.notes) == 2
    assert len(list(path.parent.glob("*.corrupt-*"))) == 2


def test_two_damaged_files_within_a_second_do_not_share_a_name(path):
    for _ in range(3):
        path.write_bytes(b"x")
        CheckpointFile(path).load()
    assert len(list(path.parent.glob("*.corrupt-*"))) == 3


def test_a_newer_file_is_refused_and_left_alone(path, monkeypatch):
    monkeypatch.setattr(codec, "VERSION", 1)
    raw = codec._sealed(b'{"next":1,"grants":[]}', version=9)
    path.write_bytes(raw)
    with pytest.raises(CheckpointVersionError, match="start the newer gigaslice again"):
        CheckpointFile(path).load()
    assert path.read_bytes() == raw


def test_peek_changes_nothing(path):
    file = CheckpointFile(path)
    file.save(FIRST)
    file.save(SECOND)
    path.write_bytes(b"x")
    assert file.peek() == FIRST
    path.with_name("checkpoint.json.previous").write_bytes(b"y")
    with pytest.raises(CheckpointError):
        file.peek()
    assert sorted(found.read_bytes() for found in path.parent.iterdir()) == [b"x", b"y"]


def test_the_next_file_is_made_ahead_and_no_matter_what_is_in_it(path):
    file = CheckpointFile(path)
    new = path.with_name("checkpoint.json.new")
    for book in (FIRST, SECOND, THIRD):
        file.make_ahead()
        assert new.read_bytes() == b""
        file.save(book)
        assert file.load().book == book
    new.write_bytes(b"x" * 100_000)  # an agent that was killed while it wrote a long one
    file.make_ahead()
    file.save(FIRST)
    assert file.load().book == FIRST
    assert path.stat().st_size < 100_000


STEPS = ("open", "write", "close", "unlink", "rename")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("occurrence", [1, 2])
def test_dying_before_any_step_leaves_the_old_book_or_the_new_one(path, step, occurrence):
    file = CheckpointFile(path)
    file.save(FIRST)
    file.save(SECOND)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # threads of other tests do not matter to the child
        child = os.fork()
    if child == 0:
        _die_before(step, occurrence)
        file.save(THIRD)
        os._exit(0)
    os.waitpid(child, 0)
    loaded = CheckpointFile(path).load()
    assert loaded.book in (SECOND, THIRD)
    assert loaded.notes == ()
    file.save(THIRD)
    assert file.load().book == THIRD


def _die_before(step, occurrence):
    """Makes the process end as by a signal just before the step happens for that time."""
    left = [occurrence]

    def dying(real):
        def call(*arguments, **keywords):
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return real(*arguments, **keywords)

        return call

    if step in ("unlink", "rename"):
        setattr(Path, step, dying(getattr(Path, step)))
    else:
        setattr(os, step, dying(getattr(os, step)))


def test_no_room_is_one_line_and_the_book_before_stays(path, monkeypatch):
    file = CheckpointFile(path)
    file.save(FIRST)

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left on device"):
        file.save(SECOND)
    monkeypatch.undo()
    assert file.load().book == FIRST


def test_a_checkpoint_that_is_a_directory(path):
    path.mkdir()
    with pytest.raises(StorageError):
        CheckpointFile(path).load()


def test_old_files_go_later_or_at_the_next_start(path):
    file = CheckpointFile(path)
    for book in (FIRST, SECOND, THIRD):
        file.save(book)
    assert len(list(path.parent.glob("*.ended-*"))) == 1
    successor = CheckpointFile(path)
    assert successor.load().book == THIRD
    successor.tidy()
    assert list(path.parent.glob("*.ended-*")) == []
    file.tidy()


def test_old_files_do_not_pile_up_when_nobody_tidies(path):
    file = CheckpointFile(path)
    for number in range(100):
        file.save((FIRST, SECOND)[number % 2])
    assert len(list(path.parent.iterdir())) < 50
