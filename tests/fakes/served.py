"""The provider of GPU memory without a node agent around it, and a servicer behind a front in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from agent.allocation.pod_events import PodEvents
from agent.allocation.service import AllocationService
from agent.allocation.start import StartDecider
from agent.apiserver import Cluster, NoCluster
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.device_list import DeviceList
from agent.deviceplugin.gpu_memory import GpuMemory
from agent.deviceplugin.hosting import serve_one
from agent.deviceplugin.link import Link
from agent.deviceplugin.replay import ReplayResolver
from agent.deviceplugin.servicer import Servicer
from agent.inventory.holder import InventoryHolder
from agent.persistence.store import Store
from agent.telemetry.counters import Counters
from gigaslice.allocation.lifetime import ListedPod, PodListing
from gigaslice.allocation.reconcile import Answered
from gigaslice.errors import KubeletError


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
    allocator: AllocationService,
    gpus: InventoryHolder,
    *,
    kubelet: Any = None,
    cluster: Cluster | None = None,
    kept_answers: Callable[[], Sequence[Answered] | None] = lambda: None,
) -> Parts:
    """The parts as the node agent joins them. Without KUBELET and CLUSTER no container is ever identified."""
    cluster, devices, counters = cluster or NoCluster(), DeviceList(gpus), Counters()
    events = PodEvents(allocator, cluster)
    starts = StartDecider(store, allocator, cluster, events, lambda: None)
    provider = GpuMemory(
        store,
        allocator,
        devices,
        "env",
        admissions=AdmissionResolver(store, kubelet or NoKubelet(), cluster, allocator.resource),
        replays=ReplayResolver(store, allocator, cluster, kept_answers),
        starts=starts,
        events=events,
        allocated=lambda: None,
    )
    return Parts(Servicer(provider, counters), provider, devices, starts, counters)


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
