# SPDX-License-Identifier: Apache-2.0
"""A directory tree as a source: what it lists, what it refuses, what it notices."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time

import pytest

from gigaslice.core.dataset.errors import ListingError, SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.sources import beneath, posix
from gigaslice.roles.dataset_node.sources.beneath import open_beneath, open_by_segments
from gigaslice.roles.dataset_node.sources.opening import open_source
from gigaslice.roles.dataset_node.sources.posix import PosixSource
from gigaslice.roles.dataset_node.sources.protocol import CancelFlag


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    (root / "a/b/c").mkdir(parents=True)
    (root / "a/b/c/deep").write_bytes(b"deep")
    (root / "a/file").write_bytes(b"x" * 100_000)
    (root / "empty").write_bytes(b"")
    (root / "void").mkdir()
    (root / "link").symlink_to("a/file")
    os.utime(root / "a/file", ns=(1, 1_000_000_000))
    return root


def listed(root, limits=Limits()):  # noqa: B008
    async def run():
        source = PosixSource(root)
        try:
            return await source.list(limits)
        finally:
            await source.close()

    return asyncio.run(run())


def read(root, entry, offset=0, size=None, large=1 << 20):
    source = PosixSource(root, large=large)
    found = bytearray()

    def sink(at, data):
        assert at == offset + len(found)
        found.extend(data)

    try:
        source.read_into(entry, offset, entry.size - offset if size is None else size, sink)
    finally:
        asyncio.run(source.close())
    return bytes(found)


def entry_of(root, path):
    return next(one for one in listed(root).entries if one.path == path)


@pytest.mark.parametrize("usual", [True, False])
def test_the_owners_execute_bit_is_kept_and_a_change_of_it_is_another_version(tree, usual):
    """Of files with a usual time, which are looked up in C, and of others."""
    before = listed(tree)
    for name, mode in (("a/file", 0o744), ("a/b/c/deep", 0o6655), ("empty", 0o7111)):
        path = tree / name
        path.chmod(mode)
        if not usual:
            os.utime(path, ns=(0, 12 * 10**18))
    after = listed(tree)
    assert not [one for one in before.entries if one.executable]
    assert [one.path for one in after.entries if one.executable] == [b"a/file", b"empty"]
    assert after.digest != before.digest and after.layout_digest() != before.layout_digest()


def test_a_walk_that_a_mistake_ends_in_one_thread_ends_in_all(tree, monkeypatch):
    failed = threading.Event()

    def directory(walk, path, _, below, *_others):
        if not path:
            below += [b"a", b"void"]
        elif threading.current_thread().name == "helped":
            failed.set()
            raise RuntimeError("a mistake")
        else:
            monkeypatch.setattr(posix.threading, "Thread", helper)
            walk._help()
            assert failed.wait(10)
        return 0

    def helper(*, name, **options):
        return thread(name="helped", **options)

    thread = threading.Thread
    monkeypatch.setattr(posix._Walk, "_directory", directory)
    root = os.open(tree, os.O_RDONLY)
    outcome = []

    def walk():
        with pytest.raises(RuntimeError, match="a mistake"):
            posix._Walk(root, Limits(), CancelFlag()).run()
        outcome.append(True)

    walking = thread(target=walk, daemon=True)
    walking.start()
    walking.join(10)
    assert outcome, "the others wait for a directory that no one walks"
    os.close(root)


def test_files_directories_and_links_are_listed(tree):
    found = {entry.path: entry for entry in listed(tree).entries}
    assert set(found) == {b"a", b"a/b", b"a/b/c", b"a/b/c/deep", b"a/file", b"empty", b"link", b"void"}
    assert found[b"a/file"].version == "100000:1000000000"
    assert found[b"link"].kind is EntryKind.SYMLINK
    assert found[b"link"].target == b"a/file"
    assert found[b"void"].kind is EntryKind.DIRECTORY


def test_the_same_tree_has_the_same_listing_and_any_change_another(tree):
    before = listed(tree).digest
    assert listed(tree).digest == before
    changes = [
        lambda: (tree / "a/b/c/deep").write_bytes(b"daep"),
        lambda: (tree / "a/b/c/deep").write_bytes(b"deeper"),
        lambda: (tree / "new").write_bytes(b""),
        (tree / "new").unlink,
        lambda: (tree / "a/file").rename(tree / "a/fil"),
        lambda: ((tree / "link").unlink(), (tree / "link").symlink_to("empty")),
        (tree / "void2").mkdir,
    ]
    seen = {before}
    for index, change in enumerate(changes):
        change()
        found = listed(tree).digest
        assert (found in seen) == (index == 3), index  # the fourth undoes the third
        seen.add(found)


both_ways = pytest.mark.parametrize("large", [1 << 20, 0], ids=["by one call", "from Python"])
"""Small files are read by one call where that is possible."""


@both_ways
def test_ranges_are_read(tree, large):
    (tree / "a/file").write_bytes(bytes(range(256)) * 400)
    entry = entry_of(tree, b"a/file")
    assert read(tree, entry, large=large) == bytes(range(256)) * 400
    assert read(tree, entry, 1000, 5000, large) == (bytes(range(256)) * 400)[1000:6000]


@both_ways
def test_names_that_are_no_text_are_names(tree, large):
    name = b"\xff\xfe\n"
    with (tree / os.fsdecode(name)).open("wb") as file:
        file.write(b"odd")
    assert read(tree, entry_of(tree, name), large=large) == b"odd"


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a device"])
def test_what_no_dataset_has_is_refused_by_name(tree, kind):
    odd = tree / "a/b/odd"
    with contextlib.ExitStack() as stack:
        if kind == "a pipe":
            os.mkfifo(odd)
        elif kind == "a socket":
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            here = os.open(tree / "a/b", os.O_RDONLY)
            stack.callback(os.close, here)
            one.bind(f"/proc/self/fd/{here}/odd")
        else:
            try:
                os.mknod(odd, 0o600 | 0o20000, os.makedev(1, 3))
            except PermissionError:
                pytest.skip("making a device needs root")
        with pytest.raises(SourceError, match=rf'"a/b/odd" is {kind}'):
            listed(tree)


def test_a_link_out_of_the_tree_is_refused(tree):
    (tree / "out").symlink_to("../outside")
    with pytest.raises(ListingError, match='"out"'):
        listed(tree)


def test_a_linked_directory_is_a_link_and_not_walked(tree):
    (tree / "loop").symlink_to("a")
    assert {entry.path for entry in listed(tree).entries if entry.path.startswith(b"loop")} == {b"loop"}


def test_a_directory_that_is_not_there_is_a_text(tmp_path):
    with pytest.raises(SourceError, match="cannot be opened"):
        PosixSource(tmp_path / "none")


@pytest.mark.parametrize("path", ["link", "link/b", "a/out", "a/out/ssl"])
def test_a_directory_that_a_pod_names_is_found_through_no_link(tmp_path, path):
    """Who may write to a directory that --allow opens must not lead the node's service out of it."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "a" / "out").symlink_to("/etc")
    with pytest.raises(SourceError, match="a part of it is a symbolic link; name the directory"):
        asyncio.run(named(tmp_path / path))
    assert asyncio.run(named(tmp_path / "a" / "b")) == ()


async def named(path):
    source = await open_source(SourceSpec.parse(str(path)), {}, mounts=None)
    try:
        return (await source.list()).entries
    finally:
        await source.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"y" * 100_000),
        lambda path: path.write_bytes(b"short"),
        lambda path: path.write_bytes(b"z" * 100_001),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), os.mkfifo(path)),
    ],
    ids=["rewritten", "shorter", "longer", "removed", "a directory", "a pipe"],
)
@both_ways
def test_a_file_that_changed_since_the_listing_is_noticed(tree, change, large):
    entry = entry_of(tree, b"a/file")
    change(tree / "a/file")
    with pytest.raises(SourceError) as failure:
        read(tree, entry, large=large)
    assert failure.value.changed
    assert '"a/file"' in str(failure.value)


def test_both_ways_say_the_same_of_a_file_that_has_changed(tree):
    """Each change as it is reported with one call and from Python."""
    entry = entry_of(tree, b"a/file")
    path = tree / "a/file"
    changes = [
        lambda: path.write_bytes(b"y" * 100_000),
        path.unlink,
        path.mkdir,
        lambda: (path.rmdir(), os.mkfifo(path)),
        lambda: (path.unlink(), path.symlink_to("b")),
        lambda: ((tree / "a").rename(tree / "c"), (tree / "a").symlink_to("c")),
        lambda: ((tree / "a").unlink(), (tree / "a").touch()),
    ]
    seen = set()
    for change in changes:
        change()
        said = []
        for large in (1 << 20, 0):
            with pytest.raises(SourceError) as failure:
                read(tree, entry, large=large)
            said.append((str(failure.value), failure.value.changed, failure.value.retry))
        assert said[0] == said[1]
        seen.add(said[0])
    assert len(seen) == 4, "changed, removed, no file, a link"


def test_a_size_that_lies_is_noticed(tree):
    """A file that is shorter than its version says, as where a server's sizes and contents differ."""
    entry = entry_of(tree, b"a/file")._replace(size=100_001)
    for large in (1 << 20, 0):
        with pytest.raises(SourceError, match="became shorter") as failure:
            read(tree, entry, large=large)
        assert failure.value.changed


def test_versions_that_are_of_no_directory_do_not_match(tree):
    entry = entry_of(tree, b"a/file")
    for version in ("", "\udcff", "100000:1000000000\udc80", "100000:1000000001"):
        with pytest.raises(SourceError, match="was changed"):
            read(tree, entry._replace(version=version))


def test_a_file_from_the_far_future_is_listed_and_read(tree):
    os.utime(tree / "a/file", ns=(0, 12 * 10**18))
    if (tree / "a/file").stat().st_mtime_ns != 12 * 10**18:
        pytest.skip("this file system has no such times")
    entry = entry_of(tree, b"a/file")
    assert entry.version == f"100000:{12 * 10**18}"
    assert read(tree, entry) == b"x" * 100_000


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.E2BIG])
def test_where_openat2_is_forbidden_files_are_read_from_python(tree, monkeypatch, number):
    def refused(*_):
        raise OSError(number, "no")

    monkeypatch.setattr(posix, "read_file", refused)
    assert read(tree, entry_of(tree, b"a/file")) == b"x" * 100_000


@pytest.mark.parametrize(("number", "again"), [(errno.EIO, True), (errno.EINTR, True), (errno.EINVAL, False)])
@pytest.mark.parametrize("failing", ["read_file", "pread", "fstat"])
def test_storage_that_fails_is_an_error_of_the_source(tree, monkeypatch, number, again, failing):
    entry = entry_of(tree, b"a/file")
    calls = []

    def failed(*given):
        calls.append(given)
        if failing == "fstat" and len(calls) != 2:  # not the one after reading
            return real(*given)
        raise OSError(number, "broken")

    real = getattr(os, failing, None)
    monkeypatch.setattr(posix if failing == "read_file" else os, failing, failed)
    with pytest.raises(SourceError, match="cannot be read: broken") as failure:
        read(tree, entry, large=1 << 20 if failing == "read_file" else 0)
    assert failure.value.retry == again
    assert calls


def test_a_link_that_is_removed_while_a_directory_is_read_is_passed_over(tree, monkeypatch):
    real = posix.look_up

    def looked_up(*given):
        at = real(*given)
        (tree / "link").unlink(missing_ok=True)
        return at

    monkeypatch.setattr(posix, "look_up", looked_up)
    assert b"link" not in {one.path for one in listed(tree).entries}


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"y" * path.stat().st_size),
        lambda path: os.truncate(path, 1 << 20),
        lambda path: path.write_bytes(path.read_bytes() + b"more"),
    ],
    ids=["rewritten", "truncated", "grown"],
)
def test_a_file_that_changes_while_it_is_read_is_noticed(tree, change):
    path = tree / "a/file"
    path.write_bytes(b"x" * (3 << 20))
    os.utime(path, ns=(1, 1))
    entry = entry_of(tree, b"a/file")
    source = PosixSource(tree)
    chunks = []

    def sink(at, data):
        if not chunks:
            change(path)
        chunks.append(data)

    with pytest.raises(SourceError) as failure:
        source.read_into(entry, 0, entry.size, sink)
    asyncio.run(source.close())
    assert failure.value.changed
    assert chunks


def test_a_file_that_is_written_within_the_clocks_grain_gets_another_version(tree, monkeypatch):
    (tree / "new").write_bytes(b"one")
    real = posix._settled

    def settled(*walked):
        (tree / "new").write_bytes(b"two")
        os.utime(tree / "new", ns=(5, time.time_ns()))
        (tree / "a/b/c/deep").unlink()
        return real(*walked)

    (tree / "a/b/c/deep").write_bytes(b"just written")
    for one in ("new", "a/b/c/deep"):  # however long it takes from here to the walk
        os.utime(tree / one, ns=(5, time.time_ns() + 10**10))
    monkeypatch.setattr(posix, "_settled", settled)
    found = {entry.path: entry for entry in listed(tree).entries}
    monkeypatch.undo()
    assert read(tree, found[b"new"]) == b"two"
    assert b"a/b/c/deep" not in found


def test_more_entries_than_the_limit_end_the_walk(tree):
    for index in range(50):
        (tree / f"f{index}").touch()
    with pytest.raises(ListingError, match="more than 10 entries"):
        listed(tree, Limits(entries=10))


@contextlib.contextmanager
def exchanged(root):
    """A thread has the directory "dir" and the link "evil" change places all the time."""
    stop = threading.Event()

    def exchange():
        while not stop.is_set():
            (root / "dir").rename(root / "kept")
            (root / "evil").rename(root / "dir")
            (root / "dir").rename(root / "evil")
            (root / "kept").rename(root / "dir")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


OPENERS = [open_beneath, open_by_segments]


@pytest.mark.parametrize("opener", OPENERS)
def test_nothing_is_opened_through_a_link_or_above_the_root(tree, tmp_path, opener):
    (tmp_path / "secret").write_bytes(b"secret")
    (tree / "up").symlink_to("..")
    root = os.open(tree, os.O_RDONLY)
    try:
        for path in (
            b"link",
            b"up/secret",
            b"../secret",
            b"a/../../secret",
            os.fsencode(tmp_path / "secret"),
        ):
            with pytest.raises(OSError) as failure:
                opener(root, path)
            assert failure.value.errno in (errno.ELOOP, errno.EXDEV, errno.ENOTDIR), path
        fd = opener(root, b"a/b/c/deep")
        assert os.read(fd, 10) == b"deep"
        os.close(fd)
        os.close(opener(root, b".", directory=True))
        with pytest.raises(NotADirectoryError):
            opener(root, b"a/file", directory=True)
    finally:
        os.close(root)


def test_reading_never_leads_out_of_the_tree(tmp_path):
    """A directory and a link to the outside change places as fast as they can; all files have one version."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    for one, text in ((outside, b"SECRET"), (root / "dir", b"inside")):
        one.mkdir(parents=True)
        (one / "file").write_bytes(text)
        os.utime(one / "file", ns=(0, 5))
    (root / "evil").symlink_to(outside)
    found: set[object] = set()
    with exchanged(root):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            try:
                found.add(read(root, Entry(b"dir/file", EntryKind.FILE, 6, "6:5")))
            except SourceError as error:
                found.add(error.changed)
    assert found == {b"inside", True}


@pytest.mark.parametrize("opener", OPENERS)
def test_a_tree_that_is_changed_under_us_never_leads_out_of_it(tmp_path, opener):
    """A directory and a link to the outside change places as fast as they can."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    for one, text in ((outside, b"SECRET"), (root / "dir", b"inside")):
        one.mkdir(parents=True)
        (one / "file").write_bytes(text)
    (root / "evil").symlink_to(outside)
    fd = os.open(root, os.O_RDONLY)
    found = set()
    with exchanged(root):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            try:
                file = opener(fd, b"dir/file")
            except OSError as error:
                found.add(error.errno)
                continue
            found.add(os.read(file, 10))
            os.close(file)
    os.close(fd)
    assert b"SECRET" not in found
    assert b"inside" in found
    assert len(found) > 1, "the exchange was met at least once"


def test_without_openat2_segments_are_opened_one_by_one(tree, monkeypatch):
    def missing(*_):
        import ctypes

        ctypes.set_errno(errno.ENOSYS)
        return -1

    monkeypatch.setattr(beneath, "_syscall", missing)
    monkeypatch.setattr(beneath, "_missing", False)
    assert {entry.path for entry in listed(tree).entries} >= {b"a/b/c/deep"}
    assert read(tree, entry_of(tree, b"a/b/c/deep")) == b"deep"
    assert beneath._missing


def test_where_a_look_up_takes_long_directories_are_walked_at_once(tmp_path, monkeypatch):
    for number in range(120):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}/file").touch()
    real, under_way, most = posix.open_beneath, set(), []

    def slow(root, path, **options):
        under_way.add(threading.get_ident())
        most.append(len(under_way))
        time.sleep(0.01)
        under_way.discard(threading.get_ident())
        return real(root, path, **options)

    monkeypatch.setattr(posix, "open_beneath", slow)
    listing = listed(tmp_path)
    assert (listing.files, len(listing.entries)) == (120, 240)
    assert max(most) >= 4
