# SPDX-License-Identifier: Apache-2.0
"""The cache of a node: what gets room, what is mounted, what survives."""

import errno
import json
import os
from pathlib import Path

import pytest

from gigaslice.core.dataset.errors import CacheFullError, ImageError, QuotaError, RequestError
from gigaslice.core.errors import LockedError
from gigaslice.roles.dataset_node.mounts import MountError
from gigaslice.roles.dataset_node.store import Volume, VolumeSource
from tests.unit.gigaslice.roles.dataset_node.store.conftest import KEYS


def piece(number, directory=""):
    return VolumeSource(key=KEYS[number], directory=directory, name=f"d{number}")


def keys(world):
    return {one.metadata.key: one.complete for one in world.store.stored()}


def test_a_dataset_is_ready_when_all_of_it_is_there(world):
    metadata = world.metadata(1)
    part = world.store.begin_fetch(metadata)
    assert not part.resumed and part.image.stat().st_size == 100
    assert world.store.ready(metadata.key) is None
    part.bits.write_bytes(b"half")
    world.store.complete(part, "d")
    assert world.store.ready(metadata.key).digest == "d"
    assert sorted(path.suffix for path in (world.root / "state/objects").iterdir()) == [".img", ".json"]
    assert not list((world.root / "state/partial").iterdir())


def test_a_fetch_that_was_interrupted_is_resumed(world):
    part = world.store.begin_fetch(world.metadata(1))
    part.image.write_bytes(b"x" * 100)
    part.bits.write_bytes(b"1")
    world.again()
    again = world.store.begin_fetch(world.metadata(1))
    assert again.resumed and again.image.read_bytes() == b"x" * 100 and again.bits.read_bytes() == b"1"


@pytest.mark.parametrize("size", [99, 101])
def test_a_file_of_another_size_never_becomes_a_dataset(world, size):
    part = world.store.begin_fetch(world.metadata(1, 100))
    os.truncate(part.image, size)
    with pytest.raises(ImageError, match=f"{size} bytes in place of 100"):
        world.store.complete(part, "d")
    assert world.store.ready(KEYS[1]) is None


def test_bytes_that_a_fetch_has_on_the_disk_are_promised_no_more(world, monkeypatch):
    """While room for a file is taken, the disk has less of it already, and nobody is told twice."""
    rooms, taken = [], os.posix_fallocate

    def taking(fd, offset, size):
        rooms.append(world.store.room())
        taken(fd, offset, size)
        rooms.append(world.store.room())

    monkeypatch.setattr(os, "posix_fallocate", taking)
    world.store.begin_fetch(world.metadata(1, 600))
    assert rooms == [400, 400]


def test_room_is_made_of_what_was_used_least_recently_and_never_of_what_is_in_use(world):
    for number in (1, 2, 3):
        world.now += 10
        world.fetch(number, 250)
    held = world.volume("holds")
    world.store.publish(held, [piece(1)])
    world.now += 10
    world.fetch(4, 200)  # 240 wanted, 250 free
    assert set(keys(world)) == {KEYS[1], KEYS[2], KEYS[3], KEYS[4]}
    world.fetch(5, 200)
    assert set(keys(world)) == {KEYS[1], KEYS[3], KEYS[4], KEYS[5]}


def test_without_any_room_nothing_is_deleted_and_the_text_says_what_to_do(world):
    world.fetch(1, 600)
    world.fetch(2, 300)
    world.store.publish(world.volume("holds"), [piece(1)])
    with pytest.raises(CacheFullError, match=r"no room for s3://bucket/3: .* use mode: local"):
        world.store.begin_fetch(world.metadata(3, 400))
    assert set(keys(world)) == {KEYS[1], KEYS[2]}


def test_a_disk_that_is_filled_from_outside_is_noticed(world):
    world.outside = 950
    with pytest.raises(CacheFullError):
        world.store.begin_fetch(world.metadata(1, 100))


def test_a_task_that_waits_keeps_its_dataset(world):
    metadata = world.fetch(1, 600)
    world.store.pin(world.volume("waits"), metadata)
    with pytest.raises(CacheFullError):
        world.store.begin_fetch(world.metadata(2, 600))
    world.store.unpin("csi-waits", metadata.key)
    world.store.begin_fetch(world.metadata(2, 600))
    assert keys(world) == {KEYS[2]: False}


def test_a_namespace_has_no_more_than_its_quota(world):
    world.quotas = {"team": 250}
    world.again()
    for number in (1, 2, 3):
        world.fetch(number, 100)
    mine, other = world.volume("mine", "team"), world.volume("other", "team")
    world.store.pin(mine, world.metadata(1))
    world.store.publish(mine, [piece(1)])
    world.store.unpin(mine.id, KEYS[1])
    world.store.pin(other, world.metadata(1))
    world.store.pin(other, world.metadata(2))
    with pytest.raises(QuotaError, match="namespace team may use 250 B"):
        world.store.pin(other, world.metadata(3))
    world.store.pin(world.volume("elsewhere", "others"), world.metadata(3))
    world.store.unpin(other.id, KEYS[2])
    world.store.pin(other, world.metadata(3))


def test_a_volume_is_mounted_once_however_often_it_is_asked_for(world):
    world.fetch(1)
    one, two = world.volume("a"), world.volume("b")
    for volume in (one, two, one, two):
        world.store.publish(volume, [piece(1)])
        assert world.store.published(volume.id)
    assert len([call for call, _ in world.mounts.calls if call == "image"]) == 1
    assert len(world.mounts.at(one.target)) == len(world.mounts.at(two.target)) == 1
    assert {volume.pod for volume in world.store.stored()[0].holders} == {"a", "b"}


def test_a_placeholder_is_covered_by_the_data(world):
    world.fetch(1)
    volume = world.volume("a")
    world.store.placeholder(volume)
    world.store.placeholder(volume)
    assert world.mounts.at(volume.target) == ["gigaslice-dataset"]
    assert not world.store.published(volume.id)
    world.store.publish(volume, [piece(1)])
    assert len(world.mounts.at(volume.target)) == 2 and world.store.published(volume.id)
    world.store.remove(volume.id, volume.target)
    assert world.mounts.at(volume.target) == [] and not Path(volume.target).exists()


def test_several_datasets_of_one_volume_are_directories_of_it(world):
    world.fetch(1)
    world.fetch(2)
    volume = world.volume("a")
    pieces = [piece(1, "train"), piece(2, "test")]
    world.mounts.refuse["bind"] = MountError("no", errno.EPERM)
    with pytest.raises(MountError):
        world.store.publish(volume, pieces)
    world.mounts.refuse.clear()
    world.store.publish(volume, pieces)
    assert world.mounts.at(f"{volume.target}/train")[0].endswith(f"{KEYS[1]}.img")
    assert world.mounts.at(f"{volume.target}/test")[0].endswith(f"{KEYS[2]}.img")
    world.store.remove(volume.id, volume.target)
    assert [one.point for one in world.mounts.table() if "pods" in one.point] == []


def test_removing_what_is_not_there_is_no_failure(world):
    volume = world.volume("a")
    world.store.remove(volume.id, volume.target)
    world.fetch(1)
    world.store.publish(volume, [piece(1)])
    world.store.remove(volume.id, volume.target)
    world.store.remove(volume.id, volume.target)
    assert world.store.records() == {}


def test_local_mode_binds_a_directory_that_is_there(world, tmp_path):
    (tmp_path / "nfs").mkdir()
    volume = world.volume("a")
    world.store.publish(volume, [VolumeSource(path=str(tmp_path / "nfs"))])
    assert world.store.published(volume.id)
    assert keys(world) == {}


@pytest.mark.parametrize(
    ("volume_id", "target"), [("../x", "/pods/a"), ("", "/pods/a"), ("a", "pods/a"), ("a", "/pods/../etc")]
)
def test_a_senseless_volume_is_refused(world, volume_id, target):
    world.fetch(1)
    with pytest.raises(RequestError):
        world.store.publish(Volume(volume_id, target, "u", "n", "p"), [piece(1)])
    assert world.mounts.table() == () or all("pods" not in one.point for one in world.mounts.table())


def test_a_target_that_something_else_is_mounted_at_is_left_alone(world, tmp_path):
    world.fetch(1)
    volume = world.volume("a")
    Path(volume.target).mkdir()
    world.mounts.network("nfs", "server:/x", tmp_path / "pods/a/mount", ())
    with pytest.raises(MountError, match="taken: server:/x"):
        world.store.publish(volume, [piece(1)])
    assert world.mounts.at(volume.target) == ["server:/x"]


def test_a_service_that_starts_again_finds_everything(world):
    world.fetch(1)
    volume = world.volume("a")
    world.store.publish(volume, [piece(1)])
    before = world.mounts.table()
    world.again()
    assert world.mounts.table() == before
    assert world.store.published(volume.id)
    assert world.store.evict([KEYS[1]]) == {KEYS[1]: "in use by default/a"}


def test_after_a_reboot_the_volumes_of_pods_that_are_there_are_mounted_again(world):
    world.fetch(1)
    world.fetch(2)
    world.pods = {"stays"}
    stays, gone = world.volume("stays"), world.volume("gone")
    world.store.publish(stays, [piece(1)])
    world.store.publish(gone, [piece(2)])
    world.mounts.reboot()
    world.again()
    assert set(world.store.records()) == {stays.id}
    assert KEYS[1] in world.store.evict([KEYS[1], KEYS[2]]), "the kubelet is about to ask for it again"
    world.store.publish(stays, [piece(1)])
    assert world.store.published(stays.id)


def test_a_record_that_was_being_replaced_is_removed_and_is_no_fault(world, capsys):
    world.fetch(1)
    volume = world.volume("a")
    world.store.publish(volume, [piece(1)])
    records = world.root / "state/records"
    (records / ".csi-a.json.new").write_bytes((records / "csi-a.json").read_bytes()[:30])
    world.again()
    assert list(world.store.records()) == [volume.id]
    assert [path.name for path in records.iterdir()] == ["csi-a.json"]
    assert "left out" not in "".join(capsys.readouterr())


def test_what_is_mounted_is_in_use_also_without_its_record(world):
    world.fetch(1)
    volume = world.volume("a")
    world.store.publish(volume, [piece(1)])
    (world.root / "state/records" / f"{volume.id}.json").write_text("garbage")
    world.again()
    assert world.store.evict([KEYS[1]]) == {KEYS[1]: "in use: it is still mounted"}
    world.store.remove(volume.id, volume.target)
    assert world.store.evict([KEYS[1]]) == {}


def test_an_image_that_was_changed_is_compared_again_and_removed_if_it_is_another(world):
    metadata = world.fetch(1)
    image = world.root / "state/objects" / f"{metadata.key}.img"
    os.utime(image, (1, 1))
    assert world.store.ready(metadata.key).key == metadata.key, "touched, and the same"
    image.write_bytes(b"z" * 100)
    with pytest.raises(ImageError, match="has to be fetched again"):
        world.store.publish(world.volume("a"), [piece(1)])
    assert keys(world) == {} and not image.exists()


@pytest.mark.parametrize("damage", ["truncate", "description", "no description", "empty directory"])
def test_what_is_not_whole_after_a_start_is_removed(world, damage):
    metadata = world.fetch(1)
    objects = world.root / "state/objects"
    image, description = objects / f"{metadata.key}.img", objects / f"{metadata.key}.json"
    if damage == "truncate":
        os.truncate(image, 50)
    elif damage == "description":
        description.write_text(description.read_text().replace("bucket", "bukket"))
    elif damage == "no description":
        description.unlink()
    else:
        image.unlink()
    world.again()
    assert keys(world) == {} and not list(objects.iterdir())


def test_two_services_never_share_a_directory(world):
    with pytest.raises(LockedError, match="stop it first"):
        type(world)(world.root)


def test_what_is_idle_is_named_and_deleted(world):
    world.fetch(1)
    world.now += 100
    world.fetch(2)
    assert world.store.idle(50) == (KEYS[1],)
    assert world.store.idle() == (KEYS[1], KEYS[2])
    assert world.store.evict([KEYS[1], KEYS[3]]) == {KEYS[3]: "not in the cache"}
    assert set(keys(world)) == {KEYS[2]}


def test_a_clock_that_was_ahead_protects_nothing(world):
    world.now += 1e9
    world.fetch(1)
    world.now -= 1e9
    world.fetch(2)
    world.again()
    world.now += 10
    assert set(world.store.idle(5)) == {KEYS[1], KEYS[2]}


def test_a_partial_dataset_that_is_not_asked_for_again_goes(world):
    world.store.begin_fetch(world.metadata(1))
    world.again()
    assert keys(world) == {KEYS[1]: False}
    world.now += 30 * 86400
    world.again()
    assert keys(world) == {}


def test_a_directory_of_the_kubelet_is_used_and_one_that_cannot_be_made_is_named(world):
    there, away = world.volume("a"), world.volume("b")
    Path(there.target).mkdir()
    world.store.placeholder(there)
    assert len(world.mounts.at(there.target)) == 1
    made = world.volume("c")
    world.store.placeholder(made)
    assert Path(made.target).stat().st_mode & 0o027 == 0, "nobody else may look into it"
    Path(away.target).parent.rmdir()
    Path(away.target).parent.write_bytes(b"")
    with pytest.raises(MountError, match=f"cannot make {away.target}: Not a directory"):
        world.store.placeholder(away)


def test_without_erofs_the_image_is_unpacked(world):
    def unpack(image, directory):
        directory.mkdir()
        (directory / "file").write_bytes(image.read_bytes())

    world.mounts.has_erofs, world.unpack = False, unpack
    world.again()
    metadata = world.fetch(1)
    volume = world.volume("a")
    world.store.publish(volume, [piece(1)])
    assert world.mounts.at(volume.target) == ["/dev/sda1"] and world.store.published(volume.id)
    assert world.store.evict([metadata.key])
    world.again()
    world.store.publish(volume, [piece(1)])
    assert world.store.evict([metadata.key]) == {metadata.key: "in use by default/a"}
    world.store.remove(volume.id, volume.target)
    assert world.store.evict([metadata.key]) == {}
    assert not list((world.root / "state/objects").iterdir())


def test_an_image_that_the_kernel_refuses_is_named(world):
    world.fetch(1)
    world.mounts.refuse["image"] = MountError("structure needs cleaning", errno.EUCLEAN)
    with pytest.raises(ImageError, match="the kernel refuses the image"):
        world.store.publish(world.volume("a"), [piece(1)])


def test_a_record_has_the_form_that_nodes_have_on_their_disks(world):
    """Of all versions of the service: it is read after an upgrade, and after a downgrade."""
    world.fetch(1)
    volume = world.volume("a")
    world.store.publish(volume, [piece(1)])
    path = world.store._paths.record(volume.id)
    body = json.loads(path.read_text())["body"]
    assert sorted(body) == ["created", "pieces", "volume"]
    assert body["pieces"] == [{"directory": "", "key": KEYS[1], "name": "d1", "path": ""}]
    assert world.again().records()[volume.id].volume_sources == (piece(1),)
