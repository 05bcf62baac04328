"""From the text of /proc/<pid>/cgroup to pod and container. Pure.

Paths as containerd, CRI-O and Docker write them under both drivers of the kubelet, in both versions of cgroups:

    0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope
    11:memory:/kubepods/besteffort/pod<uid>/<id>
    0::/../../kubepods-pod<uid>.slice/crio-<id>.scope/container      seen from within a cgroup namespace
    1:name=systemd:/system.slice/containerd.service/kubepods-pod<uid>.slice:cri-containerd:<id>

A UID has dashes, or underscores where systemd writes it; that of a static pod is 32 hex digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Place", "parse"]

_UID = r"(?P<uid>[0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_POD = re.compile(rf"(?:^|[/:])(?:(?:[a-z]+-)*kubepods(?:-[a-z]+)*-)?pod{_UID}(?:\.slice)?(?P<rest>[/:].*)?$")
_CONTAINER = re.compile(r"(?:^|[/:-])(?P<id>[0-9a-f]{64})(?:\.scope)?(?:/|$)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs. uid: its pod's UID, with dashes. container: the runtime's container ID, or empty."""

    uid: str
    container: str = ""


def parse(text: str) -> Place | None:
    """The place that TEXT names, None for a process in no pod."""
    best: Place | None = None
    for line in text.splitlines():
        parts = line.split(":", 2)
        match = _POD.search(parts[2]) if len(parts) == 3 else None
        if match is None:
            continue
        container = _CONTAINER.search(match["rest"] or "")
        place = Place(match["uid"].replace("_", "-"), container["id"] if container else "")
        if place.container:
            return place
        best = best or place
    return best
