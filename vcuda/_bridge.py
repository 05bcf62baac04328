# SPDX-License-Identifier: Apache-2.0
"""The one place where Python meets the compiled code: ``ffi``, ``lib`` and the translation of status codes.

A module of its own, so that a missing build gives one sentence and every negative status becomes an exception in the
same way. It does not interpret what the functions do.
"""

from __future__ import annotations

import os

from vcuda import errors

try:
    from vcuda._native import ffi, lib
except ImportError as error:
    raise ImportError(
        f"vcuda._native cannot be loaded ({error}): run make, or reinstall gigaslice"
    ) from error

__all__ = ["checked", "ffi", "lib", "path_bytes"]


def checked(status: int, what: str, remedy: str = "") -> int:
    """Returns a count or zero as it is; raises the class of ``errors.STATUS`` for a negative status."""
    if status >= 0:
        return status
    name = ffi.string(lib.status_name(status)).decode("ascii")
    sentence = ffi.string(lib.status_text(status)).decode("utf-8")
    if name == "VC_ENOENT":
        sentence = (
            "no such file"  # it also means "no such GPU": callers that name a GPU report that themselves
        )
    raise errors.STATUS.get(name, errors.VcudaError)(what, sentence, remedy)


def path_bytes(path: str | os.PathLike[str]) -> bytes:
    """PATH as C reads it. Raises UsageError for a NUL byte, which would end it in C."""
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise errors.UsageError("not a path", "it contains a NUL byte", "check where the path came from")
    return raw
