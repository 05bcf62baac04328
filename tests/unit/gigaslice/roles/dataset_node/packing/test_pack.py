# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.errors import CacheFullError, DatasetError, ImageError, RequestError, SourceError
from gigaslice.core.dataset.image import plan, read_tree
from gigaslice.core.dataset.listing import Listing
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.packing import check_pack, image_file, make_pack, pack_target
from gigaslice.roles.dataset_node.sources.opening import OpenedSource
from gigaslice.roles.dataset_node.sources.posix import PosixSource


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "large").write_bytes(b"large " * 50_000)
    (root / "a" / "small").write_bytes(b"small")
    (root / "empty").mkdir()
    (root / "link").symlink_to("a/small")
    return root


def names(pack: Path) -> set[str]:
    return {one.suffix for one in pack.iterdir()}


def content(pack: Path) -> dict[bytes, bytes]:
    image = (pack / json.loads((pack / "dataset.json").read_text())["image"]["file"]).read_bytes()
    found = read_tree(lambda at, size: image[at : at + size], len(image))
    return {
        one.path: one.target or image[one.offset : one.offset + one.size] for one in found if one.kind != 2
    }


def test_a_pack_is_the_image_of_the_tree(tmp_path: Path, source: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    pack = tmp_path / "pack"
    made = make_pack(source, pack, progress=lambda *told: seen.append(told))
    assert names(pack) == {".json", ".img", ".listing"}
    image, listing = pack / made.image, (pack / made.listing).read_bytes()
    assert content(pack) == {b"a/b/large": b"large " * 50_000, b"a/small": b"small", b"link": b"a/small"}
    assert hasher(image.read_bytes()).hexdigest() == made.image_digest
    assert hasher(listing).hexdigest() == made.listing_digest
    assert image.stat().st_size == plan(Listing.decode(listing)).size == made.size
    assert seen[-1] == ("hashed", made.size, made.size)
    assert check_pack(pack) == check_pack(pack, source) == made


def test_the_same_tree_is_the_same_image(tmp_path: Path, source: Path) -> None:
    one = make_pack(source, tmp_path / "one")
    os.utime(source / "a" / "small", (1, 1))
    other = make_pack(source, tmp_path / "other")
    assert one.image_digest == other.image_digest
    assert one.listing_digest != other.listing_digest


def test_a_pack_of_the_same_listing_is_left_as_it_is(tmp_path: Path, source: Path) -> None:
    made = make_pack(source, tmp_path / "pack")
    before = {one.name: one.stat().st_mtime_ns for one in (tmp_path / "pack").iterdir()}
    assert make_pack(source, tmp_path / "pack") == made
    assert {one.name: one.stat().st_mtime_ns for one in (tmp_path / "pack").iterdir()} == before


def test_what_a_kill_after_the_manifest_has_left_is_removed_by_the_next_run(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(image_file.ImageFile, "remove", die)
        with pytest.raises(KeyboardInterrupt):
            make_pack(source, tmp_path / "pack")
    (tmp_path / "pack" / ".mine.image").write_text("a user's")
    made = check_pack(tmp_path / "pack")
    assert len(list((tmp_path / "pack").iterdir())) == 6
    assert make_pack(source, tmp_path / "pack") == made
    left = {one.name for one in (tmp_path / "pack").iterdir()}
    assert left == {"dataset.json", made.image, made.listing, ".mine.image"}


@pytest.mark.parametrize("lost", [".img", ".listing", ".json"])
def test_a_pack_that_lost_a_file_is_made_again(tmp_path: Path, source: Path, lost: str) -> None:
    pack = tmp_path / "pack"
    made = make_pack(source, pack)
    next(one for one in pack.iterdir() if one.suffix == lost).unlink()
    assert make_pack(source, pack, force=True) == made
    assert check_pack(pack) == made


def test_a_pack_of_something_else_is_replaced_only_by_force(tmp_path: Path, source: Path) -> None:
    pack = tmp_path / "pack"
    made = make_pack(source, pack)
    (source / "new").write_bytes(b"new")
    with pytest.raises(RequestError, match=r"2 files.*3 files.*--force"):
        make_pack(source, pack)
    assert check_pack(pack) == made
    with pytest.raises(ImageError, match="has changed since"):
        check_pack(pack, source)
    (pack / "README.img").write_text("the user's")
    replaced = make_pack(source, pack, force=True)
    assert check_pack(pack, source) == replaced != made
    assert not (pack / made.image).exists() and not (pack / made.listing).exists()
    assert (pack / "README.img").exists()


def test_a_directory_with_other_files_is_not_used(tmp_path: Path, source: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "thesis.tex").write_text("")
    with pytest.raises(RequestError, match=r"thesis\.tex"):
        make_pack(source, tmp_path / "pack")
    make_pack(source, tmp_path / "pack", force=True)
    assert (tmp_path / "pack" / "thesis.tex").exists()


@pytest.mark.parametrize("where", [".", "pack", "a/b/pack", "link-to-itself/pack"])
def test_a_pack_in_its_source(source: Path, where: str) -> None:
    if where.startswith("link-to-itself"):
        (source.parent / "link-to-itself").symlink_to(source)
        place = source.parent / where
    else:
        place = source / where
    with pytest.raises(RequestError, match="outside of it"):
        make_pack(source, place)


def test_a_destination_that_is_a_file(tmp_path: Path, source: Path) -> None:
    (tmp_path / "pack").write_text("")
    with pytest.raises(RequestError, match="no directory"):
        make_pack(source, tmp_path / "pack")


def test_a_destination_whose_parent_is_not_there(tmp_path: Path, source: Path) -> None:
    with pytest.raises(DatasetError, match="No such file"):
        make_pack(source, tmp_path / "gone" / "pack")


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be opened"):
        make_pack(tmp_path / "gone", tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize("make_it", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_a_source_with_what_no_dataset_may_have(
    tmp_path: Path, source: Path, make_it: Callable[[Path], None]
) -> None:
    make_it(source / "odd")
    with pytest.raises(DatasetError, match="odd"):
        make_pack(source, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


def test_set_id_bits_do_not_survive(tmp_path: Path, source: Path) -> None:
    (source / "a" / "small").chmod(0o6644)
    (source / "run").write_bytes(b"#!/bin/sh\n")
    (source / "run").chmod(0o7700)
    make_pack(source, tmp_path / "pack")
    image = next((tmp_path / "pack").glob("*.img")).read_bytes()
    modes = {one.path: one.mode for one in read_tree(lambda at, size: image[at : at + size], len(image))}
    assert modes[b"a/small"] == 0o444
    assert modes[b"run"] == 0o555


def test_a_pack_of_programs_is_read_as_what_it_was_made_of(tmp_path: Path, source: Path) -> None:
    (source / "a" / "small").chmod(0o755)
    make_pack(source, tmp_path / "pack")

    async def listed() -> tuple[Listing, Listing]:
        pack, tree = (
            OpenedSource(SourceSpec("file", "/x"), PosixSource(one)) for one in (tmp_path / "pack", source)
        )
        try:
            return await pack.list(), await tree.list()
        finally:
            await pack.close()
            await tree.close()

    packed, tree = asyncio.run(listed())
    assert packed.layout_digest() == tree.layout_digest()
    assert [one.path for one in packed.entries if one.executable] == [b"a/small"]


def test_no_room_is_said_before_anything_is_read(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CacheFullError, match="no room for the image"):
        make_pack(source, tmp_path / "pack")
    assert list((tmp_path / "pack").iterdir()) == []


def test_two_at_once(tmp_path: Path, source: Path) -> None:
    (tmp_path / "pack").mkdir()
    fd = os.open(tmp_path / "pack", os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(DatasetError, match="another process"):
            make_pack(source, tmp_path / "pack")
    finally:
        os.close(fd)
    make_pack(source, tmp_path / "pack")


def test_a_source_that_changes_meanwhile(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = image_file.ImageFile._allocate

    def then_change(self: image_file.ImageFile) -> None:
        allocate(self)
        (source / "a" / "small").write_bytes(b"other")
        os.utime(source / "a" / "small", (1, 1))

    with monkeypatch.context() as patched:
        patched.setattr(image_file.ImageFile, "_allocate", then_change)
        with pytest.raises(SourceError, match="changed") as caught:
            make_pack(source, tmp_path / "pack")
    assert caught.value.changed
    assert list((tmp_path / "pack").iterdir()) == []
    make_pack(source, tmp_path / "pack")


def test_what_was_written_is_used_by_the_next_attempt(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it is all of it: the end comes after the last byte, and before the image has its name."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(image_file, "hashed", die)
        with pytest.raises(KeyboardInterrupt):
            make_pack(source, tmp_path / "pack")
    assert not (tmp_path / "pack" / "dataset.json").exists()
    read = PosixSource.read_into
    asked: list[bytes] = []
    monkeypatch.setattr(
        PosixSource,
        "read_into",
        lambda self, entry, *rest: (asked.append(entry.path), read(self, entry, *rest)),
    )
    made = make_pack(source, tmp_path / "pack")
    assert asked == []
    assert check_pack(tmp_path / "pack", source) == made
    assert names(tmp_path / "pack") == {".json", ".img", ".listing"}


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_an_end_before_the_manifest_costs_nothing_of_the_image(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def die(path: Path, *args: object, **kwargs: object) -> None:
        if path.name == "dataset.json":
            raise KeyboardInterrupt
        replace(path, *args, **kwargs)  # type: ignore[arg-type]

    def none(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", none)
    replace = pack_target.replace_file
    with monkeypatch.context() as patched:
        patched.setattr(pack_target, "replace_file", die)
        with pytest.raises(KeyboardInterrupt):
            make_pack(source, tmp_path / "pack")
    assert names(tmp_path / "pack") >= {".img", ".listing"} and not (tmp_path / "pack/dataset.json").exists()
    read = PosixSource.read_into
    asked: list[bytes] = []
    monkeypatch.setattr(
        PosixSource,
        "read_into",
        lambda self, entry, *rest: (asked.append(entry.path), read(self, entry, *rest)),
    )
    made = make_pack(source, tmp_path / "pack")
    assert bool(asked) is not links
    assert check_pack(tmp_path / "pack", source) == made
    assert {one.name for one in (tmp_path / "pack").iterdir()} == {"dataset.json", made.image, made.listing}


def test_the_same_image_under_another_listing(tmp_path: Path, source: Path) -> None:
    made = make_pack(source, tmp_path / "pack")
    os.utime(source / "a" / "small", (1, 1))
    again = make_pack(source, tmp_path / "pack", force=True)
    assert (again.image, again.listing != made.listing) == (made.image, True)
    assert {one.name for one in (tmp_path / "pack").iterdir()} == {"dataset.json", again.image, again.listing}
    assert check_pack(tmp_path / "pack", source) == again


def test_a_place_that_cannot_be_written(source: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot write /proc/pack: .*; "):
        make_pack(source, Path("/proc/pack"))


def test_bytes_that_the_disk_gives_back_wrong(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = image_file.chunks_of

    def damaged(image: Path) -> Iterator[bytes]:
        with image.open("r+b") as file:
            file.seek(4096)
            file.write(b"X")
        return read(image)

    monkeypatch.setattr(image_file, "chunks_of", damaged)
    with pytest.raises(ImageError, match="check the disk"):
        make_pack(source, tmp_path / "pack")
    assert not (tmp_path / "pack" / "dataset.json").exists()


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("suffix", "offset", "says"),
    [
        (".img", 1030, "differs from its manifest"),
        (".img", -1, "differs from"),
        (".listing", 30, "listing"),
        (".json", 5, "damaged"),
    ],
)
def test_damage_is_found(tmp_path: Path, source: Path, suffix: str, offset: int, says: str) -> None:
    make_pack(source, tmp_path / "pack")
    _flip(next(one for one in (tmp_path / "pack").iterdir() if one.suffix == suffix), offset)
    with pytest.raises(ImageError, match=says):
        check_pack(tmp_path / "pack")


@pytest.mark.parametrize(("suffix", "says"), [(".img", "has"), (".listing", "has not the")])
def test_a_pack_that_is_cut_short(tmp_path: Path, source: Path, suffix: str, says: str) -> None:
    make_pack(source, tmp_path / "pack")
    path = next(one for one in (tmp_path / "pack").iterdir() if one.suffix == suffix)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ImageError, match=says):
        check_pack(tmp_path / "pack")


def test_a_forged_image_with_right_digests(tmp_path: Path, source: Path) -> None:
    """A tenant can make every digest right. The metadata is still not what follows from the listing."""
    pack = tmp_path / "pack"
    made = make_pack(source, pack)
    image = pack / made.image
    data = bytearray(image.read_bytes())
    data[-4096 + 40] ^= 1
    image.write_bytes(data)
    document = json.loads((pack / "dataset.json").read_text())
    document["image"]["blake3"] = hasher(bytes(data)).hexdigest()
    for one in document["parts"]:
        one["blake3"] = hasher(bytes(data[one["offset"] : one["offset"] + one["size"]])).hexdigest()
    (pack / "dataset.json").write_text(json.dumps(document))
    with pytest.raises(ImageError, match="not laid out as its listing says"):
        check_pack(pack)


def test_nothing_to_check(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is no pack"):
        check_pack(tmp_path)
