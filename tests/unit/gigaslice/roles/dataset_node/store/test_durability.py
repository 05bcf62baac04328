# SPDX-License-Identifier: Apache-2.0
"""What is on the disk before the next step. A kill does not show it, since the kernel has all that was written."""

import os
import re
from pathlib import Path

import pytest

from gigaslice.core.dataset.errors import DatasetError
from gigaslice.roles.dataset_node.store import VolumeSource, digest_of
from tests.unit.gigaslice.roles.dataset_node.store.conftest import KEYS

KEY = KEYS[1]


@pytest.fixture
def steps(world, monkeypatch):
    """What is synced, renamed and removed below the store's directory, in order; what is repeated stands once."""
    root, found = world.root / "state", []

    def note(*step):
        shown = tuple(str(Path(one)).replace(f"{root}/", "").replace(KEY, "K") for one in step)
        shown = tuple(re.sub(r"[.][0-9a-f]{16}[.]", ".", one) for one in shown)
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


def in_order(steps, *chosen):
    """Whether the chosen steps were made, in this order; a thread of the trash makes some of its own in between."""
    return [step for step in steps if step in chosen] == list(chosen)


def test_bytes_then_digest_then_the_image_s_name_then_the_digest_s(world, steps):
    part = world.store.begin_fetch(world.metadata(1))
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
    world.emptied()
    thrown = ("rename", "objects/K.img", "trash/K.img")
    assert in_order(steps, thrown, ("remove", "objects/K.json"))
    # Before that its old name might come back after a crash, with nothing in it.
    assert in_order(steps, thrown, ("sync", "objects"), ("sync", "trash"), ("remove", "trash/K.img"))


def test_an_image_that_was_begun_goes_after_what_is_known_of_it(world, steps):
    world.store.begin_fetch(world.metadata(1)).bits.write_bytes(b"bits")
    steps.clear()
    world.store.discard(KEY)
    world.emptied()
    thrown = ("rename", "partial/K.img", "trash/K.img")
    assert in_order(steps, ("remove", "partial/K.json"), ("remove", "partial/K.bits"), thrown)
    assert in_order(steps, thrown, ("sync", "partial"), ("sync", "trash"), ("remove", "trash/K.img"))


def test_an_image_goes_when_its_tree_has_its_name(world, steps):
    def unpack(_image, directory):
        directory.mkdir()

    world.mounts.has_erofs, world.unpack = False, unpack
    world.again()
    world.fetch(1)
    volume = world.volume("p")
    steps.clear()
    world.store.publish(volume, (VolumeSource(key=KEY, name="d"),))
    first = [step for step in steps if "K" in step[1] or step[1] == "objects"][:3]
    assert first == [
        ("rename", "partial/K.tree", "objects/K.tree"),
        ("sync", "objects"),
        ("rename", "objects/K.img", "trash/K.img"),
    ]


def test_a_record_is_on_the_disk_before_anything_is_mounted(world, steps):
    world.fetch(1)
    volume = world.volume("p")
    steps.clear()
    mounted = []
    bind = world.mounts.bind
    world.mounts.bind = lambda source, where: (mounted.append(list(steps)), bind(source, where))
    world.store.publish(volume, (VolumeSource(key=KEY, name="d"),))
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
        world.store.publish(world.volume("p"), (VolumeSource(key=KEY, name="d"),))
    assert not list((world.root / "state/partial").iterdir())
    world.store.publish(world.volume("p"), (VolumeSource(key=KEY, name="d"),))
    assert (world.root / f"state/objects/{KEY}.tree").is_dir()
