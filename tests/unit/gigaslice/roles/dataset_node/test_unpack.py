# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from gigaslice.core.dataset.errors import ImageError
from gigaslice.core.dataset.image import plan
from gigaslice.core.dataset.listing import Entry, EntryKind, Listing
from gigaslice.roles.dataset_node import unpack
from gigaslice.roles.dataset_node.unpack import unpack_image
from tests.fakes.images import content, listed, listings, write

FEW = settings(max_examples=30, suppress_health_check=list(HealthCheck))


def found(root: Path) -> dict[bytes, tuple[int, bytes]]:
    """Mode and content of everything below ROOT."""
    everything = {}
    base = os.fsencode(root)
    for where, directories, files in os.walk(base):
        for name in [*directories, *files]:
            path = where + b"/" + name
            mode = os.lstat(path).st_mode
            held = b""
            if stat.S_ISLNK(mode):
                held = os.readlink(path)  # noqa: PTH115  (pathlib writes it in another way)
            elif stat.S_ISREG(mode):
                held = Path(os.fsdecode(path)).read_bytes()
            assert os.lstat(path).st_mtime == 315532800
            everything[path[len(base) + 1 :]] = (mode, held)
    return everything


def expected(listing: Listing) -> dict[bytes, tuple[int, bytes]]:
    modes = {
        EntryKind.DIRECTORY: stat.S_IFDIR | 0o555,
        EntryKind.SYMLINK: stat.S_IFLNK | 0o777,
    }
    return {
        one.path: (stat.S_IFREG | (0o555 if one.executable else 0o444), content(one.path, one.size))
        if one.kind is EntryKind.FILE
        else (modes[one.kind], one.target)
        for one in listing.entries
    }


@FEW
@given(listings())
def test_the_directory_is_what_the_listing_says(
    tmp_path_factory: pytest.TempPathFactory, listing: Listing
) -> None:
    where = tmp_path_factory.mktemp("unpack")
    write(plan(listing), where / "image")
    unpack_image(where / "image", where / "tree")
    assert found(where / "tree") == expected(listing)


def test_a_path_that_is_longer_than_one_call_takes(tmp_path: Path) -> None:
    listing = Listing.of([Entry(b"/".join([b"deep" * 50] * 20), EntryKind.FILE, 5, "v")])
    write(plan(listing), tmp_path / "image")
    unpack_image(tmp_path / "image", tmp_path / "tree")
    fd = os.open(tmp_path / "tree", os.O_RDONLY)
    for _ in range(19):
        fd, last = os.open(b"deep" * 50, os.O_RDONLY, dir_fd=fd), fd
        os.close(last)
    os.stat("deep" * 50, dir_fd=fd)
    os.close(fd)


def test_what_is_there_is_not_written_into(tmp_path: Path) -> None:
    write(plan(listed([(b"a", 5)])), tmp_path / "image")
    (tmp_path / "tree").mkdir()
    with pytest.raises(FileExistsError):
        unpack_image(tmp_path / "image", tmp_path / "tree")


def test_no_image(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(bytes(8192))
    with pytest.raises(ImageError, match="does not begin"):
        unpack_image(tmp_path / "image", tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_an_image_in_which_a_link_leads_out(tmp_path: Path) -> None:
    """No listing has one; an image could. Nothing is written through it, whatever stands below its name."""
    outside = tmp_path / "outside"
    outside.mkdir()
    target = os.fsencode(outside)
    listing = listed([(b"a/file", 5)], [Entry(b"link", EntryKind.SYMLINK, target=b"x" * len(target))])
    write(plan(listing), tmp_path / "image")
    data = (tmp_path / "image").read_bytes().replace(b"x" * len(target), target)
    (tmp_path / "image").write_bytes(data)
    unpack_image(tmp_path / "image", tmp_path / "tree")
    assert (tmp_path / "tree" / "link").readlink() == outside
    assert list(outside.iterdir()) == []


def test_an_image_with_a_name_that_leads_up(tmp_path: Path) -> None:
    """The entry "aa" is made to be ".." and more of its kind: the reader refuses the directory."""
    made = plan(listed([(b"..a", 5)]))
    write(made, tmp_path / "image")
    data = (tmp_path / "image").read_bytes()
    for name in (b"../", b"/..", b"..\0"):
        (tmp_path / "image").write_bytes(data.replace(b"..a", name))
        with pytest.raises(ImageError):
            unpack_image(tmp_path / "image", tmp_path / "tree")
        assert not (tmp_path / "tree").exists()


class RecordedLibc:
    """Notes what stood there when the file system was synced."""

    def __init__(self, root: Path, result: int) -> None:
        self.root, self.result = root, result
        self.seen: list[list[bytes]] = []

    def syncfs(self, fd: int) -> int:
        assert Path(f"/proc/self/fd/{fd}").readlink() == self.root
        self.seen.append([path.read_bytes() for path in self.root.rglob("*") if path.is_file()])
        return self.result


@pytest.mark.parametrize("result", [0, -1])
def test_everything_is_on_the_disk_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: int
) -> None:
    write(plan(listed([(b"a", 5), (b"b/c", 7000)])), tmp_path / "image")
    libc = RecordedLibc(tmp_path / "tree", result)
    monkeypatch.setattr(unpack.ctypes, "CDLL", lambda *_, **__: libc)
    if result:
        with pytest.raises(OSError):
            unpack_image(tmp_path / "image", tmp_path / "tree")
    else:
        unpack_image(tmp_path / "image", tmp_path / "tree")
    (seen,) = libc.seen
    assert sorted(map(len, seen)) == [5, 7000]
