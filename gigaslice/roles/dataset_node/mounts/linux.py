# SPDX-License-Identifier: Apache-2.0
"""Mounts of the kernel this process runs on: mount(2) and umount2(2) by the C library.

mount(8) is used for network file systems, which need its helpers, and for an image that the kernel does not mount as a
file (before Linux 6.12), which needs a loop device. It is not asked first for an image: it would make a loop device
where none is needed, and a loop device is one more thing to lose. The kernel removes it with the last mount of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gigaslice.core.text import plain
from gigaslice.roles.dataset_node.mounts.protocol import MountError, mount_errors
from gigaslice.roles.dataset_node.mounts.table import MountEntry, parse_mountinfo
from gigaslice.roles.dataset_node.sources.beneath import open_beneath

__all__ = ["EMPTY_SOURCE", "LinuxMounts"]

EMPTY_SOURCE = "gigaslice-dataset"
"""What /proc/self/mountinfo shows as the source of an empty file system that we have mounted."""

# linux/mount.h
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_DETACH, _NOFOLLOW = 2, 8
_MOUNT_SECONDS = 60.0
_HELPERS = {"nfs": "nfs-common", "nfs4": "nfs-common", "ceph": "ceph-common"}
_MOST_SAID = 400
_PROTECTED = _RDONLY | _NOSUID | _NODEV

_REMEDIES = {
    errno.EPERM: "run the dataset service privileged (CAP_SYS_ADMIN)",
    errno.EACCES: "run the dataset service privileged (CAP_SYS_ADMIN)",
    errno.ENODEV: "the kernel lacks this file system; load its module",
    errno.EINVAL: "it is damaged, or the kernel does not understand it; see dmesg",
    errno.EUCLEAN: "it is damaged; see dmesg",
    errno.ENOENT: "create the directory",
    errno.ENOTDIR: "a part of the path is a file or a symbolic link; name the directory that is meant",
    errno.ELOOP: "a part of the path is a symbolic link; name the directory that is meant",
}


class LinuxMounts:
    """The mounts of this process's mount namespace. HELPERS: where mount(8) looks for its own."""

    def __init__(self, helpers: Sequence[Path] = (Path("/sbin"), Path("/usr/sbin"))) -> None:
        self._helpers = helpers
        self._libc = ctypes.CDLL(None, use_errno=True)

    @property
    def has_erofs(self) -> bool:
        """Whether the kernel has EROFS, or a module of it that mount(2) loads."""
        with contextlib.suppress(OSError):
            if "\terofs\n" in Path("/proc/filesystems").read_text():
                return True
            release = os.uname().release
            return any(
                "/erofs.ko" in Path(f"/lib/modules/{release}/{name}").read_text(errors="replace")
                for name in ("modules.dep", "modules.builtin")
            )
        return False

    def table(self) -> tuple[MountEntry, ...]:
        """Reads /proc/self/mountinfo; for a loop device the source is the file that is behind it."""
        with mount_errors("cannot read /proc/self/mountinfo"):
            return tuple(map(_with_file, parse_mountinfo(Path("/proc/self/mountinfo").read_bytes())))

    def image(self, image: Path, where: Path) -> None:
        """Mounts the image's file itself, and by a loop device where the kernel needs one (before Linux 6.12)."""
        try:
            self._mount(str(image), where, "erofs", _PROTECTED)
        except MountError as error:
            if error.number != errno.ENOTBLK:
                raise
            self.network("erofs", str(image), where, ("loop",))

    def bind(self, source: Path, where: Path) -> None:
        """Binds, then makes it read-only: the kernel ignores the flags of the first call.

        The directory is opened first, with no link in its path, and what was opened is bound: who may write above it
        could otherwise replace a part of the path in between.
        """
        try:
            with _directory(source) as fd:
                self._mount(f"/proc/self/fd/{fd}", where, None, _BIND, shown=source)
        except OSError as error:
            raise _failure(f"cannot mount {source} at {where}", error.errno or 0) from error
        try:
            self._mount(None, where, None, _BIND | _REMOUNT | _PROTECTED)
        except MountError:
            self.unmount(where)
            raise

    def empty(self, where: Path, directories: Sequence[str] = ()) -> None:
        """Mounts a tmpfs of a few pages."""
        flags = _NOSUID | _NODEV | _NOEXEC
        self._mount(
            EMPTY_SOURCE, where, "tmpfs", flags, f"size=64k,nr_inodes={len(directories) + 2},mode=0555"
        )
        try:
            with mount_errors(f"cannot prepare {where}"):
                for name in directories:
                    (where / name).mkdir(0o555)
            self._mount(EMPTY_SOURCE, where, "tmpfs", flags | _RDONLY | _REMOUNT)
        except MountError:
            self.unmount(where)
            raise

    def unmount(self, where: Path) -> None:
        """Unmounts, at the latest when the last process that uses it is gone."""
        for flags in (_NOFOLLOW, _NOFOLLOW | _DETACH):
            if self._libc.umount2(os.fsencode(where), flags) == 0:
                return
            number = ctypes.get_errno()
            if number in (errno.EINVAL, errno.ENOENT):
                return  # not a mount point
            if number != errno.EBUSY:
                break
        raise _failure(f"cannot unmount {where}", number)

    def network(self, kind: str, source: str, where: Path, options: Sequence[str]) -> None:
        """Runs mount(8), for a minute at most."""
        chosen = ",".join(("ro", "nosuid", "nodev", *options))
        command = ["mount", "-t", kind, "-o", chosen, "--", source, str(where)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MOUNT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise MountError(
                f"{source} not mounted: no answer in {_MOUNT_SECONDS:g} s; check the server and the network",
                errno.ETIMEDOUT,
            ) from error
        except OSError as error:
            raise MountError(
                f"mount(8) cannot be run: {error.strerror}; install it", error.errno or 0
            ) from error
        if done.returncode != 0:
            message = _error_message(done.stderr) or f"exit code {done.returncode}"
            if kind in _HELPERS and not any(Path(where, f"mount.{kind}").exists() for where in self._helpers):
                package = _HELPERS[kind]
                message = (
                    f"mount.{kind} is missing; add the package {package} to the service's image ({message})"
                )
            raise MountError(f"{source} not mounted: {message}")

    def _mount(
        self,
        source: str | None,
        where: Path,
        kind: str | None,
        flags: int,
        data: str | None = None,
        *,
        shown: Path | None = None,
    ) -> None:
        result = self._libc.mount(
            None if source is None else os.fsencode(source),
            os.fsencode(where),
            None if kind is None else kind.encode(),
            ctypes.c_ulong(flags),
            None if data is None else data.encode(),
        )
        if result != 0:
            raise _failure(f"cannot mount {shown or source or 'read-only'} at {where}", ctypes.get_errno())


def _error_message(stderr: bytes) -> str:
    """What mount(8) and its helper say, on one line: the reason may be in the first or in the last one."""
    lines = (plain(line.strip()) for line in stderr.decode("utf-8", "replace").splitlines())
    return "; ".join(line for line in lines if line and not line.startswith("dmesg(1)"))[:_MOST_SAID]


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[int]:
    """An open directory. Raises OSError: ELOOP where a part of the path is a symbolic link."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = open_beneath(root, os.fsencode(path.relative_to("/")), directory=True)
    finally:
        os.close(root)
    try:
        yield fd
    finally:
        os.close(fd)


def _with_file(mount: MountEntry) -> MountEntry:
    """Returns a mount with the file behind its loop device as its source, if that is what it is mounted from."""
    device = mount.source.removeprefix("/dev/")
    if not device.startswith("loop"):
        return mount
    try:
        file = Path(f"/sys/block/{device}/loop/backing_file").read_bytes()
    except OSError:
        return mount
    return replace(mount, source=os.fsdecode(file.removesuffix(b"\n")))


def _failure(what: str, number: int) -> MountError:
    return MountError(f"{what}: {os.strerror(number)}; {_REMEDIES.get(number, 'see dmesg')}", number)
