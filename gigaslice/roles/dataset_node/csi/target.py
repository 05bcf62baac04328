# SPDX-License-Identifier: Apache-2.0
"""Where a volume may be mounted: below the kubelet's directory of pods, and nowhere a symbolic link leads.

The driver mounts as root of the host. A target path comes from the kubelet, so a wrong one is a mistake of something
that should not have the socket; it is refused by its form, and by what is on the disk.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.text import plain

__all__ = ["PublishTarget", "check_target"]

_UID = re.compile(r"[0-9A-Za-z-]{1,128}")
_VOLUME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class PublishTarget:
    """A target path that may be used."""

    path: str
    pod_uid: str
    volume: str
    """The volume's name in the pod."""


def check_target(path: str, pods: Path, *, pod_uid: str = "") -> PublishTarget:
    """Checks a target path.

    Args:
        path: As the kubelet sends it.
        pods: The kubelet's directory of pods.
        pod_uid: The pod that the path must be of, where it is known.

    Raises:
        RequestError: It is not PODS/<uid>/volumes/kubernetes.io~csi/<volume>/mount, or leads through a link.
    """
    root = str(pods)
    shown = plain(path)[:300]
    parts = path.removeprefix(f"{root}/").split("/") if path.startswith(f"{root}/") else []
    if (
        len(parts) != 5
        or not _UID.fullmatch(parts[0])
        or parts[1:3] != ["volumes", "kubernetes.io~csi"]
        or not _VOLUME.fullmatch(parts[3])
        or parts[4] != "mount"
    ):
        raise RequestError(
            f"target {shown} is not {root}/UID/volumes/kubernetes.io~csi/VOLUME/mount; nothing else is mounted to "
            "(--kubelet-root names the kubelet's directory)"
        )
    if pod_uid and parts[0] != pod_uid:
        raise RequestError(
            f"target {shown} is not of pod {plain(pod_uid)[:80]}; nothing is mounted for another pod"
        )
    where = root
    for part in parts:
        where = f"{where}/{part}"
        try:
            mode = os.lstat(where).st_mode
        except FileNotFoundError:
            break
        except OSError as error:
            raise RequestError(f"target {shown} cannot be looked at: {error.strerror}") from error
        if not stat.S_ISDIR(mode):
            raise RequestError(f"target {shown}: {where} is no directory; nothing is mounted through links")
    return PublishTarget(path, parts[0], parts[3])
