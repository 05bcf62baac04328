# SPDX-License-Identifier: Apache-2.0
"""Images under programs of other projects: fsck.erofs and dump.erofs of erofs-utils, and the kernel.

Each needs what not every machine has; the tests say what is missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from gigaslice.core.dataset.image import ImagePlan, plan
from gigaslice.core.dataset.listing import Entry, EntryKind, Listing
from tests.fakes.images import content, listed, listings, write

FILE, DIRECTORY, SYMLINK = EntryKind.FILE, EntryKind.DIRECTORY, EntryKind.SYMLINK
FEW = settings(max_examples=15, suppress_health_check=list(HealthCheck))

_MOUNT = """
import ctypes, json, os, sys
image, where = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mount(b"none", b"/", None, 0x44000, None)  # private, all below too
if libc.mount(image.encode(), where.encode(), b"erofs", 1 | 2 | 4, None):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
found = []
for base, directories, files in os.walk(where.encode()):
    for name in [*directories, *files]:
        path = os.path.join(base, name)
        at = os.lstat(path)
        row = [path[len(where) + 1:].hex(), at.st_mode, at.st_size, at.st_uid, at.st_nlink, at.st_ino, at.st_mtime]
        if os.path.islink(path):
            row.append(os.readlink(path).hex())
        elif os.path.isfile(path) and at.st_size < 1 << 24:
            row.append(open(path, "rb").read().hex())
        elif os.path.isfile(path):
            fd = os.open(path, os.O_RDONLY)
            row.append((os.pread(fd, 64, 0) + os.pread(fd, 64, at.st_size - 64)).hex())
        else:
            row.append("")
        found.append(row)
found.append(os.statvfs(where).f_blocks)
json.dump(found, sys.stdout)
"""


def _tool(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed; apt install erofs-utils")
    return found


@pytest.fixture
def fsck() -> Callable[[Path], None]:
    tool = _tool("fsck.erofs")

    def check(image: Path) -> None:
        # It calls itself for every directory, and 700 of them need more than the usual stack.
        command = ["sh", "-c", 'ulimit -s 65536; exec "$@"', "sh", tool, str(image)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "rror" not in done.stdout + done.stderr

    return check


@pytest.fixture
def mounted(tmp_path: Path) -> Callable[[Path], list[list[object]]]:
    """Mounts an image from its file in a mount namespace of its own, and returns what is there."""
    where = tmp_path / "mount"
    where.mkdir()
    if os.geteuid():
        pytest.skip("only root may mount an image")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces cannot be made here")

    def look(image: Path) -> list[list[object]]:
        done = subprocess.run(
            ["unshare", "--mount", sys.executable, "-c", _MOUNT, str(image), str(where)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if re.search("mount: (No such device|Block device required|Operation not permitted)", done.stderr):
            pytest.skip(f"this kernel mounts no EROFS from a file: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return look


def expect(made: ImagePlan, found: list[list[object]]) -> None:
    assert found.pop() == made.size // 4096
    rows = {bytes.fromhex(str(row[0])): row for row in found}
    assert sorted(rows) == [one.path for one in made.listing.entries]
    modes = {FILE: stat.S_IFREG | 0o444, DIRECTORY: stat.S_IFDIR | 0o555, SYMLINK: stat.S_IFLNK | 0o777}
    for one in made.listing.entries:
        _, mode, size, owner, links, number, changed, held = rows[one.path]
        assert mode == modes[one.kind] | (0o111 if one.executable else 0)
        assert (owner, changed) == (0, 315532800)
        assert number
        if one.kind is FILE:
            assert (size, links) == (one.size, 1)
            if one.size < 1 << 24:
                assert bytes.fromhex(str(held)) == content(one.path, one.size)
        elif one.kind is SYMLINK:
            assert bytes.fromhex(str(held)) == one.target
    assert len({row[5] for row in found}) == len(found)


@FEW
@given(listings())
def test_any_tree_passes_fsck(
    tmp_path_factory: pytest.TempPathFactory, fsck: Callable[[Path], None], listing: Listing
) -> None:
    image = tmp_path_factory.mktemp("fsck") / "image"
    write(plan(listing), image)
    fsck(image)


@FEW
@given(listings())
def test_any_tree_is_mounted(
    tmp_path_factory: pytest.TempPathFactory, mounted: Callable[[Path], list[list[object]]], listing: Listing
) -> None:
    image = tmp_path_factory.mktemp("mounted") / "image"
    made = plan(listing)
    write(made, image, seed=1)
    expect(made, mounted(image))


def _hard() -> Listing:
    """What is at a limit of the format, all at once."""
    return Listing.of(
        [
            *(Entry(b"flat/%06d" % n, FILE, 0) for n in range(10_000)),
            *(Entry(b"long/" + (b"%d" % n).rjust(255, b"x"), FILE, n, "v") for n in range(100)),
            *(Entry(b"many/%d" % n, DIRECTORY) for n in range(65_600)),
            *(Entry(b"sizes/%d" % size, FILE, size, "v") for size in range(2000, 2100)),
            *(Entry(b"sizes/%d" % size, FILE, size, "v") for size in (1, 4064, 4095, 4096, 4097, 1 << 20)),
            *(
                Entry(b"links/%d" % size, SYMLINK, target=b"../" + b"y/" * (size // 2))
                for size in (10, 1900, 2100, 3900)
            ),
            Entry(b"/".join([b"deep"] * 700), FILE, 5, "v"),
            Entry(b"!before", FILE, 5, "v"),
            Entry(b"\xff\xfe", FILE, 5, "v"),
        ]
    )


def test_limits_pass_fsck(tmp_path: Path, fsck: Callable[[Path], None]) -> None:
    write(plan(_hard()), tmp_path / "image")
    fsck(tmp_path / "image")


def test_fsck_finds_damage(tmp_path: Path, fsck: Callable[[Path], None]) -> None:
    """Or the tests above would show nothing."""
    made = plan(listed([(b"a/b", 5), (b"c", 9000)]))
    write(made, tmp_path / "image")
    with (tmp_path / "image").open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff" * 64, made.extents()[0][0] - 32)
    with pytest.raises(AssertionError):
        fsck(tmp_path / "image")


def test_an_empty_dataset(
    tmp_path: Path, fsck: Callable[[Path], None], mounted: Callable[[Path], list[list[object]]]
) -> None:
    made = plan(Listing.of([]))
    write(made, tmp_path / "image")
    fsck(tmp_path / "image")
    expect(made, mounted(tmp_path / "image"))


def test_limits_are_mounted(tmp_path: Path, mounted: Callable[[Path], list[list[object]]]) -> None:
    """Without the tree of 700 directories, which a walk by absolute paths cannot name, and what takes long to walk."""
    listing = Listing.of(one for one in _hard().entries if not one.path.startswith((b"deep/", b"many/")))
    made = plan(listing)
    write(made, tmp_path / "image")
    expect(made, mounted(tmp_path / "image"))


@pytest.mark.parametrize(
    "count", [100_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_many_names_in_a_directory(tmp_path: Path, fsck: Callable[[Path], None], count: int) -> None:
    """More than 16 bits count; and a million."""
    made = plan(listed((b"d/%07d" % number, 0) for number in range(count)))
    write(made, tmp_path / "image")
    fsck(tmp_path / "image")


def test_a_file_of_more_than_4_gib(
    tmp_path: Path, fsck: Callable[[Path], None], mounted: Callable[[Path], list[list[object]]]
) -> None:
    """Sparse: only its two ends are written."""
    size = (5 << 30) + 123
    made = plan(listed([(b"large", size), (b"small", 9), (b"z", 5000)]))
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(made.size)
        for offset, data in made.metadata():
            os.pwrite(file.fileno(), data, offset)
        place = made.extents()[0][0]
        os.pwrite(file.fileno(), b"first" * 20, place)
        os.pwrite(file.fileno(), b"last" * 16, place + size - 64)
    found = {bytes.fromhex(str(row[0])): row for row in mounted(image)[:-1]}
    assert found[b"large"][2] == size
    assert bytes.fromhex(str(found[b"large"][7])) == (b"first" * 20)[:64] + b"last" * 16


def test_dump_reads_what_was_written(tmp_path: Path) -> None:
    tool = _tool("dump.erofs")
    made = plan(listed([(b"a/b", 5), (b"c", 9000)]))
    write(made, tmp_path / "image")
    told = subprocess.run(
        [tool, "-s", str(tmp_path / "image")], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"inode count:\s+4\n", told)
    assert re.search(rf"blocks:\s+{made.size // 4096}\n", told)
    assert re.search(r"created:\s+Tue Jan +1 \d\d:00:00 1980", told)
    one = subprocess.run(
        [tool, "--path=/c", "-e", str(tmp_path / "image")], capture_output=True, text=True, check=True
    ).stdout
    assert "9000" in one
    assert "0444" in one


@pytest.mark.parametrize("cut", [4096, 100_000])
def test_an_image_that_is_cut_short_is_not_read_to_its_end(
    tmp_path: Path, mounted: Callable[[Path], list[list[object]]], cut: int
) -> None:
    made = plan(listed((b"%05d" % n, 100) for n in range(5000)))
    write(made, tmp_path / "image")
    expect(made, mounted(tmp_path / "image"))
    os.truncate(tmp_path / "image", made.size - cut)
    with pytest.raises(AssertionError):
        expect(made, mounted(tmp_path / "image"))
