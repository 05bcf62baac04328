# SPDX-License-Identifier: Apache-2.0
"""How answers to Allocate are recorded: device IDs by GPU, and what is known of the container. Pure.

Device IDs are written as ranges ("GPU-…/0-7,9"), since a node may have a thousand. These records name no API: they are
those of the first agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from agent.persistence.codec import VERSION, positive, string
from gigaslice.core.allocation.consumer import ContainerRef, Origin
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.deviceplugin.device_id import format_device_id, parse_device_id, whole_gpu
from gigaslice.core.deviceplugin.origin import (
    DevicePluginOrigin,
    GpuTokens,
    Owner,
    plugin,
    with_origin,
    with_tokens,
)
from gigaslice.core.deviceplugin.reconcile import reconciled
from gigaslice.core.errors import DeviceIdError

__all__ = ["DevicePluginRecords"]

_MAX_DEVICE_IDS = 1 << 20
_KEPT = "_codec_ranges"  # beside the fields of what it is the text of


class DevicePluginRecords:
    """Writes and reads the origins of answers to Allocate."""

    kind = ""
    version = VERSION

    def covers(self, origin: Origin) -> bool:
        """Whether an origin is an answer to Allocate."""
        return isinstance(origin, DevicePluginOrigin)

    def fields(self, allocation: Allocation) -> Mapping[str, object]:
        """Returns what is known of the container, and what has become of the device IDs."""
        origin = plugin(allocation)
        document: dict[str, object] = {}
        if origin.lent:
            document["lent"] = list(_ranges(origin.lent))
        if origin.supersedes:
            document["supersedes"] = list(origin.supersedes)
        if origin.container:
            document["container"] = [
                origin.container.namespace,
                origin.container.pod,
                origin.container.container,
            ]
        if origin.suspects is not None:
            document["suspects"] = list(origin.suspects)
        for flag in ("forgotten", "foreign", "undecided"):
            if getattr(origin, flag):
                document[flag] = True
        if origin.owner:
            document["owner"] = {
                "uid": origin.owner.uid,
                "name": [origin.owner.namespace, origin.owner.pod, origin.owner.container],
                "init": origin.owner.init,
            }
        return document

    def hold_fields(self, allocation: Allocation) -> Sequence[Mapping[str, object]]:
        """Returns the device IDs that are served from each hold's GPU."""
        return [{"tokens": _ranges_of(tokens)} for tokens in plugin(allocation).tokens]

    def read(
        self, item: Mapping[str, Any], holds: Sequence[Mapping[str, Any]]
    ) -> tuple[DevicePluginOrigin, list[int]]:
        """Returns the origin in a record; each device ID of a hold is one slice."""
        tokens = tuple(GpuTokens(string(hold["gpu"]), tuple(_device_ids(hold["tokens"]))) for hold in holds)
        container, suspects = item.get("container"), item.get("suspects")
        origin = DevicePluginOrigin(
            tokens,
            lent=frozenset(_device_ids(item.get("lent", []))),
            supersedes=tuple(string(allocation_id) for allocation_id in item.get("supersedes", [])),
            owner=_owner(item["owner"]) if item.get("owner") else None,
            container=ContainerRef(*(string(part) for part in container)) if container else None,
            suspects=None if suspects is None else tuple(string(pod) for pod in suspects),
            forgotten=item.get("forgotten", False) is True,
            foreign=item.get("foreign", False) is True,
            undecided=item.get("undecided", False) is True,
        )
        sizes = [
            len(gpu_tokens.device_ids) * positive(hold["sliceBytes"])
            for gpu_tokens, hold in zip(tokens, holds, strict=True)
        ]
        return origin, sizes

    def complete(self, allocation: Allocation) -> Allocation:
        """Returns an allocation with what its device IDs say: what is lent, and whether they are whole GPUs."""
        origin = plugin(allocation)
        whole = any(whole_gpu(device_id) for device_id in origin.device_ids)
        completed = replace(allocation, whole=True) if whole else allocation
        return with_tokens(completed, origin) if origin.lent else completed

    def with_owner(self, allocation: Allocation, owner: ContainerRef) -> Allocation:
        """Returns an allocation with the container that its owner file names, where the record does not say it; that
        its container was listed too is learned again.
        """
        return allocation if plugin(allocation).owner else with_origin(allocation, container=owner)

    def recovered(self, table: AllocationTable, orphans: Sequence[Allocation]) -> AllocationTable:
        """Returns the table with the answers that only directories know."""
        return reconciled(table, orphans)


def _owner(item: Mapping[str, Any]) -> Owner:
    namespace, pod, container = (string(part) for part in item["name"])
    return Owner(string(item["uid"]), namespace, pod, container, item.get("init", False) is True)


def _ranges_of(tokens: GpuTokens) -> list[str]:
    """Kept with the tokens: they stay what they are while their allocation changes."""
    text: list[str] | None = tokens.__dict__.get(_KEPT)
    if text is None:
        text = tokens.__dict__[_KEPT] = list(_ranges(tokens.device_ids))
    return text


def _ranges(device_ids: Iterable[str]) -> Iterator[str]:
    """Device IDs of each GPU as "uuid/0-7,9"; a device ID of another form stands alone after "=" ."""
    numbers: dict[str, list[int]] = {}
    for device_id in sorted(device_ids):
        try:
            parsed = parse_device_id(device_id)
        except DeviceIdError:
            yield f"={device_id}"
            continue
        numbers.setdefault(parsed.uuid, []).append(parsed.number)
    for uuid, of_gpu in numbers.items():
        yield f"{uuid}/{','.join(_runs(sorted(of_gpu)))}"


def _runs(numbers: list[int]) -> Iterator[str]:
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def _device_ids(texts: Iterable[Any]) -> Iterator[str]:
    for text in texts:
        if string(text).startswith("="):
            yield text[1:]
            continue
        uuid, _, runs = text.rpartition("/")
        for run in runs.split(","):
            first, _, last = run.partition("-")
            low, high = int(first), int(last or first)
            if not 0 <= low <= high < _MAX_DEVICE_IDS:
                raise ValueError(f"{text!r} is no range of devices")
            for number in range(low, high + 1):
                yield format_device_id(uuid, number)
