# SPDX-License-Identifier: Apache-2.0
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
    mounted: set[str] = set()
    others = False
    try:
        pids = [int(path.name) for path in root.iterdir() if path.name.isdigit()]
    except OSError:
        return Presence()
    for pid in pids:
        process = read_process(pid, root)
        if process is None:
            continue
        others = others or (process.place is not None and process.place.uid != own)
        if process.mounted in allocation_ids:
            mounted.add(process.mounted)
    return Presence(frozenset(mounted), others)


def own_pod(root: Path = PROC) -> str:
    """The UID of this process's own pod, empty outside of one."""
    try:
        process = read_process(int((root / "self").readlink().name), root)
    except (OSError, ValueError):
        return ""
    return process.place.uid if process and process.place else ""
