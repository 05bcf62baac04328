"""Which allocations the node's processes have mounted: the kernel's proof that a container lives.

A container that has not used CUDA yet has no slot in its ledger, and the kubelet may have forgotten it. Its processes
have its limits page mounted all the same. Reading all of them takes some tens of milliseconds, so it is done only
before an allocation is released.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from agent.accounting.processes import PROC, read_process

__all__ = ["Presence", "find_mounted", "own_pod"]


@dataclass(frozen=True, slots=True)
class Presence:
    """The result of a scan.

    Attributes:
        mounted: IDs of the searched allocations that processes have mounted.
        others: Whether the scan found processes of other pods. If not, an absence proves nothing.
    """

    mounted: frozenset[str] = frozenset()
    others: bool = False


def find_mounted(allocation_ids: Collection[str], root: Path = PROC) -> Presence:
    """Searches all processes below ROOT for these allocations. Blocks."""
    own = own_pod(root)
    found: set[str] = set()
    others = False
    try:
        pids = [int(path.name) for path in root.iterdir() if path.name.isdigit()]
    except OSError:
        return Presence()
    for pid in pids:
        seen = read_process(pid, root)
        if seen is None:
            continue
        others = others or (seen.place is not None and seen.place.uid != own)
        if seen.mounted in allocation_ids:
            found.add(seen.mounted)
    return Presence(frozenset(found), others)


def own_pod(root: Path = PROC) -> str:
    """The UID of this process's own pod, empty outside of one."""
    try:
        seen = read_process(int((root / "self").readlink().name), root)
    except (OSError, ValueError):
        return ""
    return seen.place.uid if seen and seen.place else ""
