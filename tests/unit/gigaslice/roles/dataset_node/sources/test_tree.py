# SPDX-License-Identifier: Apache-2.0
"""Looking up and reading in C, against the same from Python, which shares no code with it."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gigaslice.core.dataset.listing import Entry, EntryKind
from gigaslice.roles.dataset_node.sources._tree import look_up, read_file, read_names
from gigaslice.roles.dataset_node.sources.beneath import HOW

_NEVER = 1 << 62
_ROOT = Path(__file__).parents[6]


@contextlib.contextmanager
def opened(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def looked_up(where, prefix=b"", newest=_NEVER, meanwhile=lambda: None):
    """All that is in a directory: entries, others and new ones."""
    files, others, new = [], [], []
    with opened(where) as fd:
        while names := read_names(fd):
            meanwhile()
            at, before = 0, -1
            while at < len(names):
                assert before < at
                before, known = at, len(files)
                at, text = look_up(fd, names, at, prefix, newest, Entry, EntryKind.FILE, files, others, new)
                assert text == sum(len(one.path) + len(one.version) for one in files[known:])
            assert at == len(names)
    return files, others, new


def expected(where, prefix=b"", newest=_NEVER):
    """The same by os.scandir."""
    files, others, new = [], [], []
    for one in os.scandir(os.fsencode(where)):
        found = os.lstat(one.path)
        if not stat.S_ISREG(found.st_mode) or abs(found.st_mtime_ns) >= 9 * 10**18:
            others.append((one.name, found.st_mode))
            continue
        path = prefix + one.name
        version, runs = f"{found.st_size}:{found.st_mtime_ns}", bool(found.st_mode & stat.S_IXUSR)
        files.append(Entry(path, EntryKind.FILE, found.st_size, version, executable=runs))
        if found.st_mtime_ns > newest:
            new.append(path)
    return sorted(files), sorted(others), sorted(new)


def fill(where, seed):
    """A directory of all kinds of things, with names of all lengths, sizes and times."""
    dice = random.Random(seed)
    where.mkdir()
    for number in range(dice.choice([0, 1, 63, 64, 65, 300, 1500])):
        name = bytes(dice.choice(b"\x01\n .-az\xc3\xff\xfe") for _ in range(dice.choice([1, 2, 3, 9, 240])))
        path = where / os.fsdecode(name + b"%x" % number)
        kind = dice.random()
        if kind < 0.85:
            path.touch()
            os.truncate(path, dice.choice([0, 1, 9, 10, 4096, 1 << 33, dice.randrange(1 << 40)]))
            times = [0, 1, -1, 999_999_999, -1_000_000_001, 10**18, dice.randrange(2 * 10**18)]
            os.utime(path, ns=(0, dice.choice([*times, 12 * 10**18])))
            path.chmod(dice.choice([0o644, 0o755, 0o600, 0o711, 0o677, 0o6100, 0o6600]))
        elif kind < 0.9:
            path.mkdir()
        elif kind < 0.95:
            path.symlink_to("somewhere")
        else:
            os.mkfifo(path)


@pytest.mark.parametrize("seed", range(8))
def test_a_directory_is_what_it_is_from_python(tmp_path, seed):
    fill(tmp_path / "d", seed)
    newest = random.Random(seed).choice([-5, 0, 10**17, _NEVER])
    found = looked_up(tmp_path / "d", b"some/where/", newest)
    assert tuple(map(sorted, found)) == expected(tmp_path / "d", b"some/where/", newest)
    assert all(
        type(one) is Entry
        and one.kind is EntryKind.FILE
        and (type(one.target), type(one.executable)) == (bytes, bool)
        for one in found[0]
    )


def test_what_is_removed_meanwhile_is_passed_over(tmp_path):
    for number in range(200):
        (tmp_path / f"f{number}").touch()

    def meanwhile():
        for number in range(0, 200, 3):
            (tmp_path / f"f{number}").unlink()

    files, others, _ = looked_up(tmp_path, meanwhile=meanwhile)
    assert sorted(one.path for one in files) == sorted(b"f%d" % one for one in range(200) if one % 3)
    assert not others


def test_a_call_ends_after_64_names_whether_or_not_they_have_files(tmp_path):
    for number in range(300):
        (tmp_path / f"f{number}").touch()
    with opened(tmp_path) as fd:
        names = read_names(fd)

        def calls():
            at = count = 0
            while at < len(names):
                at, _ = look_up(fd, names, at, b"", 0, Entry, EntryKind.FILE, [], [], [])
                count += 1
            return count

        assert calls() == 5, "of 302 names, with the directory itself and the one above"
        for number in range(300):
            (tmp_path / f"f{number}").unlink()
        assert calls() == 5


def test_a_directory_that_was_removed_has_no_names(tmp_path):
    (tmp_path / "d").mkdir()
    with opened(tmp_path / "d") as fd:
        (tmp_path / "d").rmdir()
        assert read_names(fd) == b""


def test_what_the_kernel_refuses_is_an_error_with_its_number(tmp_path):
    (tmp_path / "file").touch()
    with opened(tmp_path) as fd:
        names = read_names(fd)
    for call in (
        lambda: read_names(fd),
        lambda: look_up(fd, names, 0, b"", 0, Entry, EntryKind.FILE, [], [], []),
        lambda: read_file(fd, b"file", HOW, "0:0", 0, 0),
    ):
        with pytest.raises(OSError) as failure:
            call()
        assert failure.value.errno == errno.EBADF
    file = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        read_names(file)
    os.close(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which gives its rights up for a moment")
def test_a_right_that_is_missing(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/file").write_bytes(b"secret")
    (tmp_path / "d/file").chmod(0o600)
    with opened(tmp_path / "d") as fd:
        names = read_names(fd)
        (tmp_path / "d").chmod(0o700)
        os.seteuid(65534)
        try:
            with pytest.raises(PermissionError):
                look_up(fd, names, 0, b"", 0, Entry, EntryKind.FILE, [], [], [])
            with pytest.raises(PermissionError):
                read_file(fd, b"file", HOW, "6:0", 0, 6)
        finally:
            os.seteuid(0)


def test_names_that_are_none_are_refused(tmp_path):
    """What a file system says is checked by the kernel; this is for mistakes of callers."""
    fill(tmp_path / "d", 3)
    dice = random.Random(1)
    refused = 0
    with opened(tmp_path / "d") as fd:
        good = read_names(fd)
        for _ in range(3000):
            bad = bytearray(good)
            for _ in range(dice.randrange(1, 9)):
                bad[dice.randrange(len(bad))] = dice.randrange(256)
            del bad[dice.randrange(1, len(bad)) :]
            at = 0
            with contextlib.suppress(OSError):
                try:
                    while at < len(bad):
                        at, _ = look_up(fd, bytes(bad), at, b"", 0, Entry, EntryKind.FILE, [], [], [])
                except ValueError:
                    refused += 1
        for at in (-1, len(good) + 1):
            with pytest.raises(ValueError, match="not a place"):
                look_up(fd, good, at, b"", 0, Entry, EntryKind.FILE, [], [], [])
        with pytest.raises(ValueError, match="not a type of tuples"):
            look_up(fd, good, 0, b"", 0, list, EntryKind.FILE, [], [], [])
    assert refused > 2000


def version_of(path):
    found = path.stat()
    return f"{found.st_size}:{found.st_mtime_ns}"


@pytest.mark.parametrize("size", [0, 1, 4096, 100_001])
def test_bytes_of_a_file(tmp_path, size):
    dice = random.Random(size)
    data = dice.randbytes(size)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_bytes(data)
    version = version_of(tmp_path / "a/file")
    with opened(tmp_path) as root:
        for _ in range(20):
            start = dice.randrange(size + 1)
            end = dice.randrange(start, size + 1)
            assert read_file(root, b"a/file", HOW, version, start, end - start) == data[start:end]
        assert read_file(root, b"a/file", HOW, version, 0, size) == data
        assert read_file(root, b"a/file", HOW, version, 0, size + 1) == "became shorter"


@pytest.mark.parametrize("time_ns", [0, -1, 1, -(10**9) - 1, 1_700_000_000_123_456_789])
def test_a_version_is_compared_whole(tmp_path, time_ns):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 12)
    os.utime(path, ns=(0, time_ns))
    version = version_of(path)
    with opened(tmp_path) as root:
        assert read_file(root, b"file", HOW, version, 0, 12) == b"x" * 12
        for other in ("", "1", version[1:], version[:-1], version + "0", "2" + version[1:], f"13:{time_ns}"):
            assert read_file(root, b"file", HOW, other, 0, 12) == "was changed", other


def test_a_time_beyond_what_is_counted_is_handed_back(tmp_path):
    (tmp_path / "file").touch()
    os.utime(tmp_path / "file", ns=(0, 12 * 10**18))
    if (tmp_path / "file").stat().st_mtime_ns != 12 * 10**18:
        pytest.skip("this file system has no such times")
    with opened(tmp_path) as root:
        assert read_file(root, b"file", HOW, version_of(tmp_path / "file"), 0, 0) is None


def test_what_is_no_plain_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")
    with opened(tmp_path) as root:
        for name in (b"pipe", b"dir", b"."):
            assert read_file(root, name, HOW, "0:0", 0, 5) == "became something else than a file"
        for name, number in ((b"link", errno.ELOOP), (b"../x", errno.EXDEV), (b"none", errno.ENOENT)):
            with pytest.raises(OSError) as failure:
                read_file(root, name, HOW, "0:0", 0, 5)
            assert failure.value.errno == number
        with pytest.raises(ValueError, match="null byte"):
            read_file(root, b"a\0b", HOW, "0:0", 0, 5)


def test_a_file_that_grows_meanwhile_is_never_another(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a" * 50_000)
    stop = threading.Event()

    def grow():
        with path.open("ab", 0) as file:
            while not stop.is_set():
                file.write(b"b" * 1000)
                time.sleep(0.0002)
                os.truncate(file.fileno(), 50_000)

    found = set()
    thread = threading.Thread(target=grow)
    thread.start()
    try:
        with opened(tmp_path) as root:
            end = time.monotonic() + 0.5
            while time.monotonic() < end or "was changed" not in found:
                status = path.stat()
                size = status.st_size
                read = read_file(root, b"file", HOW, f"{size}:{status.st_mtime_ns}", 0, size)
                if isinstance(read, bytes):
                    assert len(read) == size
                    assert read[:50_000].count(b"a") == 50_000
                    read = b""
                found.add(read)
    finally:
        stop.set()
        thread.join()
    assert found <= {b"", "was changed", "became shorter"}


def test_nothing_is_lost_or_freed_twice(tmp_path):
    """Blocks of memory, open files and references are what they were, after success and after every failure.

    In a process of its own: threads of this one allocate whenever the test runner sends it something.
    """
    fill(tmp_path / "d", 5)
    (tmp_path / "file").write_bytes(b"x" * 3000)
    os.mkfifo(tmp_path / "pipe")
    program = "import pathlib, runpy, sys; runpy.run_path(sys.argv[1])['losses'](pathlib.Path(sys.argv[2]))"
    command = [sys.executable, "-c", program, __file__, str(tmp_path)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def losses(tmp_path):
    """Fails where something of a directory is lost."""
    version = version_of(tmp_path / "file")
    watched = (Entry, EntryKind.FILE, None, version, HOW)

    def work():
        looked_up(tmp_path / "d", b"some/", 0)
        with opened(tmp_path) as root:
            for name, said, size in (
                (b"file", version, 3000),
                (b"file", version, 3001),
                (b"file", "1:1", 3000),
                (b"pipe", "0:0", 3),
                (b"none", version, 3),
            ):
                with contextlib.suppress(OSError):
                    read_file(root, name, HOW, said, 0, size)
            with contextlib.suppress(ValueError):
                look_up(root, b"x" * 50, 0, b"", 0, Entry, EntryKind.FILE, [], [], [])
            with contextlib.suppress(OSError):
                look_up(-1, read_names(root), 0, b"", 0, Entry, EntryKind.FILE, [], [], [])

    def state():
        gc.collect()
        return (
            sys.getallocatedblocks(),
            [sys.getrefcount(one) for one in watched],
            len(list(Path("/proc/self/fd").iterdir())),
        )

    for _ in range(5):
        work()
    blocks, references, files = state()
    for _ in range(50):
        work()
    after = state()
    assert after[2] == files
    assert abs(after[0] - blocks) < 40  # a hundred times 200 entries would be thousands
    assert all(abs(now - then) < 40 for now, then in zip(after[1], references, strict=True))


@pytest.mark.parametrize("call", ["read_names", "look_up", "read_file"])
def test_other_threads_run_during_a_call(tmp_path, call):
    """With this interval, nothing but a call that gives the lock up lets the other thread run."""
    for number in range(100):
        (tmp_path / f"f{number}").touch()
    (tmp_path / "file").write_bytes(bytes(1 << 19))
    version = version_of(tmp_path / "file")
    go, seen = threading.Semaphore(0), []

    def other():
        go.acquire()
        seen.append(True)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=other)
    with opened(tmp_path) as root:
        names = read_names(root)
        work = {
            "read_names": lambda: read_names(root),
            "look_up": lambda: look_up(root, names, 0, b"", 0, Entry, EntryKind.FILE, [], [], []),
            "read_file": lambda: read_file(root, b"file", HOW, version, 0, 1 << 19),
        }[call]
        thread.start()
        time.sleep(0.05)
        sys.setswitchinterval(100)
        try:
            go.release()
            end = time.monotonic() + 20
            while not seen and time.monotonic() < end:
                work()
            found = bool(seen)
        finally:
            sys.setswitchinterval(interval)
            thread.join()
    assert found
