# SPDX-License-Identifier: Apache-2.0
"""How a command's LD_PRELOAD names the library, so that only glibc's loader finds it.

A program of musl (Alpine's, many single-file tools) does not start when LD_PRELOAD names a library of glibc, and any
descendant of the command may be one. glibc's loader replaces ``$LIB`` by the name of its library directory (ld.so(8));
musl's uses the path as it is, finds no file and continues. So the entry is ``DIR/preload/$LIB/libvcuda.so``, and
a link to the library lies under each name that glibc's builders give that directory, and under none, for scripts that
put the variable through a shell again. Where this machine's own loader does not find the library this way, or another
user's program could not, the entry is the library itself: a program that does not start is better than a limit that
does not hold.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from vcuda import contract, install

__all__ = ["entry_for", "shared_name"]

_NAME = "libvcuda.so"
_FOLDERS = (".", "lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")


def entry_for(library: Path, directory: Path, *, folders: Sequence[str] = _FOLDERS) -> Path:
    """What to write into LD_PRELOAD for LIBRARY, with the links in DIRECTORY.

    The loader runs code from DIRECTORY: no other user may write there, or change any part of its path.
    FOLDERS: what loaders may put for ``$LIB``.
    """
    links = directory / contract.PRELOAD_LINKS
    entry = links / "$LIB" / _NAME
    try:
        for folder in folders:
            (links / folder).mkdir(mode=0o755, parents=True, exist_ok=True)
            _link(links / folder / _NAME, library)
    except OSError:
        return library
    may_become_others = os.geteuid() == 0
    if may_become_others and not install.is_open_to_all(links):
        return library
    return entry if _loads(entry) else library


def shared_name(library: Path) -> str:
    """Name of the directory of links to LIBRARY that the commands of one user share."""
    return f"links-{hashlib.sha256(os.fsencode(library)).hexdigest()[:12]}"


def _link(path: Path, library: Path) -> None:
    """Makes PATH a link to LIBRARY, atomically: commands that share the directory always find a link."""
    if _leads_to(path, library):
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(library)
    temporary.rename(path)


def _leads_to(path: Path, library: Path) -> bool:
    try:
        return path.readlink() == library
    except OSError:
        return False


def _loads(entry: Path) -> bool:
    """Whether the loader of this interpreter would load ENTRY; it lists what it would load and exits."""
    environment = {"LD_PRELOAD": str(entry), "LD_TRACE_LOADED_OBJECTS": "1"}
    try:
        listed = subprocess.run(
            [sys.executable, "-I", "-c", ""],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    prefix = os.fsencode(entry.parent.parent)
    return any(prefix in line and os.fsencode(_NAME) in line for line in listed.stdout.splitlines())
