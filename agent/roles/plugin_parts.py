# SPDX-License-Identifier: Apache-2.0
"""The parts of a node agent that speak the kubelet's device-plugin API: built here, decided nowhere.

What is here, `agent.deviceplugin`, `agent.kubelet`, `agent.front` and `gigaslice.core.deviceplugin` belong together,
and nothing else of the agent knows of device IDs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from agent.allocation.dataset_gate import DatasetGate, NoDatasetGate
from agent.allocation.service import AllocationService
from agent.allocation.start import StartChecks
from agent.allocation.start_wait import StartTimes
from agent.apiserver import Cluster
from agent.config import Config
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.container_requests import ContainerRequests
from agent.deviceplugin.device_allocator import DeviceAllocator
from agent.deviceplugin.device_list import DeviceList, DevicesOfType
from agent.deviceplugin.gpu_memory import GpuMemory
from agent.deviceplugin.gpu_resource import ResourceParts
from agent.deviceplugin.pod_events import PodEvents
from agent.deviceplugin.poller import Poller
from agent.deviceplugin.prestart import StartDecider
from agent.deviceplugin.settlement import Settlement, Settler
from agent.deviceplugin.start_allocation import StartAllocationResolver
from agent.deviceplugin.whole_gpus import WholeGpus
from agent.inventory.holder import GpusNow, InventoryHolder
from agent.inventory.view import InventoryView
from agent.kubelet.kubelet_checkpoint import KeptResponses
from agent.kubelet.podresources import PodResourcesClient
from agent.limits.driver_limit_manager import DriverLimitManager
from agent.limits.no_driver_limits import NoDriverLimits
from agent.persistence.store import Store
from gigaslice.core import units
from gigaslice.core.model import Gpu, SliceUnit
from gigaslice.core.placement import Policy

__all__ = ["PluginBuilder", "PluginParts", "allocation_service"]


@dataclass(frozen=True, slots=True)
class PluginParts:
    """What serves the kubelet. gpu_memory: one for each resource of slices. whole_gpus: one where they are offered."""

    poller: Poller
    gpu_memory: tuple[GpuMemory, ...]
    whole_gpus: tuple[WholeGpus, ...]


class PluginBuilder:
    """Builds them."""

    def __init__(
        self,
        config: Config,
        store: Store,
        gpus: InventoryHolder,
        now: Callable[[], float],
        *,
        cluster: Cluster,
        datasets: DatasetGate | NoDatasetGate,
        driver_limits: DriverLimitManager | NoDriverLimits,
        resources: tuple[str, ...],
        node: str,
    ) -> None:
        """Initializes the builder.

        Args:
            config: The settings.
            store: The allocation table.
            gpus: The GPUs.
            now: Returns Unix time in seconds.
            cluster: The pods of this node.
            datasets: What a start waits for besides its GPUs.
            driver_limits: What sets the driver's limits before a start.
            resources: The resources of slices.
            node: The node's name.
        """
        self._config = config
        self._store = store
        self._gpus = gpus
        self._now = now
        self._cluster = cluster
        self._datasets = datasets
        self._driver_limits = driver_limits
        self._resources = resources
        self._kubelet = PodResourcesClient(
            config.pod_resources, resources, whole=config.whole_gpus, node=node
        )
        self._kept_responses = KeptResponses(config.kubelet_dir, resources, config.whole_gpus).read

    def build(self, devices: DeviceList, changed: Callable[[], None]) -> PluginParts:
        """Builds every part. CHANGED: called when the allocation table may have changed."""
        slices = self._allocator(self._gpus, self._resources[0])
        poller = Poller(
            self._store,
            slices,
            Settler(self._store, slices),
            self._kubelet,
            interval=self._config.poll_interval,
            now=self._now,
            cluster=self._cluster,
            kept_responses=self._kept_responses,
        )

        def allocated() -> None:
            changed()
            poller.wake()

        gpu_memory = tuple(
            self._gpu_memory(resource, slices, devices, allocated) for resource in self._resources
        )
        whole_gpus = (self._whole_gpus(devices, allocated),) if self._config.whole_gpus else ()
        return PluginParts(poller, gpu_memory, whole_gpus)

    def _gpu_memory(
        self, resource: str, slices: DeviceAllocator, devices: DeviceList, allocated: Callable[[], None]
    ) -> GpuMemory:
        served: DeviceList | DevicesOfType = devices
        allocator = slices
        if self._config.resource_per_type is not None:
            part = InventoryView(self._gpus, self._is_of(resource))
            served = DevicesOfType(devices, part)
            allocator = self._allocator(part, resource)
        starts = StartAllocationResolver(self._store, slices, self._cluster, self._kept_responses)
        return GpuMemory(self._parts(allocator, allocated), served, starts)

    def _whole_gpus(self, devices: DeviceList, allocated: Callable[[], None]) -> WholeGpus:
        allocator = self._allocator(self._gpus, self._resources[0], whole=True)
        whole_gpus = WholeGpus(
            self._parts(allocator, allocated),
            self._gpus,
            devices.set_taken_whole,
            closed=self._config.api == "dra",
        )
        whole_gpus.withhold_slices()
        return whole_gpus

    def _parts(self, allocator: DeviceAllocator, allocated: Callable[[], None]) -> ResourceParts:
        store, cluster, resource = self._store, self._cluster, allocator.resource
        events = PodEvents(allocator, cluster)
        settlement = Settlement(store, Settler(store, allocator), allocator, cluster, events)
        checks = StartChecks(store, allocator.service, cluster, self._datasets, self._driver_limits)
        return ResourceParts(
            store,
            allocator,
            self._config.visible_devices,
            admissions=AdmissionResolver(
                store, self._kubelet.of(resource), cluster, resource, whole=allocator.whole
            ),
            starts=StartDecider(
                store, checks, settlement, cluster, events=events, blocked=allocated, times=StartTimes()
            ),
            events=events,
            allocated=allocated,
        )

    def _allocator(self, gpus: GpusNow, resource: str, *, whole: bool = False) -> DeviceAllocator:
        config = self._config
        container_requests = ContainerRequests(
            gpus,
            SliceUnit(config.slice_bytes, units.parse_bytes),
            resource,
            whole_resource=config.whole_gpus,
            slice_resources=self._resources,
            rights=config.annotation_rights,
        )
        service = allocation_service(config, self._store, gpus, self._now)
        return DeviceAllocator(service, self._store, container_requests, self._now, whole=whole)

    def _is_of(self, resource: str) -> Callable[[Gpu], bool]:
        types = self._config.resource_types
        return lambda gpu: types.of(gpu.model) == resource


def allocation_service(
    config: Config, store: Store, gpus: GpusNow, now: Callable[[], float]
) -> AllocationService:
    """Returns the allocation service over some GPUs."""
    return AllocationService(
        store,
        gpus,
        Policy(config.placement),
        now,
        lambda: secrets.token_hex(16),
        slice_bytes=config.slice_bytes,
    )
