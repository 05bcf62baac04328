# SPDX-License-Identifier: Apache-2.0
"""The mounts that this process sees, as /proc/self/mountinfo lists them (proc_pid_mountinfo(5)). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["MountEntry", "parse_mountinfo", "top_at"]

_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One mount.

    id: its number. device: "major:minor" of the file system; equal for all mounts of one. root: the path in the file
    system that is mounted. point: where. source: what was mounted, such as an image's path.
    """

    id: int
    device: str
    root: str
    point: str
    options: frozenset[str]
    filesystem: str
    source: str


def parse_mountinfo(text: bytes) -> tuple[MountEntry, ...]:
    """The mounts in the order of the list: of several at one point the last is the one on top."""
    return tuple(mount for line in text.splitlines() if (mount := _mount(line)) is not None)


def top_at(mounts: Iterable[MountEntry], point: str) -> MountEntry | None:
    """The mount that a process finds at a path; None where the path is no mount point."""
    top = None
    for mount in mounts:
        if mount.point == point:
            top = mount
    return top


def _mount(line: bytes) -> MountEntry | None:
    before, separator, after = line.partition(b" - ")
    fields, end = before.split(b" "), after.split(b" ")
    if not separator or len(fields) < 6 or len(end) < 2 or not fields[0].isdigit():
        return None
    root, point = _text(fields[3]), _text(fields[4])
    options = frozenset(fields[5].decode("ascii", "replace").split(","))
    return MountEntry(int(fields[0]), _text(fields[2]), root, point, options, _text(end[0]), _text(end[1]))


def _text(field: bytes) -> str:
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field).decode("utf-8", "surrogateescape")
