# SPDX-License-Identifier: Apache-2.0
"""The files by which a container runtime learns what the containers of a claim get (Container Device Interface).

One file for each claim, one device in it for each request. The kubelet passes the names of devices on that it was
answered once, for every later pod and every new sandbox, and never asks again while it lives. So a file that is lost is
made again from the record: at every start, and when it is found missing. A kubelet that was restarted asks again, and
gives its containers the names of both answers (seen of 1.36.2; `addDevice` of its pkg/kubelet/cm/dra/claiminfo.go). So
a name is that of the claim's request, whatever allocation stands for it by now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.providers.container_edits import ContainerEdits, Mount
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.claims.origin import ClaimOrigin
from gigaslice.core.errors import InputError, StorageError
from gigaslice.runtime.files import os_errors_as, replace_file

__all__ = ["CdiFiles", "cdi_devices", "cdi_name"]

_KIND = "gigaslice.io/vgpu"
_VERSION = "0.5.0"  # of the specification: all that is used here is older
_PREFIX = "gigaslice.io-vgpu-"
_UID = re.compile(r"[0-9A-Za-z][-._0-9A-Za-z]{0,127}")
_MODE = 0o644


def cdi_name(uid: str, request: str) -> str:
    """Returns the qualified name of the device that stands for a request of the claim with that UID."""
    return f"{_KIND}={_device(uid, request)}"


def cdi_devices(
    allocation: Allocation, origin: ClaimOrigin, edits: ContainerEdits
) -> dict[str, ContainerEdits]:
    """Returns what a container gets with each request of a claim's allocation, by the device's name.

    Agents up to 0.1.0 answered the allocation's id, and the kubelet may pass that on as long as the allocation lives.
    """
    return dict.fromkeys(
        (allocation.id, *(_device(origin.uid, request) for request in origin.requests)), edits
    )


def _device(uid: str, request: str) -> str:
    return f"{uid}.{request}"  # a request's name has no "."


class CdiFiles:
    """The files of claims in a directory that the container runtime reads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, uid: str) -> Path:
        """Returns where the file of a claim is. Raises InputError for a UID that is none."""
        if not _UID.fullmatch(uid):
            raise InputError(f"{uid!r} is no UID of a claim")
        return self._directory / f"{_PREFIX}{uid}.json"

    def claims(self) -> frozenset[str]:
        """Returns the UIDs of the claims that have a file. Raises StorageError."""
        with os_errors_as(StorageError, f"cannot read {self._directory}"):
            names = [path.name for path in self._directory.iterdir()] if self._directory.is_dir() else []
        uids = (
            name.removeprefix(_PREFIX).removesuffix(".json")
            for name in names
            if name.startswith(_PREFIX) and name.endswith(".json")
        )
        return frozenset(filter(_UID.fullmatch, uids))

    def write(self, uid: str, devices: Mapping[str, ContainerEdits]) -> None:
        """Makes the file of a claim say this, in one step. Nothing is written where it says it already.

        Args:
            uid: The claim's UID.
            devices: What a container gets with each device, by name.

        Raises:
            StorageError: It cannot be written.
        """
        path, content = self.path(uid), _document(devices)
        with os_errors_as(StorageError, f"cannot write {path}"):
            if path.is_file() and path.read_bytes() == content:
                return
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(path, content, mode=_MODE)

    def remove(self, uid: str) -> None:
        """Removes the file of a claim, if there is one. Raises StorageError."""
        path = self.path(uid)
        with os_errors_as(StorageError, f"cannot remove {path}"):
            path.unlink(missing_ok=True)


def _document(devices: Mapping[str, ContainerEdits]) -> bytes:
    document = {
        "cdiVersion": _VERSION,
        "kind": _KIND,
        "devices": [
            {"name": name, "containerEdits": _edits(edits)} for name, edits in sorted(devices.items())
        ],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def _edits(edits: ContainerEdits) -> dict[str, Any]:
    return {
        **({"env": [f"{name}={value}" for name, value in sorted(edits.env.items())]} if edits.env else {}),
        "mounts": [_mount(mount) for mount in edits.mounts],
    }


def _mount(mount: Mount) -> dict[str, Any]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
    }
