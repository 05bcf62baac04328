"""What is on the disk before the next step. A kill does not show it, since the kernel has all that was written."""

import os
from pathlib import Path

import pytest

from gigaslice.dataset.errors import DatasetError
from gigaslice.dataset_node.store import Piece, digest_of
from tests.unit.gigaslice.dataset_node.store.conftest import KEYS

KEY = KEYS[1]


@pytest.fixture
def steps(world, monkeypatch):
    """What is synced, renamed and removed below the store's directory, in order; what is repeated stands once."""
    root, found = world.root / "state", []

    def note(*step):
        shown = tuple(str(Path(one)).replace(f"{root}/", "").replace(KEY, "K") for one in step)
        if not found or found[-1] != shown:
            found.append(shown)

    def syncing(real):
        def sync(fd):
            note("sync", Path(f"/proc/self/fd/{fd}").readlink())
            real(fd)

        return sync

    def renaming(path, target, real=Path.replace):
        note("rename", path, target)
        return real(path, target)

    def removing(path, missing_ok=False, real=Path.unlink):
        if path.exists():
            note("remove", path)
        real(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", syncing(os.fsync))
    monkeypatch.setattr(os, "fdatasync", syncing(os.fdatasync))
    monkeypatch.setattr(Path, "replace", renaming)
    monkeypatch.setattr(Path, "unlink", removing)
    return found


def test_bytes_then_digest_then_the_image_s_name_then_the_digest_s(world, steps):
    part = world.store.begin(world.about(1))
    part.image.write_bytes(b"\1" * 100)
    part.bits.write_bytes(b"bits")
    steps.clear()
    world.store.complete(part, digest_of(part.image))
    assert steps == [
        ("sync", "partial/K.img"),
        ("sync", "partial/.K.json.new"),
        ("rename", "partial/.K.json.new", "partial/K.json"),
        ("sync", "partial"),
        ("rename", "partial/K.img", "objects/K.img"),
        ("sync", "objects"),
        ("rename", "partial/K.json", "objects/K.json"),
        ("sync", "objects"),
        ("sync", "partial"),
        ("remove", "partial/K.bits"),
    ]


def test_what_is_known_of_a_dataset_goes_after_its_image(world, steps):
    world.fetch(1)
    steps.clear()
    assert not world.store.evict([KEY])
    assert steps == [("remove", "objects/K.img"), ("remove", "objects/K.json")]


def test_an_image_goes_when_its_tree_has_its_name(world, steps):
    def unpack(_image, directory):
        directory.mkdir()

    world.mounts.has_erofs, world.unpack = False, unpack
    world.again()
    world.fetch(1)
    volume = world.volume("p")
    steps.clear()
    world.store.publish(volume, (Piece(key=KEY, name="d"),))
    assert [step for step in steps if "K" in step[1] or step[1] == "objects"] == [
        ("rename", "partial/K.tree", "objects/K.tree"),
        ("sync", "objects"),
        ("remove", "objects/K.img"),
    ]


def test_a_record_is_on_the_disk_before_anything_is_mounted(world, steps):
    world.fetch(1)
    volume = world.volume("p")
    steps.clear()
    mounted = []
    bind = world.mounts.bind
    world.mounts.bind = lambda source, where: (mounted.append(list(steps)), bind(source, where))
    world.store.publish(volume, (Piece(key=KEY, name="d"),))
    assert mounted[0][:2] == [
        ("sync", "records/.csi-p.json.new"),
        ("rename", "records/.csi-p.json.new", "records/csi-p.json"),
    ]


def test_unpacking_that_failed_is_tried_again_without_its_remains(world):
    fails = [OSError(28, "No space left on device")]

    def unpack(_image, directory):
        directory.mkdir()
        if fails:
            raise fails.pop()

    world.mounts.has_erofs, world.unpack = False, unpack
    world.again()
    world.fetch(1)
    with pytest.raises(DatasetError, match="No space left"):
        world.store.publish(world.volume("p"), (Piece(key=KEY, name="d"),))
    assert not list((world.root / "state/partial").iterdir())
    world.store.publish(world.volume("p"), (Piece(key=KEY, name="d"),))
    assert (world.root / f"state/objects/{KEY}.tree").is_dir()
