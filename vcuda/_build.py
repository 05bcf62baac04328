# SPDX-License-Identifier: Apache-2.0
"""Builds ``vcuda._native``: Python's access to the C code of the limits page and the ledger (cffi, API mode).

The declarations are the text of ``native/shm/shm_api.h``, which the C compiler includes too, so a signature exists
once and a mismatch fails the build. The sources are compiled into the extension: layout and atomic accesses have
one implementation, and Python never computes an offset. Used by setup.py at build time only; it is not imported by
the package and knows nothing of it.
"""

from __future__ import annotations

from pathlib import Path

import cffi

_ROOT = Path(__file__).resolve().parent.parent
_DIRECTORIES = ("native/base", "native/shm")

ffi = cffi.FFI()
ffi.cdef((_ROOT / "native/shm/shm_api.h").read_text(encoding="utf-8"))
ffi.set_source(
    "vcuda._native",
    '#include "shm.h"',
    # Relative: the build runs in the root of the sources, and the paths are repeated below the build directory.
    sources=[
        str(source.relative_to(_ROOT))
        for directory in _DIRECTORIES
        for source in sorted((_ROOT / directory).glob("*.c"))
    ],
    include_dirs=[str(_ROOT / directory) for directory in _DIRECTORIES],
    extra_compile_args=["-std=c17", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra"],
)
