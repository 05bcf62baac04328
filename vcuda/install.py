# SPDX-License-Identifier: Apache-2.0
"""Finds the library of this installation and puts copies of it where containers see them.

A library that a running process has mapped must never change under it, so a file that exists is never written again:
a copy is completed under a temporary name and then linked, which fails when the name is taken. The name carries the
version; a build with the same version and other bytes gets a name with its hash besides. Old copies are not removed:
only the component that mounted them can tell when they are unused.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from vcuda import contract, errors
from vcuda.limits import StrPath
from vcuda.version import VERSION

__all__ = ["install_library", "is_open_to_all", "is_readable_by_all", "library_path"]

_PACKAGE = Path(__file__).resolve().parent
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}


def library_path() -> Path:
    """libvcuda.so of this installation: of the wheel, or of the source tree that the package runs from.

    Raises LibraryMissingError.
    """
    return _library_of(_PACKAGE)


def _library_of(package: Path) -> Path:
    candidates = (package / "_lib" / "libvcuda.so", package.parent / "build" / "libvcuda.so")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise errors.LibraryMissingError(
        "libvcuda.so was not found", f"neither {candidates[0]} nor {candidates[1]} exists"
    )


def install_library(directory: StrPath, source: StrPath | None = None) -> Path:
    """Copies this installation's library (or SOURCE) into DIRECTORY and returns the copy's path.

    Many processes may call it at once, and repeatedly. Raises LibraryMissingError, PermissionDeniedError or
    SystemError_.
    """
    data = _read(library_path() if source is None else Path(source))
    folder = Path(directory)
    digest = hashlib.sha256(data).hexdigest()[:12]
    plain = folder / f"libvcuda-{VERSION}.so"
    hashed = folder / f"libvcuda-{VERSION}-{digest}.so"
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for target in (plain, hashed):
            if _holds(target, data):
                return target
        return _publish(folder, data, plain, hashed)
    except PermissionError as error:
        raise errors.PermissionDeniedError(
            f"cannot install the library in {folder}", error.strerror or ""
        ) from error
    except OSError as error:
        raise errors.SystemError_(f"cannot install the library in {folder}", error.strerror or "") from error


def is_readable_by_all(path: Path) -> bool:
    """Whether every user can read PATH, by the permission bits of it and of the directories above it."""
    try:
        real = path.resolve(strict=True)
        return bool(real.stat().st_mode & stat.S_IROTH) and is_open_to_all(real.parent)
    except OSError:
        return False


def is_open_to_all(directory: Path) -> bool:
    """Whether every user can enter DIRECTORY and all above it, by their permission bits."""
    try:
        real = directory.resolve(strict=True)
        return all(place.stat().st_mode & stat.S_IXOTH for place in (real, *real.parents))
    except OSError:
        return False


def _read(source: Path) -> bytes:
    try:
        return source.read_bytes()
    except OSError as error:
        raise errors.LibraryMissingError(f"cannot read {source}", error.strerror or "") from error


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except FileNotFoundError:
        return False


def _publish(folder: Path, data: bytes, plain: Path, hashed: Path) -> Path:
    """Writes DATA once and gives it the first of the two names that is free or already the same."""
    descriptor, name = tempfile.mkstemp(prefix=".libvcuda-", dir=folder)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), contract.LIBRARY_MODE)
            file.flush()
            os.fsync(file.fileno())
        for target in (plain, hashed):
            if _link(temporary, target) or _holds(target, data):
                return target
        # A file with this hash in its name and other bytes is damaged. The rename replaces the name, not the old file,
        # so that processes that have mapped it keep it.
        temporary.rename(hashed)
        return hashed
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _link(temporary: Path, target: Path) -> bool:
    """Gives the file a further name; False when that is taken or the file system has no hard links."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            return False
        raise
    return True
