# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as one tree; every message is one line with what failed, why, and what to do about it.

::

    VcudaError                    exit code of a command
    ├── UsageError                2   (also a ValueError) the caller passed something wrong
    │   ├── BadSizeError              a size that cannot be parsed
    │   ├── BadUuidError              a GPU UUID that cannot be parsed
    │   └── InvalidArgumentError      VC_EINVAL: a value out of range
    ├── FileStateError            1   a limits page or a ledger is not as it should be
    │   ├── NotFoundError             VC_ENOENT: no such file, or no such GPU in the page
    │   ├── ExistsError               VC_EEXIST
    │   ├── CorruptError              VC_ECORRUPT
    │   ├── VersionError              VC_EVERSION
    │   ├── MismatchError             VC_EMISMATCH: page and ledger belong to different allocations
    │   ├── FullError                 VC_EFULL: no process slot left
    │   └── BusyError                 VC_EBUSY: another process writes, leases or executes the file
    ├── NoRoomError               1   VC_ENOMEM: the quota has no room
    ├── SystemError_              1   the operating system refused: VC_EIO
    │   └── NoSpaceError              VC_ENOSPC: the file system is full
    └── EnvironmentMissingError   3   this machine lacks something
        ├── PermissionDeniedError     VC_EACCES
        ├── UnsupportedError          VC_ENOSYS: the kernel or the libc lacks something
        ├── NoDriverError             VC_ENODRIVER: no CUDA or NVML driver
        └── LibraryMissingError       libvcuda.so is not part of this installation

The native code answers with negative numbers whose names and sentences live in ``native/base/status.def``; STATUS
below maps the names to classes, and a test holds the two lists together. This module does no I/O.
"""

from __future__ import annotations

import os

__all__ = [
    "STATUS",
    "BadSizeError",
    "BadUuidError",
    "BusyError",
    "CorruptError",
    "EnvironmentMissingError",
    "ExistsError",
    "FileStateError",
    "FullError",
    "InvalidArgumentError",
    "LibraryMissingError",
    "MismatchError",
    "NoDriverError",
    "NoRoomError",
    "NoSpaceError",
    "NotFoundError",
    "PermissionDeniedError",
    "SystemError_",
    "UnsupportedError",
    "UsageError",
    "VcudaError",
    "VersionError",
    "printable",
]


def printable(text: str | bytes | os.PathLike[str]) -> str:
    r"""TEXT on one line for people: control characters and broken encodings become ``\x..`` escapes."""
    raw = os.fsdecode(text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in raw)


class VcudaError(Exception):
    """Base of everything this package raises on purpose.

    WHAT is the operation with its object ("cannot read the ledger /x/ledger"), CAUSE the reason, and REMEDY what the
    reader can do; a class has a remedy of its own that is used when none is given.
    """

    exit_code = 1
    remedy = ""

    def __init__(self, what: str, cause: str = "", remedy: str = "") -> None:
        self.what = what
        self.cause = cause
        if remedy:
            self.remedy = remedy
        head = ": ".join(printable(part) for part in (what, cause) if part)
        super().__init__("; ".join(part for part in (head, printable(self.remedy)) if part))


class UsageError(VcudaError, ValueError):
    """The caller passed something wrong."""

    exit_code = 2


class BadSizeError(UsageError):
    """A size that cannot be parsed or is out of range."""


class BadUuidError(UsageError):
    """A GPU UUID that cannot be parsed."""

    remedy = "write it as nvidia-smi -L shows it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, or MIG-…"


class InvalidArgumentError(UsageError):
    """VC_EINVAL: a value out of range."""

    remedy = "a page holds 1 to 16 different GPUs, each with 1 byte to 128 TiB and 0 to 100 percent"


class FileStateError(VcudaError):
    """A limits page or a ledger is not as it should be."""


class NotFoundError(FileStateError):
    """VC_ENOENT: no such file, or no such GPU in the page."""

    remedy = "check the path"


class ExistsError(FileStateError):
    """VC_EEXIST: the file to be created is there already."""

    remedy = "choose another directory, or remove it when no process uses it"


class CorruptError(FileStateError):
    """VC_ECORRUPT: wrong size, magic, checksum or value."""

    remedy = (
        "check the path; if it is right, end the processes that use the quota and make its directory anew"
    )


class VersionError(FileStateError):
    """VC_EVERSION: written by a version of the format that is not known here."""

    remedy = "use the version of gigaslice that wrote it, or a newer one"


class MismatchError(FileStateError):
    """VC_EMISMATCH: page and ledger belong to different allocations."""

    remedy = "remove both and create them anew"


class FullError(FileStateError):
    """VC_EFULL: every process slot of the ledger is taken."""

    remedy = "end some of the processes that share the quota"


class BusyError(FileStateError):
    """VC_EBUSY: another process writes the file, has a lease on it, or executes it."""

    remedy = "try again; the kernel ends a lease after /proc/sys/fs/lease-break-time (45 seconds)"


class NoRoomError(VcudaError):
    """VC_ENOMEM: the quota has no room for the request."""

    remedy = "ask for less or raise the limit"


class SystemError_(VcudaError):  # noqa: N801, N818  SystemError is taken
    """VC_EIO: the operating system refused a file operation."""

    remedy = "check that the file system has room and is not read-only"


class NoSpaceError(SystemError_):
    """VC_ENOSPC: the file system is full."""

    remedy = "free some space"


class EnvironmentMissingError(VcudaError):
    """This machine lacks something."""

    exit_code = 3


class PermissionDeniedError(EnvironmentMissingError):
    """VC_EACCES: the file or its directory may not be read or written."""

    remedy = "run as the user who owns it, or as root"


class UnsupportedError(EnvironmentMissingError):
    """VC_ENOSYS: the kernel or the C library lacks something."""

    remedy = "vcuda doctor shows what is missing"


class NoDriverError(EnvironmentMissingError):
    """VC_ENODRIVER: no CUDA or NVML driver could be found or started."""

    remedy = "install the NVIDIA driver, or run where /dev/nvidia* and libnvidia-ml.so.1 are visible"


class LibraryMissingError(EnvironmentMissingError):
    """libvcuda.so is not part of this installation."""

    remedy = "reinstall gigaslice, or run make native in a source tree"


STATUS: dict[str, type[VcudaError]] = {
    "VC_EINVAL": InvalidArgumentError,
    "VC_ENOMEM": NoRoomError,
    "VC_ENOENT": NotFoundError,
    "VC_EEXIST": ExistsError,
    "VC_EACCES": PermissionDeniedError,
    "VC_ECORRUPT": CorruptError,
    "VC_EVERSION": VersionError,
    "VC_EMISMATCH": MismatchError,
    "VC_EFULL": FullError,
    "VC_EIO": SystemError_,
    "VC_ENOSPC": NoSpaceError,
    "VC_EBUSY": BusyError,
    "VC_ENOSYS": UnsupportedError,
    "VC_ENODRIVER": NoDriverError,
}
