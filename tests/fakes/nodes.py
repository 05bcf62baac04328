# SPDX-License-Identifier: Apache-2.0
"""Inventories, device IDs and allocations for tests of the agent: small, named, and without any file."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from agent.allocation.service import AllocationService
from agent.deviceplugin.container_requests import ContainerRequests
from agent.deviceplugin.device_allocator import DeviceAllocator
from agent.inventory.holder import GpusNow
from agent.inventory.source import Inventory, Vitals
from agent.persistence.store import Store
from gigaslice.core import units
from gigaslice.core.allocation.consumer import Consumer, ContainerRef
from gigaslice.core.allocation.table import Allocation, AllocationTable, Hold
from gigaslice.core.claims.origin import ClaimDevice, ClaimOrigin
from gigaslice.core.deviceplugin.device_id import gpu_device_ids, whole_gpu_device_id
from gigaslice.core.deviceplugin.lifetime import Listed, PodListing
from gigaslice.core.deviceplugin.origin import DevicePluginOrigin, GpuTokens, with_tokens
from gigaslice.core.model import AnnotationRights, SliceUnit, Topology
from gigaslice.core.placement import Policy
from tests.fakes.gpus import GIB, make_gpu, uuid
from vcuda.version import VERSION

LIBRARY = f"libvcuda-{VERSION}.so"


def inventory(
    gpus: int = 2,
    slices: int = 24,
    numa: tuple[int, ...] = (0, 1),
    unhealthy: tuple[int, ...] = (),
    **fields: Any,
) -> Inventory:
    """Equal GPUs of SLICES GiB, dealt to NUMA nodes in turn; FIELDS are those of each GPU."""
    found = tuple(
        make_gpu(n, slices, numa_node=numa[n % len(numa)], healthy=n not in unhealthy, **fields)
        for n in range(gpus)
    )
    return Inventory(found, Topology.flat(gpus))


def device_ids(gpu: int, *numbers: int) -> frozenset[str]:
    return frozenset(f"{uuid(gpu)}/{number}" for number in numbers)


def all_device_ids(found: Inventory) -> list[str]:
    return [device_id for gpu in found.gpus for device_id in gpu_device_ids(gpu)]


_ORIGIN = {field.name for field in fields(DevicePluginOrigin)}


def allocation(number: int, *tokens: tuple[int, range], **more: object) -> Allocation:
    """An allocation of so many device IDs of each GPU, all named after it: allocation(1, (0, range(8)))."""
    served = tuple(
        GpuTokens(uuid(gpu), tuple(f"{uuid(gpu)}/{n}" for n in numbers)) for gpu, numbers in tokens
    )
    return of_tokens(number, *served, **more)


def of_tokens(number: int, *tokens: GpuTokens, slice_bytes: int = GIB, **more: object) -> Allocation:
    """An allocation of these device IDs; MORE are fields of it, of its origin, or of its only hold."""
    origin = DevicePluginOrigin(tokens, **{key: more.pop(key) for key in _ORIGIN & more.keys()})  # type: ignore[arg-type]
    own = {key: more.pop(key) for key in ("physical_bytes", "cores") if key in more}
    holds = tuple(
        Hold(one.gpu, len(one.device_ids) * slice_bytes, slice_bytes, **own)  # type: ignore[arg-type]
        for one in tokens
    )
    values: dict[str, object] = {"id": f"{number:032x}", "created": 1700000000.5, "library": LIBRARY, **more}
    made = Allocation(number=number, holds=holds, origin=origin, **values)  # type: ignore[arg-type]
    return with_tokens(made, origin)


def consumer(pod: str, uid: str = "", container: str = "c0") -> Consumer:
    """A container of a pod in the namespace "default"."""
    return Consumer(ContainerRef("default", pod, container), uid)


def claim_allocation(
    number: int,
    claim: str,
    *consumers: Consumer,
    gib: int = 8,
    requests: tuple[str, ...] = ("gpu",),
    **more: Any,
) -> Allocation:
    """An allocation of GIB of the first GPU for a claim of the namespace "default" that CONSUMERS share."""
    devices = tuple(ClaimDevice(name, "node-a", "gpu-0", f"share-{number}", uuid(0)) for name in requests)
    origin = ClaimOrigin("default", claim, f"uid-of-{claim}", requests, devices, consumers)
    holds = (Hold(uuid(0), gib * GIB, GIB),)
    fields = {"id": f"{number:032x}", "created": 1700000000.5, "library": LIBRARY, **more}
    return Allocation(number=number, holds=holds, origin=origin, **fields)


def table(*allocations: Allocation) -> AllocationTable:
    """A table with these allocations, added one after the other."""
    result = AllocationTable()
    for one in allocations:
        result = result.with_allocation(one)
    return result


def whole_allocation(number: int, *gpus: int, slices: int = 24, **more: object) -> Allocation:
    """An allocation of whole GPUs of SLICES GiB, each under its own name."""
    tokens = tuple(GpuTokens(uuid(gpu), (whole_gpu_device_id(uuid(gpu)),)) for gpu in gpus)
    return of_tokens(number, *tokens, slice_bytes=slices * GIB, whole=True, **more)


def device_allocator(
    store: Store,
    gpus: GpusNow,
    policy: Policy = Policy.GAIA,
    now: Callable[[], float] = lambda: 1700000000.0,
    new_id: Callable[[], str] | None = None,
    *,
    resource: str = "gigaslice.io/vgpu-memory",
    whole_resource: str = "",
    slice_resources: tuple[str, ...] = (),
    slice_bytes: int = GIB,
    rights: AnnotationRights = AnnotationRights.REFUSE,
    whole: bool = False,
    **options: object,
) -> DeviceAllocator:
    """Allocations by device IDs over a service of their own; without NEW_ID their ids are numbers from 1 on."""
    numbers = itertools.count(1)
    service = AllocationService(
        store,
        gpus,
        policy,
        now,
        new_id or (lambda: f"{next(numbers):032x}"),
        slice_bytes=slice_bytes,
        **options,  # type: ignore[arg-type]
    )
    requests = ContainerRequests(
        gpus,
        SliceUnit(slice_bytes, units.parse_bytes),
        resource,
        whole_resource=whole_resource,
        slice_resources=slice_resources,
        rights=rights,
    )
    return DeviceAllocator(service, store, requests, now, whole=whole)


class ListedKubelet:
    """Answers what the test says; `failure` is raised instead when it is set."""

    def __init__(self) -> None:
        self.listed: tuple[Listed, ...] = ()
        self.pods: frozenset[str] = frozenset()  # besides those of `listed`
        self.failure: Exception | None = None
        self.asked = 0
        self.settled = self.informed = True

    async def list(self):
        self.asked += 1
        if self.failure:
            raise self.failure
        named = {f"{one.container.namespace}/{one.container.pod}" for one in self.listed}
        return PodListing(self.listed, self.pods | named, self.settled)


class FixedSource:
    """A source whose answers the test sets; an exception in place of an answer is raised."""

    def __init__(self, found: Inventory) -> None:
        self.found: Inventory | Exception = found
        self.memory: dict[str, dict[int, int]] | None = None
        self.closed = False
        self.health: dict[str, Vitals] | None = None

    def scan(self) -> Inventory:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def process_memory(self):
        return self.memory

    def process_busy(self, gpu):
        return None

    def events(self, seconds):
        return None

    def vitals(self):
        return self.health

    def close(self) -> None:
        self.closed = True
