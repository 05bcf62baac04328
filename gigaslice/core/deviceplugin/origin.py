# SPDX-License-Identifier: Apache-2.0
"""An allocation that the kubelet's device-plugin API was answered with: one container, named by device IDs. Pure.

The kubelet speaks in device IDs and this agent places slices itself, so an allocation says for each GPU which device
IDs are served from it. Three rules of the kubelet shape everything here: there is no deallocate call, init containers
lend their device IDs to later containers of the same pod, and what the kubelet has forgotten it hands out a second time
while the first container runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gigaslice.core.allocation.consumer import Consumer, ContainerRef
from gigaslice.core.allocation.table import Allocation, AllocationTable, Hold
from gigaslice.core.deviceplugin.device_id import device_order
from gigaslice.core.errors import StateError
from gigaslice.core.model import Placement

__all__ = [
    "DevicePluginOrigin",
    "GpuTokens",
    "Owner",
    "assign_device_ids",
    "container_ref",
    "held",
    "is_plugin",
    "kept",
    "plugin",
    "plugin_part",
    "with_origin",
    "with_tokens",
]


@dataclass(frozen=True, slots=True)
class Owner:
    """The container that an allocation was made for, as found out during Allocate. init: a plain init container."""

    uid: str
    namespace: str
    pod: str
    container: str
    init: bool = False

    @property
    def ref(self) -> ContainerRef:
        """The names alone."""
        return ContainerRef(self.namespace, self.pod, self.container)


@dataclass(frozen=True)  # without slots: the codec keeps its text with it
class GpuTokens:
    """The device IDs that are served from one GPU, whatever GPU they are named after."""

    gpu: str
    device_ids: tuple[str, ...]


@dataclass(frozen=True)  # without slots: what follows from the fields is worked out once
class DevicePluginOrigin:
    """One answer to Allocate.

    Attributes:
        tokens: The device IDs of the answer by GPU, in the order of the allocation's holds.
        lent: Device IDs that a later container of the same pod, or an unknown one, has taken over.
        supersedes: Ids of allocations that it took device IDs from.
        owner: The container that it was made for, where that was found out during Allocate.
        container: The container that the kubelet lists with its devices; None until then.
        suspects: Until then, the pods ("namespace/name") one of which it is for; None before the kubelet was asked.
        forgotten: The kubelet counts its devices as free, and nothing shows that its pod has ended: it still counts.
        foreign: Made up for a container whose mounts are not these files: it counts, and nothing starts from it.
        undecided: Its annotations were not known, or made no sense, and are read again before the start.
    """

    tokens: tuple[GpuTokens, ...] = ()
    lent: frozenset[str] = frozenset()
    supersedes: tuple[str, ...] = ()
    owner: Owner | None = None
    container: ContainerRef | None = None
    suspects: tuple[str, ...] | None = None
    forgotten: bool = False
    foreign: bool = False
    undecided: bool = False

    key = ""
    asked_by = None
    follows_annotations = True
    may_grow = True

    @cached_property
    def device_ids(self) -> frozenset[str]:
        """Every device ID of the answer, lent ones included."""
        return frozenset(device_id for gpu_tokens in self.tokens for device_id in gpu_tokens.device_ids)

    @cached_property
    def own(self) -> frozenset[str]:
        """The device IDs that it has not lent."""
        return self.device_ids - self.lent if self.lent else self.device_ids

    @property
    def ref(self) -> ContainerRef | None:
        """The container it is for, listed or not; None while that is not known."""
        return self.container or (self.owner.ref if self.owner else None)

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The one container, once it is known."""
        if self.ref is None:
            return ()
        uid, init = (self.owner.uid, self.owner.init) if self.owner else ("", False)
        return (Consumer(self.ref, uid, init, confirmed=self.container is not None),)


_NONE = DevicePluginOrigin()


def is_plugin(allocation: Allocation) -> bool:
    """Whether an allocation is an answer to Allocate."""
    return isinstance(allocation.origin, DevicePluginOrigin)


def plugin(allocation: Allocation) -> DevicePluginOrigin:
    """The origin of an allocation; an empty one, without device IDs, where another API gave it out."""
    return allocation.origin if isinstance(allocation.origin, DevicePluginOrigin) else _NONE


def plugin_part(table: AllocationTable) -> tuple[AllocationTable, AllocationTable]:
    """The allocations of a table that are answers to Allocate, and the others."""
    return table.only(is_plugin), table.only(lambda allocation: not is_plugin(allocation))


def container_ref(allocation: Allocation) -> ContainerRef | None:
    """The container that an answer to Allocate is for; None while that is not known."""
    return plugin(allocation).ref


def kept(allocation: Allocation) -> frozenset[str]:
    """The device IDs whose slices still count for an allocation, whatever the kubelet makes of the device IDs."""
    return frozenset() if allocation.ended else plugin(allocation).own


def held(allocation: Allocation) -> frozenset[str]:
    """The device IDs that are an allocation's in the kubelet's count too: no two allocations hold the same one."""
    return frozenset() if plugin(allocation).forgotten else kept(allocation)


def with_origin(allocation: Allocation, **changes: Any) -> Allocation:
    """The allocation with some fields of its origin changed; what its holds have lent follows."""
    return with_tokens(allocation, replace(plugin(allocation), **changes))


def with_tokens(allocation: Allocation, origin: DevicePluginOrigin) -> Allocation:
    """The allocation with that origin. A hold counts one slice less for each device ID of its GPU that is lent."""
    if not origin.lent and not plugin(allocation).lent:
        return replace(allocation, origin=origin)
    holds = tuple(
        _lending(hold, len(origin.lent.intersection(gpu_tokens.device_ids)) * hold.slice_bytes)
        for hold, gpu_tokens in zip(allocation.holds, origin.tokens, strict=True)
    )
    return replace(allocation, origin=origin, holds=holds)


def _lending(hold: Hold, lent_bytes: int) -> Hold:
    return hold if hold.lent_bytes == lent_bytes else replace(hold, lent_bytes=lent_bytes)


def assign_device_ids(device_ids: Iterable[str], placement: Placement) -> tuple[GpuTokens, ...]:
    """Serves each device ID from a GPU of PLACEMENT: from the one it is named after where that has room, else in order.

    The number of device IDs and of slices must be the same; StateError otherwise.
    """
    rest: Sequence[str] = sorted(set(device_ids), key=device_order)
    if len(rest) != placement.slices:
        raise StateError(f"{placement.slices} slices were placed for {len(rest)} devices")
    own: dict[str, list[str]] = {}
    for share in placement.shares:
        named = [device_id for device_id in rest if device_id.startswith(share.gpu + "/")][: share.slices]
        own[share.gpu] = named
        taken = frozenset(named)
        rest = [device_id for device_id in rest if device_id not in taken]
    tokens = []
    for share in placement.shares:
        missing = share.slices - len(own[share.gpu])
        served, rest = [*own[share.gpu], *rest[:missing]], rest[missing:]
        tokens.append(GpuTokens(share.gpu, tuple(served)))
    return tuple(tokens)
