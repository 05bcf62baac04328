# SPDX-License-Identifier: Apache-2.0
"""The kernel's own mounts: images as files and by loop devices, binds, placeholders, and what is unmounted in use.

Each story runs in a process and a mount namespace of its own, so nothing is left on the machine. Needs root.
"""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import signal
import struct
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from gigaslice.core.dataset.image import plan
from gigaslice.roles.dataset_node.mounts import MountError, top_at
from gigaslice.roles.dataset_node.mounts.linux import EMPTY_SOURCE, LinuxMounts
from gigaslice.roles.dataset_node.store import (
    Budget,
    DatasetMetadata,
    DatasetStore,
    Volume,
    VolumeSource,
    digest_of,
)
from tests.fakes.images import content, listed, write

KEY, SIZE = "ab" * 32, 5000
_NEW_MOUNTS, _PRIVATE = 0x00020000, 1 << 18 | 16384


def _in_namespace(story: Callable[[Path], None], root: Path, outcome: multiprocessing.Queue[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) or libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE), None):
        outcome.put(f"skip: no mount namespace of our own: {os.strerror(ctypes.get_errno())}")
        return
    try:
        story(root)
    except BaseException:  # noqa: BLE001  (told to the test)
        outcome.put(traceback.format_exc())
    else:
        outcome.put("")


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[Path], None]], None]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if not LinuxMounts().has_erofs:
        pytest.skip("the kernel has no EROFS")

    def run(story: Callable[[Path], None]) -> None:
        context = multiprocessing.get_context("fork")
        outcome: multiprocessing.Queue[str] = context.Queue()
        child = context.Process(target=_in_namespace, args=(story, tmp_path, outcome))
        child.start()
        said = outcome.get(timeout=60)
        child.join(60)
        if said.startswith("skip: "):
            pytest.skip(said.removeprefix("skip: "))
        assert said == "", said

    return run


class BeforeFiles(LinuxMounts):
    """The kernel of this machine as Linux before 6.12, which mounts no files."""

    def _mount(
        self, source: str | None, where: Path, kind: str | None, *flags: object, **shown: object
    ) -> None:
        if kind == "erofs" and source is not None and not source.startswith("/dev/"):
            raise MountError("as before Linux 6.12", errno.ENOTBLK)
        super()._mount(source, where, kind, *flags, **shown)


def image_in(root: Path) -> Path:
    image = root / "image.img"
    write(plan(listed([(b"a", SIZE), (b"d/b", 10)])), image)
    return image


def store_with_image(root: Path, mounts: LinuxMounts | None = None) -> tuple[DatasetStore, Volume]:
    """An open store that has the image as KEY, and a pod's volume to publish it to."""
    store = DatasetStore(root / "state", mounts or LinuxMounts(), budget=Budget(keep_free=0.0))
    store.open()
    data = image_in(root).read_bytes()
    part = store.begin_fetch(DatasetMetadata(KEY, len(data), "s3://b/c"))
    part.image.write_bytes(data)
    store.complete(part, digest_of(part.image))
    (root / "pod").mkdir()
    return store, Volume("v", str(root / "pod/mount"), "u", "ns", "p")


@pytest.mark.parametrize("kernel", [LinuxMounts, BeforeFiles])
def test_an_image_is_mounted_from_its_file_and_by_a_loop_device(play, kernel):
    def story(root: Path) -> None:
        image, mounts, where = image_in(root), kernel(), root / "where"
        where.mkdir()
        mounts.image(image, where)
        assert sorted(one.name for one in where.iterdir()) == ["a", "d"]
        top = top_at(mounts.table(), str(where))
        assert top.filesystem == "erofs" and {"ro", "nosuid", "nodev"} <= top.options
        assert top.source == str(image)
        assert ("/dev/loop" in Path("/proc/self/mountinfo").read_text()) == (kernel is BeforeFiles)
        with pytest.raises(OSError):
            (where / "new").touch()
        mounts.unmount(where)
        assert list(where.iterdir()) == []
        mounts.unmount(where)  # not mounted any more: no failure

    play(story)


def test_binds_and_placeholders_are_read_only_and_one_covers_the_other(play):
    def story(root: Path) -> None:
        mounts, source, where = LinuxMounts(), root / "source", root / "w h e r e"
        source.mkdir()
        (source / "file").write_text("x")
        where.mkdir()
        mounts.empty(where, ["train", "test"])
        assert sorted(one.name for one in where.iterdir()) == ["test", "train"]
        assert top_at(mounts.table(), str(where)).source == EMPTY_SOURCE
        mounts.bind(source, where / "train")
        for place in (where, where / "train", where / "test"):
            with pytest.raises(OSError):
                (place / "new").touch()
        assert (where / "train/file").read_text() == "x"
        mounts.bind(source, where)
        assert (where / "file").read_text() == "x"
        mounts.unmount(where)
        assert (where / "train/file").read_text() == "x"

    play(story)


def test_no_link_leads_a_bind_elsewhere(play):
    def story(root: Path) -> None:
        mounts, where = LinuxMounts(), root / "where"
        (root / "data" / "below").mkdir(parents=True)
        where.mkdir()
        (root / "data" / "link").symlink_to("/etc")
        (root / "link").symlink_to("data")
        for path in ("data/link", "data/link/ssl", "link/below"):
            with pytest.raises(MountError, match="symbolic link; name the directory") as caught:
                mounts.bind(root / path, where)
            assert str(root / path) in str(caught.value)
        with pytest.raises(MountError, match="none at"):
            mounts.bind(root / "none", where)
        assert top_at(mounts.table(), str(where)) is None
        (root / "data" / "below" / "mine").touch()
        real = mounts._mount

        def swapped(*given, **named):
            if not (root / "data" / "old").exists():
                (root / "data" / "below").rename(root / "data" / "old")
                (root / "data" / "below").symlink_to("/etc")
            real(*given, **named)

        mounts._mount = swapped
        mounts.bind(root / "data" / "below", where)
        assert [one.name for one in where.iterdir()] == ["mine"], "what was checked is what is mounted"
        assert top_at(mounts.table(), str(where)).root.endswith("/data/old")

    play(story)


@pytest.mark.parametrize("kernel", [LinuxMounts, BeforeFiles])
def test_a_reader_goes_on_when_its_dataset_is_unmounted_and_deleted(play, kernel):
    def story(root: Path) -> None:
        store, volume = store_with_image(root, kernel())
        store.publish(volume, [VolumeSource(key=KEY)])
        store.publish(volume, [VolumeSource(key=KEY)])
        reader = os.open(f"{volume.target}/a", os.O_RDONLY)
        expected = os.pread(reader, 1 << 20, 0)
        assert expected == content(b"a", SIZE)
        assert KEY in store.evict([KEY])
        store.close()
        again = DatasetStore(root / "state", kernel(), budget=Budget(keep_free=0.0))
        again.open()
        assert again.published("v"), "a service that starts again finds what is mounted"
        again.remove("v", volume.target)
        assert not Path(volume.target).exists()
        assert again.evict([KEY]) == {}
        assert os.pread(reader, 1 << 20, 0) == expected
        os.close(reader)
        assert not [one for one in LinuxMounts().table() if str(root) in one.point]

    play(story)


def test_a_damaged_image_is_refused_by_the_kernel_and_named(play):
    def story(root: Path) -> None:
        image = root / "image.img"
        image.write_bytes(bytes(8192))
        (root / "where").mkdir()
        with pytest.raises(MountError) as caught:
            LinuxMounts().image(image, root / "where")
        assert caught.value.number in (errno.EINVAL, errno.EUCLEAN)
        with pytest.raises(MountError, match="create the directory"):
            LinuxMounts().image(image, root / "none")

    play(story)


_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLONE, _RECURSIVE, _EMPTY_PATH, _IDMAP = 1, 0x8000, 0x1000, 0x00100000
_FIRST_UID = 100_000


def _user_namespace() -> int:
    """A descriptor of a user namespace whose root is user 100000 here, as the kubelet makes for `hostUsers: false`."""
    ready, libc = os.pipe(), ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        libc.unshare(0x10000000)
        os.write(ready[1], b"x")
        signal.pause()
    os.read(ready[0], 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text(f"0 {_FIRST_UID} 65536")
    found = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return found


def _bind_mapped(source: Path, where: Path) -> None:
    """Binds SOURCE as a runtime does for a pod with a user namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _CLONE | _RECURSIVE | os.O_CLOEXEC
    tree = libc.syscall(_OPEN_TREE, -100, bytes(source), flags)
    assert tree >= 0, os.strerror(ctypes.get_errno())
    attributes = struct.pack("=QQQQ", _IDMAP, 0, 0, _user_namespace())
    done = libc.syscall(_MOUNT_SETATTR, tree, b"", _EMPTY_PATH | _RECURSIVE, attributes, len(attributes))
    assert done == 0, os.strerror(ctypes.get_errno())
    assert libc.syscall(_MOVE_MOUNT, tree, b"", -100, bytes(where), 4) == 0, os.strerror(ctypes.get_errno())


@pytest.mark.parametrize("directories", [(), ("one", "two")])
def test_a_volume_can_be_mapped_to_the_users_of_a_pod_with_its_own(play, directories):
    """`hostUsers: false`: the placeholder and the images, alone and as directories of it."""

    def story(root: Path) -> None:
        store, volume = store_with_image(root)
        (root / "inside").mkdir()
        store.placeholder(volume, directories)
        store.publish(volume, [VolumeSource(key=KEY, directory=one) for one in directories or ("",)])
        _bind_mapped(Path(volume.target), root / "inside")
        for one in directories or ("",):
            file = root / "inside" / one / "a"
            assert file.read_bytes() == content(b"a", SIZE)
            assert file.stat().st_uid == file.stat().st_gid == _FIRST_UID
            with pytest.raises(OSError):
                file.chmod(0o777)

    play(story)


def test_a_large_image_that_is_deleted_while_it_is_read_is_not_cut(play):
    """A reader in a detached mount, which no mount table shows. Its room comes back when it ends."""

    def story(root: Path) -> None:
        size = 100 << 20
        image = root / "large.img"
        write(plan(listed([(b"a", size)])), image)
        store = DatasetStore(root / "state", LinuxMounts(), budget=Budget(keep_free=0.0))
        store.open()
        part = store.begin_fetch(DatasetMetadata(KEY, image.stat().st_size, "s3://b/c"))
        image.replace(part.image)
        store.complete(part, digest_of(part.image))
        (root / "pod").mkdir()
        volume = Volume("v", str(root / "pod/mount"), "u", "ns", "p")
        store.publish(volume, [VolumeSource(key=KEY)])
        kept = Path(volume.target, "a").open("rb")  # noqa: SIM115  (it outlives the mount)
        store.remove(volume.id, volume.target)
        assert store.evict([KEY]) == {}
        until = time.monotonic() + 60
        while list((root / "state/trash").iterdir()):
            assert time.monotonic() < until
            time.sleep(0.01)
        for offset in range(size - (8 << 20), 0, -(16 << 20)):
            os.posix_fadvise(kept.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(kept.fileno(), 4096, offset) == content(b"a", size)[offset : offset + 4096]
        kept.close()
        store.close()

    play(story)
