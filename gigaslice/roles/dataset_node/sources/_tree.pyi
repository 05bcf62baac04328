# SPDX-License-Identifier: Apache-2.0
"""Looking up many files of a directory, and reading a small file, each by one call without the interpreter's lock.

The code is in `_tree.c`.
"""

from typing import Any

def read_names(directory: int, /) -> bytes:
    """The next names of an open directory, as getdents64(2) writes them; empty at the end.

    Raises:
        OSError: It cannot be read.
    """

def look_up(
    directory: int,
    names: bytes,
    at: int,
    prefix: bytes,
    newest: int,
    entry: type[tuple[Any, ...]],
    kind: object,
    files: list[Any],
    others: list[tuple[bytes, int]],
    new: list[bytes],
    /,
) -> tuple[int, int]:
    """Looks up the next names of some, at most 64. Names without a file are passed over.

    Args:
        directory: Open; the names are those of it.
        names: From `read_names`.
        at: Where the next one begins in NAMES; 0 at first.
        prefix: Before each name in paths.
        newest: Files that were modified later, in nanoseconds, are new.
        entry: The type of what is added to FILES: a named tuple of path, kind, size, version, target
            and whether it may be executed.
        kind: Of a file.
        files: Gets an entry for each plain file.
        others: Gets the name and the mode of what is none, and of plain files with a time beyond the year 2255.
        new: Gets the paths of new files.

    Returns:
        Where to go on, the length of NAMES at the end; and the bytes of the paths and versions of the entries.

    Raises:
        OSError: A name cannot be looked up.
    """

def read_file(
    root: int, path: bytes, how: bytes, version: str, offset: int, size: int, /
) -> bytes | str | None:
    """Reads a range of a plain file that has VERSION before and after.

    Args:
        root: An open directory, which PATH is relative to.
        path: Of the file.
        how: How it is opened: a struct open_how of openat2(2).
        version: "size:time of modification in nanoseconds", without characters beyond ASCII.
        offset: Of the range.
        size: Of the range, all of which is to be read by one call.

    Returns:
        The bytes; or, as words, what of the file has changed; or None for a file whose time is beyond the year 2255.

    Raises:
        OSError: It cannot be opened or read.
    """
