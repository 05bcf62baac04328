# SPDX-License-Identifier: Apache-2.0
"""The provider of GPU memory without a node agent around it, and a servicer behind a front in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from agent.allocation.dataset_gate import StartCondition
from agent.allocation.start import StartChecks
from agent.allocation.start_wait import StartTimes
from agent.apiserver import Cluster, NoCluster
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.device_allocator import DeviceAllocator
from agent.deviceplugin.device_list import DeviceList
from agent.deviceplugin.gpu_memory import GpuMemory
from agent.deviceplugin.gpu_resource import ResourceParts
from agent.deviceplugin.hosting import serve_one
from agent.deviceplugin.pod_events import PodEvents
from agent.deviceplugin.poller import Poller
from agent.deviceplugin.prestart import StartDecider
from agent.deviceplugin.servicer import Servicer
from agent.deviceplugin.settlement import Settlement, Settler
from agent.deviceplugin.start_allocation import StartAllocationResolver
from agent.inventory.holder import InventoryHolder
from agent.link import Link
from agent.persistence.store import Store
from agent.telemetry.counters import Counters
from gigaslice.core.deviceplugin.lifetime import ListedPod, PodListing
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse
from gigaslice.core.errors import KubeletError


class NoKubelet:
    """A pod-resources API that never answers."""

    settled = informed = False

    async def pods(self) -> tuple[ListedPod, ...]:
        raise KubeletError("no kubelet")

    async def list(self) -> PodListing:
        raise KubeletError("no kubelet")


@dataclass
class Parts:
    """The provider of GPU memory with the parts that a test looks at."""

    servicer: Servicer
    provider: GpuMemory
    devices: DeviceList
    starts: StartDecider
    counters: Counters


def gpu_memory(
    store: Store,
    allocator: DeviceAllocator,
    gpus: InventoryHolder,
    *,
    kubelet: Any = None,
    cluster: Cluster | None = None,
    kept_responses: Callable[[], Sequence[KeptAllocateResponse] | None] = lambda: None,
    times: StartTimes = StartTimes(),  # noqa: B008  (frozen)
) -> Parts:
    """The parts as the node agent joins them. Without KUBELET and CLUSTER no container is ever identified."""
    cluster, devices, counters = cluster or NoCluster(), DeviceList(gpus), Counters()
    events = PodEvents(allocator, cluster)
    starts = start_decider(store, allocator, cluster, events, times=times)
    parts = ResourceParts(
        store,
        allocator,
        "env",
        admissions=AdmissionResolver(store, kubelet or NoKubelet(), cluster, allocator.resource),
        starts=starts,
        events=events,
        allocated=lambda: None,
    )
    start_allocations = StartAllocationResolver(store, allocator, cluster, kept_responses)
    provider = GpuMemory(parts, devices, start_allocations)
    return Parts(Servicer(provider, counters), provider, devices, starts, counters)


def start_decider(
    store: Store,
    allocator: DeviceAllocator,
    cluster: Cluster,
    events: PodEvents,
    blocked: Callable[[], None] = lambda: None,
    *,
    datasets: StartCondition | None = None,
    times: StartTimes = StartTimes(),  # noqa: B008  (frozen)
) -> StartDecider:
    """The start decision as the node agent joins it."""
    settlement = Settlement(store, Settler(store, allocator), allocator, cluster, events)
    checks = StartChecks(store, allocator.service, cluster, datasets)
    return StartDecider(store, checks, settlement, cluster, events=events, blocked=blocked, times=times)


def poller_of(
    store: Store,
    allocator: DeviceAllocator,
    kubelet: Any,
    interval: float = 3600.0,
    now: Callable[[], float] = lambda: 1.0,
    **more: Any,
) -> Poller:
    """The poller as the node agent joins it."""
    return Poller(store, allocator, Settler(store, allocator), kubelet, interval=interval, now=now, **more)


@contextlib.asynccontextmanager
async def served(
    servicer: Servicer, directory: Path, name: str = "p.sock"
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to SERVICER at DIRECTORY/NAME."""
    link, stop = Link.open(), asyncio.Event()
    link.hello("error", "json")
    try:
        async with link.attached():
            work = asyncio.create_task(serve_one(servicer, directory, name, stop, link))
            while not (directory / name).exists():
                if work.done():
                    work.result()
                await asyncio.sleep(0.005)
            try:
                async with grpc.aio.insecure_channel(f"unix:{directory / name}") as channel:
                    yield channel
            finally:
                stop.set()
                await work
    finally:
        await asyncio.to_thread(link.close)
