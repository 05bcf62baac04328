"""Which allocations the node's processes have mounted: the word of the kernel on who lives.

A container that has not used CUDA yet has no slot in its ledger, and the kubelet may not know it any more. Its
processes have its limits page mounted all the same. Looking at all of them takes some tens of milliseconds: done only
before something is given up.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from agent.accounting.processes import PROC, sight

__all__ = ["Presence", "look"]


@dataclass(frozen=True, slots=True)
class Presence:
    """What was seen. mounted: ids of the allocations asked about that processes have mounted. others: processes of
    other pods than this one's own were seen, so that seeing none means something.
    """

    mounted: frozenset[str] = frozenset()
    others: bool = False


def look(wanted: Collection[str], root: Path = PROC) -> Presence:
    """Looks for the allocations WANTED among all processes below ROOT. Blocks."""
    own = _own_pod(root)
    found: set[str] = set()
    others = False
    try:
        pids = [int(path.name) for path in root.iterdir() if path.name.isdigit()]
    except OSError:
        return Presence()
    for pid in pids:
        seen = sight(pid, root)
        if seen is None:
            continue
        others = others or (seen.place is not None and seen.place.uid != own)
        if seen.mounted in wanted:
            found.add(seen.mounted)
    return Presence(frozenset(found), others)


def _own_pod(root: Path = PROC) -> str:
    """The UID of this process's own pod, empty outside of one."""
    try:
        seen = sight(int((root / "self").readlink().name), root)
    except (OSError, ValueError):
        return ""
    return seen.place.uid if seen and seen.place else ""
