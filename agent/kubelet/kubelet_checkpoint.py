# SPDX-License-Identifier: Apache-2.0
"""The answers that the kubelet keeps: its device manager's checkpoint, read and never written.

The kubelet repeats an Allocate's answer at every start of the container for as long as the pod lives. So this file says
which allocation a start is meant for, and where the files have to be that its mounts name. It is internal to the
kubelet: an entry that makes no sense counts as missing, and nothing may depend on the file.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from gigaslice.core.deviceplugin.device_id import whole_gpu_device_id
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse
from gigaslice.core.kube.json_text import read_json
from vcuda import contract

__all__ = ["CHECKPOINT", "KeptResponses", "parse"]

CHECKPOINT = "kubelet_internal_checkpoint"
_MAX_BYTES = 64 << 20
_ID_DIGITS = 32


class KeptResponses:
    """The entries of this agent's resources in the kubelet's checkpoint."""

    def __init__(self, directory: Path, resource: str | Sequence[str], whole: str = "") -> None:
        """Initializes the reader.

        Args:
            directory: The kubelet's directory for device plugins.
            resource: The resource of slices, or several.
            whole: The resource of whole GPUs, empty where none is offered.
        """
        self._path = directory / CHECKPOINT
        slices = [resource] if isinstance(resource, str) else resource
        self._names: dict[str, Callable[[str], str]] = dict.fromkeys(slices, str)
        if whole:
            self._names[whole] = whole_gpu_device_id

    def read(self) -> tuple[KeptAllocateResponse, ...] | None:
        """Returns the entries of now; None where they cannot be read. Blocks."""
        try:
            with self._path.open("rb") as file:
                raw = file.read(_MAX_BYTES)
        except OSError:
            return None
        return parse(raw, self._names)


def parse(raw: bytes, names: Mapping[str, Callable[[str], str]]) -> tuple[KeptAllocateResponse, ...] | None:
    """Returns the entries of some resources; None where the file makes no sense.

    Args:
        raw: The file.
        names: By resource, the function that gives the allocation table's name of a device.
    """
    try:
        entries = read_json(raw)["Data"]["PodDeviceEntries"] or []
        return tuple(
            response
            for entry in entries
            if entry["ResourceName"] in names and (response := _entry(entry, names[entry["ResourceName"]]))
        )
    except (ValueError, KeyError, TypeError, AttributeError, DecodeError):
        return None


def _entry(entry: Mapping[str, Any], device_id: Callable[[str], str]) -> KeptAllocateResponse | None:
    """Returns one entry; None for an answer that no agent of this kind gave."""
    device_ids = entry["DeviceIDs"]
    # a kubelet before 1.20 writes a plain list, a later one a list by NUMA node
    by_node = isinstance(device_ids, Mapping)
    groups: Iterable[Iterable[str]] = device_ids.values() if by_node else [device_ids]
    response = api.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    allocation = response.annotations.get("gigaslice.io/allocation", "")
    if len(allocation) != _ID_DIGITS or set(allocation) - set("0123456789abcdef"):
        return None
    sources = [m.host_path for m in response.mounts if m.container_path == contract.CONTAINER_LIMITS]
    visible = response.envs.get("NVIDIA_VISIBLE_DEVICES", "")
    gpus = (
        visible.split(",") if visible else [device.name.partition("=")[2] for device in response.cdi_devices]
    )
    return KeptAllocateResponse(
        pod=str(entry["PodUID"]),
        container=str(entry["ContainerName"]),
        device_ids=frozenset(device_id(device) for group in groups for device in group),
        allocation=allocation,
        directory=str(Path(sources[0]).parent) if sources else "",
        gpus=tuple(gpus),
    )
