# SPDX-License-Identifier: Apache-2.0
"""The node's cgroups: where pods' are, and whether a limit of the driver can bind there. Reads only.

A pod's cgroup is found by the UID in its name, by walking, and never built: kubelets put pods below any --cgroup-root,
by two drivers, within the cgroup of a node that is a container itself. What is below a pod's cgroup is no pod of this
node, whatever its name is. Nothing is ever written here, least of all a cgroup.subtree_control.
Tests: tests/unit/gigaslice/roles/driver_limits/test_cgroup_tree.py.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gigaslice.core.kube.cgroups import pod_of

__all__ = ["MOST_BELOW", "CgroupTree", "PodCgroups", "filesystem"]

MOST_BELOW = 256
"""How many cgroups below a pod's are looked at: its containers could make any number."""
_MOST_WALKED = 20_000
_CGROUP2 = 0x63677270  # <linux/magic.h>
_HOLDS_PODS = re.compile(r"(.*[-_])?kubepods([-.].*)?|burstable|besteffort")
"""Names of cgroups in which a pod's may come to be though there is none now."""


@dataclass(frozen=True, slots=True)
class PodCgroups:
    """What a walk has found.

    paths: the cgroups that bear a pod's UID, by UID; as good as always one. identities: these, and what tells a cgroup
    from another of the same path. parents: where further ones may come.
    """

    paths: dict[str, tuple[str, ...]]
    identities: frozenset[tuple[str, int]]
    parents: tuple[str, ...]


class CgroupTree:
    """The cgroups below ROOT, or below ROOT/unified where version 1 is beside them."""

    def __init__(self, root: Path) -> None:
        unified = root / "unified"
        self.hybrid = filesystem(root) != _CGROUP2 and filesystem(unified) == _CGROUP2
        self.root = str(unified if self.hybrid else root)
        self.version_2 = filesystem(Path(self.root)) == _CGROUP2

    def pods(self) -> PodCgroups:
        """Finds all pods' cgroups, those near the root first."""
        paths: dict[str, tuple[str, ...]] = {}
        identities, parents = set(), set()
        queue, walked = deque([self.root]), 0
        while queue and walked < _MOST_WALKED:
            directory = queue.popleft()
            walked += 1
            if _HOLDS_PODS.fullmatch(os.path.basename(directory)):  # noqa: PTH119  (thousands of them)
                parents.add(directory)
            for path, name, identity in _directories(directory):
                uid = pod_of(name)
                if uid:
                    paths[uid] = (*paths.get(uid, ()), path)
                    identities.add((path, identity))
                    parents.add(directory)
                else:
                    queue.append(path)
        above = {str(parent) for directory in parents for parent in self._between(directory)}
        return PodCgroups(paths, frozenset(identities), tuple(sorted({self.root, *parents, *above})))

    def below(self, path: str) -> Iterator[str]:
        """Yields the cgroups below PATH, each after those around it, and at most MOST_BELOW."""
        queue, count = deque([path]), 0
        while queue:
            for directory, _, _ in _directories(queue.popleft()):
                if count == MOST_BELOW:
                    return
                count += 1
                queue.append(directory)
                yield directory

    def own_pod(self) -> str:
        """The cgroup of the pod that this process is of; empty where it is of none.

        In a cgroup namespace /proc/self/cgroup does not tell, so this process is looked for among those of pods.
        """
        own = os.getpid()
        for path in (path for paths in self.pods().paths.values() for path in paths):
            if any(own in self.pids(directory) for directory in (path, *self.below(path))):
                return path
        return ""

    def pids(self, path: str) -> tuple[int, ...]:
        """The processes of a cgroup by itself that this process can see; none where it has gone."""
        return tuple(int(pid) for pid in _read(path, "cgroup.procs").split() if pid.isdigit() and pid != "0")

    def backend(self) -> str:
        """The controller that the driver uses: dmem where the kernel counts the driver's memory, else misc."""
        regions = _read(self.root, "dmem.capacity").splitlines()
        return "dmem" if any(region.startswith("nvidia/") for region in regions) else "misc"

    def lacking(self, path: str, controller: str) -> str:
        """Why a limit on PATH would bind nothing, in a sentence; empty where the controller reaches it."""
        if controller not in _read(self.root, "cgroup.controllers").split():
            return (
                f"{self.root} offers no controller {controller} (its cgroup.controllers): the kernel has none"
                + (", or it is in use by cgroup v1" if self.hybrid else "")
            )
        for directory in (*self._between(path), path):
            if directory != self.root and not os.path.lexists(os.path.join(directory, f"{controller}.max")):  # noqa: PTH118
                remedy = "; or load the driver's module with RmMemacctMode=1" if controller == "dmem" else ""
                return (
                    f"{directory} has no {controller}.max, so a limit below it would never be found: its parent's "
                    f"cgroup.subtree_control does not name {controller}{remedy}"
                )
        return ""

    def _between(self, path: str) -> list[str]:
        """The directories from the root to the one around PATH."""
        inner = Path(path).relative_to(self.root)
        return [str(Path(self.root) / parent) for parent in reversed(inner.parents)]


def filesystem(path: Path) -> int:
    """The type of the file system that PATH is on, as statfs(2) tells it; 0 where there is no PATH."""
    answer = (ctypes.c_long * 32)()  # struct statfs begins with it and is smaller
    if ctypes.CDLL(None).statfs(os.fsencode(path), answer) != 0:
        return 0
    return int(answer[0])


def _directories(path: str) -> Iterator[tuple[str, str, int]]:
    """Path, name and inode of each directory in PATH; none where that has gone."""
    try:
        if os.stat(path).st_nlink == 2:  # noqa: PTH116  (of a cgroup: nothing below; its dozens of files need no look)
            return
        with os.scandir(path) as entries:
            inner = [
                (entry.path, entry.name, entry.inode())
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return
    yield from sorted(inner)


def _read(directory: str, name: str) -> str:
    try:
        return Path(directory, name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
