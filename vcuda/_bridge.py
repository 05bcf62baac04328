"""The one place where Python meets the compiled code: ``ffi``, ``lib`` and the translation of status codes.

Kept apart so that a missing build is one sentence, and so that every negative status becomes an exception in the same
way. Knows nothing of what the functions mean.
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
        sentence = "no such file"  # the other meaning, no such GPU, is told by whoever asked for a GPU
    raise errors.STATUS.get(name, errors.VcudaError)(what, sentence, remedy)


def path_bytes(path: str | os.PathLike[str]) -> bytes:
    """PATH as C sees it. Raises UsageError for a NUL inside, which C would take for the end."""
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise errors.UsageError("not a path", "it contains a NUL byte", "check where it came from")
    return raw
