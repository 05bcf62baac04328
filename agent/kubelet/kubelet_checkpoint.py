"""What the kubelet keeps of our answers: its device manager's checkpoint, read and never written.

The kubelet repeats an Allocate's answer at every start of the container for as long as the pod lives, so this file says
which allocation a start is meant for, and where the files have to be that its mounts name. It is the kubelet's own and
no interface: what cannot be understood is as good as missing, and nobody may rely on its being there.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from gigaslice.allocation.reconcile import Answered
from gigaslice.allocation.table import whole_gpu_device_id
from vcuda import contract

__all__ = ["CHECKPOINT", "KeptAnswers", "parse"]

CHECKPOINT = "kubelet_internal_checkpoint"
_MAX_BYTES = 64 << 20
_ID_DIGITS = 32


class KeptAnswers:
    """The file in DIRECTORY, the kubelet's for device plugins: its entries of RESOURCE, and of WHOLE where named."""

    def __init__(self, directory: Path, resource: str, whole: str = "") -> None:
        self._path = directory / CHECKPOINT
        self._names: dict[str, Callable[[str], str]] = {resource: str}
        if whole:
            self._names[whole] = whole_gpu_device_id

    def read(self) -> tuple[Answered, ...] | None:
        """What is in it now; None where that cannot be told. Blocks."""
        try:
            with self._path.open("rb") as file:
                raw = file.read(_MAX_BYTES)
        except OSError:
            return None
        return parse(raw, self._names)


def parse(raw: bytes, names: Mapping[str, Callable[[str], str]]) -> tuple[Answered, ...] | None:
    """The entries of the resources NAMES, each with how the allocation table writes its devices; None where RAW makes
    no sense.
    """
    try:
        entries = json.loads(raw)["Data"]["PodDeviceEntries"] or []
        return tuple(
            one
            for entry in entries
            if entry["ResourceName"] in names and (one := _entry(entry, names[entry["ResourceName"]]))
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DecodeError):
        return None


def _entry(entry: Mapping[str, Any], device_id: Callable[[str], str]) -> Answered | None:
    """One entry; None for an answer that no agent of this kind gave."""
    found = entry["DeviceIDs"]
    groups: Iterable[Iterable[str]] = found.values() if isinstance(found, Mapping) else [found]  # before 1.20
    response = api.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    allocation = response.annotations.get("gigaslice.io/allocation", "")
    if len(allocation) != _ID_DIGITS or set(allocation) - set("0123456789abcdef"):
        return None
    sources = [m.host_path for m in response.mounts if m.container_path == contract.CONTAINER_LIMITS]
    visible = response.envs.get("NVIDIA_VISIBLE_DEVICES", "")
    gpus = visible.split(",") if visible else [one.name.partition("=")[2] for one in response.cdi_devices]
    return Answered(
        pod=str(entry["PodUID"]),
        container=str(entry["ContainerName"]),
        device_ids=frozenset(device_id(one) for group in groups for one in group),
        allocation=allocation,
        directory=str(Path(sources[0]).parent) if sources else "",
        gpus=tuple(gpus),
    )
