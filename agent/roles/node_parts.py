"""The parts of a running node agent, built in the order in which they need each other.

This and `agent.roles.node` are the composition root: nothing is decided here. A part gets what it needs when it is
built, so every name stands above the line that uses it.
"""

from __future__ import annotations

import platform
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from agent.accounting.auditor import Auditor
from agent.accounting.memory_monitor import MemoryMonitor
from agent.accounting.overuse import OverusePolicy
from agent.allocation.dataset_gate import DatasetGate, NoDatasetGate
from agent.allocation.node_inventory import InventoryPublisher
from agent.allocation.pod_events import PodEvents
from agent.allocation.service import AllocationService
from agent.allocation.start import StartDecider
from agent.apiserver import KubeCluster, NoCluster, find_access
from agent.apiserver.wire import Api
from agent.config import Config
from agent.control.server import ControlServer
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.device_list import DeviceList, DevicesOfType
from agent.deviceplugin.gpu_memory import GpuMemory
from agent.deviceplugin.poller import Poller
from agent.deviceplugin.replay import ReplayResolver
from agent.deviceplugin.servicer import Servicer
from agent.deviceplugin.whole_gpu_admission import WholeGpuAdmissions
from agent.health.controller import HealthController
from agent.inventory.holder import GpusNow, InventoryHolder
from agent.inventory.scanner import Scanner
from agent.inventory.source import Source
from agent.inventory.view import InventoryView
from agent.kubelet.kubelet_checkpoint import KeptAnswers
from agent.kubelet.podresources import PodResourcesClient
from agent.limits.compute_manager import ComputeManager
from agent.limits.cpus import CpuBinder
from agent.limits.manager import LimitsManager
from agent.limits.time_slice_manager import TimeSliceManager
from agent.persistence.room import Room
from agent.persistence.store import Store
from agent.providers.provider import Provider
from agent.providers.rdma import Rdma
from agent.providers.whole_gpus import WholeGpus
from agent.roles.gpu_health_events import GpuHealthEvents
from agent.roles.ledger_events import LedgerEvents
from agent.roles.metric_collector import MetricCollector
from agent.roles.new_types import NewTypes
from agent.telemetry.counters import Counters
from agent.telemetry.metrics import Exposition
from gigaslice.model import Gpu, ResourceTypes
from gigaslice.placement import Policy
from gigaslice.runtime import logs
from gigaslice.runtime.clock import steady
from gigaslice.runtime.heap import keep_small
from gigaslice.runtime.http_server import Server

__all__ = ["Parts", "Run", "build"]

Run = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Parts:
    """What runs in a node agent.

    servicer: serves GPU memory to the kubelet. types: serve GPU memory of further types of GPUs. providers: the other
    resources. essential: parts whose failure ends the
    agent. restarted: parts without which the others go on; by name, as in gigaslice_component_failures_total.
    """

    servicer: Servicer
    types: tuple[Provider, ...]
    providers: tuple[Provider, ...]
    essential: dict[str, Run]
    restarted: dict[str, Run]
    counters: Counters


def build(
    config: Config, source: Source, gpus: InventoryHolder, store: Store, renew: Callable[[str], None]
) -> Parts:
    """Builds every part. STORE is open, and GPUS holds what SOURCE has found. RENEW has the agent start anew."""
    now, counters, scanned, devices = steady(), Counters(), gpus.now, DeviceList(gpus)
    cluster, datasets = _outside(config, store)
    health = HealthController(
        source,
        config.state_dir,
        cooldown=config.health_cooldown,
        interval=config.scan_interval,
        now=now,
        changed=devices.set_inventory,
        told=GpuHealthEvents(cluster, store).send,
    )
    gpus.now = health.open(scanned)
    types = config.resource_types
    resources = tuple(dict.fromkeys(types.of(gpu.model) for gpu in scanned.gpus))
    service = _service(config, store, gpus, now, resources=resources, resource=resources[0])
    node = config.node_name or platform.node().lower()
    kubelet = PodResourcesClient(config.pod_resources, resources, whole=config.whole_gpus, node=node)
    answers = KeptAnswers(config.kubelet_dir, resources, config.whole_gpus).read
    poller = Poller(store, service, kubelet, config.poll_interval, now, cluster=cluster, answers=answers)
    limits = LimitsManager(
        store,
        service,
        cluster,
        slice_bytes=config.slice_bytes,
        rights=config.annotation_rights,
        interval=config.measure_interval,
        withhold=devices.withhold,
        outlived=poller.outlived,
    )
    limits.refresh(every=True)
    allocated = _both(limits.changed, poller.wake)
    events = PodEvents(service, cluster)
    starts = StartDecider(store, service, cluster, events, allocated, datasets=datasets)
    replays = ReplayResolver(store, service, cluster, answers)
    sliced: list[GpuMemory] = []
    for resource in resources:
        part: GpusNow = gpus
        served: DeviceList | DevicesOfType = devices
        chosen = service
        if config.resource_per_type is not None:
            part = InventoryView(gpus, _is_of(types, resource))
            served = DevicesOfType(devices, part)
            chosen = _service(config, store, part, now, resources=resources, resource=resource)
        told = PodEvents(chosen, cluster)
        sliced.append(
            GpuMemory(
                store,
                chosen,
                served,
                config.visible_devices,
                admissions=AdmissionResolver(store, kubelet.of(resource), cluster, resource),
                replays=replays,
                starts=StartDecider(store, chosen, cluster, told, allocated, datasets=datasets),
                events=told,
                allocated=allocated,
            )
        )
    gpu_memory, *others = sliced
    servicer = Servicer(gpu_memory, counters)
    room = Room(config.state_dir, devices.set_recordable, probe=store.probe, failures=store.watch_failures)
    time_slices = TimeSliceManager(store, lambda: gpus.now)
    auditor = Auditor(store, cluster, _overuse_policy(config), counters)
    memory_monitor = MemoryMonitor(store, source, config.measure_interval, auditor)
    metrics = MetricCollector(
        resource=config.resource,
        store=store,
        gpus=gpus,
        servicer=servicer,
        health=health,
        memory_monitor=memory_monitor,
        auditor=auditor,
        counters=counters,
        room=room,
        time_slices=time_slices,
        cluster=cluster,
    )
    exposition = Exposition(node, metrics.collect)
    restarted: dict[str, Run] = {
        "cluster": cluster.run,
        "datasets": datasets.run,
        "ends": poller.follow,
        "limits": limits.run,
        "shares": ComputeManager(store, now, source.process_busy).run,
        "time_slices": time_slices.run,
        "control": ControlServer(store, limits).run,
        "memory_monitor": memory_monitor.run,
        "ledgers": store.dirs.ledgers.run,
        "http": Server(
            config.metrics_address, exposition.prepare, metrics.unready, config.metrics_token_file
        ).run,
        "scanner": Scanner(source, scanned, config.scan_interval, health.set_inventory).run,
        "health": health.run,
        "listener": health.listen,
        "memory": keep_small,
    }
    if cluster.expected:
        restarted["inventory"] = InventoryPublisher(
            store,
            gpus,
            cluster,
            reason=health.reason,
            resource=lambda gpu: types.of(gpu.model),
            whole_resource=config.whole_gpus,
            labels=config.gpu_labels,
            watch=devices.watch,
            rights=config.annotation_rights,
        ).run
    if config.resource_per_type is not None:
        restarted["types"] = NewTypes(gpus, types, resources, config.type_contradictions, renew).run
    if config.bind_cpus == "on":
        restarted["cpus"] = CpuBinder(store, lambda: gpus.now, config.measure_interval).run
    providers: list[Provider] = []
    if config.whole_gpus:
        resolver = AdmissionResolver(
            store, kubelet.of(config.whole_gpus), cluster, config.whole_gpus, whole=True
        )
        providers.append(
            WholeGpus(
                config.whole_gpus,
                store,
                service,
                Policy(config.placement),
                config.visible_devices,
                now=now,
                new_id=_new_id,
                withhold=devices.set_taken_whole,
                allocated=allocated,
                decide=starts.decide,
                identify=WholeGpuAdmissions(resolver, service.chooser, cluster, events).identify,
                ended=resolver.over,
            )
        )
    if config.rdma:
        providers.append(Rdma(config.rdma, config.sysfs, config.rdma_share, config.scan_interval))
    essential: dict[str, Run] = {"poller": poller.run, "room": room.run}
    return Parts(servicer, tuple(others), tuple(providers), essential, restarted, counters)


def _outside(config: Config, store: Store) -> tuple[KubeCluster | NoCluster, DatasetGate | NoDatasetGate]:
    cluster = _cluster(config)
    if store.dirs.ledger_files.unsafe:
        store.watchers.append(LedgerEvents(cluster, store).send)
    return cluster, _dataset_gate(config, lambda: cluster.synced)


def _dataset_gate(config: Config, sees_pods: Callable[[], bool]) -> DatasetGate | NoDatasetGate:
    if config.dataset_gate is None:
        return NoDatasetGate()
    resources = [name for name in (config.resource, config.whole_gpus) if name]
    return DatasetGate(config.dataset_gate, resources, sees_pods)


def _is_of(types: ResourceTypes, resource: str) -> Callable[[Gpu], bool]:
    return lambda gpu: types.of(gpu.model) == resource


def _service(
    config: Config,
    store: Store,
    gpus: GpusNow,
    now: Callable[[], float],
    *,
    resources: tuple[str, ...],
    resource: str,
) -> AllocationService:
    return AllocationService(
        store,
        gpus,
        Policy(config.placement),
        now,
        _new_id,
        resource=resource,
        whole_resource=config.whole_gpus,
        slice_resources=resources,
        slice_bytes=config.slice_bytes,
        rights=config.annotation_rights,
    )


def _new_id() -> str:
    return secrets.token_hex(16)


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


def _overuse_policy(config: Config) -> OverusePolicy:
    over_limit = config.evict_over_limit == "on"
    return OverusePolicy(config.overuse, config.evict_grace, config.evict_above, over_limit=over_limit)


def _cluster(config: Config) -> KubeCluster | NoCluster:
    """The API server as this node sees it, or none. One line of the log says which, and why."""
    log = logs.get_logger("node")
    if config.kube_api == "off":
        log.info("no access to the API server; annotations and events are off", detail="--kube-api=off")
        return NoCluster()
    access, whence = find_access(config.kubeconfig, config.kubernetes_service)
    node = config.node_name or (platform.node().lower() if config.kubeconfig else "")
    if access is not None and not node:
        access, whence = None, "--node-name is not set, and a pod does not know its node's name"
    if access is None:
        log.info("no access to the API server; annotations and events are off", detail=whence)
        return NoCluster()
    log.info("API server", server=str(access), credentials=whence, node=node)
    return KubeCluster(Api(access), node)
