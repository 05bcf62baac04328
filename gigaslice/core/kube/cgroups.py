# SPDX-License-Identifier: Apache-2.0
"""From names of cgroups, and from the text of /proc/<pid>/cgroup, to pod and container. Pure.

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

__all__ = ["Place", "container_of", "parse", "pod_of"]

_UID = r"(?P<uid>[0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_NAME = rf"(?:(?:[^-/:]+-)*kubepods(?:-[a-z]+)*-)?pod{_UID}(?:\.slice)?"
_POD = re.compile(rf"(?:^|[/:]){_NAME}(?P<rest>[/:].*)?$")
_DIRECTORY = re.compile(_NAME)
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
        place = Place(_with_dashes(match["uid"]), container_of(match["rest"] or ""))
        if place.container:
            return place
        best = best or place
    return best


def pod_of(directory: str) -> str:
    """The UID of the pod whose own cgroup has that name; empty for every other name, also a container's."""
    match = _DIRECTORY.fullmatch(directory)
    return _with_dashes(match["uid"]) if match else ""


def container_of(path: str) -> str:
    """The ID of the container that PATH, which is below its pod's cgroup, is of; empty where it names none."""
    match = _CONTAINER.search(path)
    return match["id"] if match else ""


def _with_dashes(uid: str) -> str:
    return uid.replace("_", "-")
