# SPDX-License-Identifier: Apache-2.0
"""The parts of a running node agent, built in the order in which they need each other.

This and `agent.roles.node` are the composition root: nothing is decided here. A part gets what it needs when it is
built, so every name stands above the line that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from agent.accounting.auditor import Auditor
from agent.accounting.memory_monitor import MemoryMonitor
from agent.accounting.overuse import OverusePolicy
from agent.accounting.presence import own_pod
from agent.allocation.dataset_gate import DatasetGate, NoDatasetGate
from agent.allocation.node_inventory import InventoryPublisher
from agent.allocation.start import StartChecks
from agent.apiserver import KubeCluster, NoCluster, find_access
from agent.apiserver.consumer_pods import ConsumerPods
from agent.apiserver.node_client import node_client
from agent.claims.slice_source import SliceSource
from agent.config import Config
from agent.control.server import ControlServer
from agent.deviceplugin.device_list import DeviceList
from agent.deviceplugin.servicer import Servicer
from agent.deviceplugin.withholding import Withholding
from agent.health.controller import HealthController
from agent.inventory.holder import InventoryHolder
from agent.inventory.scanner import Scanner
from agent.inventory.source import Source
from agent.limits.compute_manager import ComputeManager
from agent.limits.cpus import CpuBinder
from agent.limits.driver_limit_client import DriverLimitClient
from agent.limits.driver_limit_manager import DriverLimitManager
from agent.limits.driver_refusals import DriverRefusals
from agent.limits.manager import LimitsManager
from agent.limits.no_driver_limits import NoDriverLimits
from agent.limits.pod_users import PodUsers
from agent.limits.quota_refusals import QuotaRefusals
from agent.limits.time_slice_manager import TimeSliceManager
from agent.link import Link
from agent.persistence.housekeeper import Housekeeper
from agent.persistence.room import Room
from agent.persistence.store import Store
from agent.providers.rdma import Rdma
from agent.providers.resource import DevicePluginResource
from agent.roles.claim_parts import ClaimParts, build_claims, claims_are_served
from agent.roles.gpu_health_events import GpuHealthEvents
from agent.roles.ledger_events import LedgerEvents
from agent.roles.metric_collector import MetricCollector
from agent.roles.new_types import NewTypes
from agent.roles.plugin_parts import PluginBuilder, allocation_service
from agent.telemetry.counters import Counters
from gigaslice.core.errors import ConfigError
from gigaslice.core.placement import Policy
from gigaslice.kubeapi.client import KubeClient
from gigaslice.runtime import logs
from gigaslice.runtime.clock import steady
from gigaslice.runtime.heap import keep_small
from gigaslice.runtime.http_server import endpoints

__all__ = ["Parts", "Run", "build"]

_SETTLE_SECONDS = 5.0
Run = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Parts:
    """What runs in a node agent.

    Attributes:
        servicer: Serves GPU memory to the kubelet.
        types: Serve GPU memory of further types of GPUs.
        whole_gpus: Serves GPUs as a whole, where they are offered.
        providers: Resources that have nothing to do with GPUs.
        essential: Parts whose failure ends the agent.
        restarted: Parts without which the others go on; by name, as in gigaslice_component_failures_total.
        settled: Returns when the lists can be served.
        claims: Serve claims to devices; None where this node has none and gives none out.
    """

    servicer: Servicer
    types: tuple[DevicePluginResource, ...]
    whole_gpus: tuple[DevicePluginResource, ...]
    providers: tuple[DevicePluginResource, ...]
    essential: dict[str, Run]
    restarted: dict[str, Run]
    counters: Counters
    settled: Run
    claims: ClaimParts | None


def build(
    config: Config,
    source: Source,
    gpus: InventoryHolder,
    store: Store,
    *,
    link: Link,
    renew: Callable[[str], None],
) -> Parts:
    """Builds every part.

    Args:
        config: The settings.
        source: Where the GPUs come from.
        gpus: The GPUs that it has found.
        store: The allocation table, open.
        link: The way to the front.
        renew: Has the agent start anew.
    """
    now, counters, scanned, devices = steady(), Counters(), gpus.now, DeviceList(gpus)
    cluster, client, datasets = _outside(config, store)
    health = HealthController(
        source,
        config.state_dir,
        cooldown=config.health_cooldown,
        interval=config.scan_interval,
        now=now,
        gpus=gpus,
        told=GpuHealthEvents(cluster, store).send,
    )
    health.open()
    driver_limits = _driver_limits(config, store, gpus, cluster, devices)
    types = config.resource_types
    resources = tuple(dict.fromkeys(types.of(gpu.model) for gpu in scanned.gpus))
    limits = LimitsManager(
        store,
        allocation_service(config, store, gpus, now),
        cluster,
        slice_bytes=config.slice_bytes,
        rights=config.annotation_rights,
        interval=config.measure_interval,
        most=driver_limits.most_for,
    )
    driver_limits.watchers.append(limits.refresh)
    limits.refresh(every=True)
    plugin = PluginBuilder(
        config,
        store,
        gpus,
        now,
        cluster=cluster,
        datasets=datasets,
        driver_limits=driver_limits,
        resources=resources,
        node=config.node,
    ).build(devices, limits.changed)
    gpu_memory, *others = plugin.gpu_memory
    servicer = Servicer(gpu_memory, counters)
    room = Room(
        config.state_dir,
        lambda usable: devices.withdraw("state directory", not usable),
        probe=store.probe,
        failures=store.watch_failures,
    )
    time_slices = TimeSliceManager(store, lambda: gpus.now)
    auditor = Auditor(store, cluster, _overuse_policy(config), counters, driver_used=driver_limits.used_by)
    memory_monitor = MemoryMonitor(store, source, config.measure_interval, auditor)
    claims = None
    if client is not None and isinstance(cluster, KubeCluster) and claims_are_served(config, store):
        service = allocation_service(config, store, gpus, now)
        checks = StartChecks(store, service, cluster, datasets, driver_limits)
        claims = build_claims(
            config,
            store,
            service,
            checks,
            cluster=cluster,
            client=client,
            slices=SliceSource(
                store,
                gpus,
                Policy(config.placement),
                fault=health.fault,
                labels=config.gpu_labels,
                watch=devices.watch,
                driver_limits=lambda: driver_limits.report.backend,
            ),
            link=link,
            counters=counters,
            allocated=limits.changed,
        )
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
        driver_limits=driver_limits,
        claims=claims,
        claims_lead=config.api == "dra",
    )
    withholding = Withholding(
        store,
        gpus,
        cluster,
        interval=config.measure_interval,
        withhold=devices.withhold,
        outlived=plugin.poller.outlived,
        closed=config.api == "dra",
    )
    withholding.apply()
    restarted: dict[str, Run] = {
        "cluster": cluster.run,
        "datasets": datasets.run,
        "ends": plugin.poller.follow,
        "limits": limits.run,
        "driver_limits": driver_limits.run,
        "driver_refusals": DriverRefusals(
            lambda: store.table,
            lambda: {key: measured.reading for key, measured in memory_monitor.last.items()},
            driver_limits.states_of,
            room=lambda gpu: driver_limits.room(gpu) - auditor.survey.foreign.get(gpu, 0),
            pods=ConsumerPods(cluster),
            interval=config.measure_interval,
        ).run,
        "quota_refusals": QuotaRefusals(
            lambda: store.table,
            lambda: {key: measured.reading for key, measured in memory_monitor.last.items()},
            pods=ConsumerPods(cluster),
            interval=config.measure_interval,
        ).run,
        "withholding": withholding.run,
        "shares": ComputeManager(store, now, source.process_busy).run,
        "time_slices": time_slices.run,
        "control": ControlServer(store, limits).run,
        "memory_monitor": memory_monitor.run,
        "ledgers": store.dirs.ledgers.run,
        "http": endpoints(config, metrics.collect, metrics.unready, node=config.node).run,
        "scanner": Scanner(
            source, config.scan_interval, last=lambda: health.scanned, changed=health.set_inventory
        ).run,
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
            driver_limits=lambda: driver_limits.report.backend,
        ).run
    if claims is not None:
        restarted.update(
            {
                "claim_release": claims.release.run,
                "claim_consumers": claims.following.run,
                "claim_waking": claims.waking.run,
                "slices": claims.slices.run,
            }
        )
    if config.resource_per_type is not None:
        restarted["types"] = NewTypes(gpus, types, resources, config.type_contradictions, renew).run
    if config.bind_cpus == "on":
        restarted["cpus"] = CpuBinder(store, lambda: gpus.now, config.measure_interval).run
    providers: list[DevicePluginResource] = []
    if config.rdma:
        providers.append(Rdma(config.rdma, config.sysfs, config.rdma_share, config.scan_interval))
    essential: dict[str, Run] = {
        "poller": plugin.poller.run,
        "housekeeper": Housekeeper(store, config.poll_interval).run,
        "room": room.run,
    }

    async def settled() -> None:
        if config.driver_limits == "required":
            await driver_limits.settled(_SETTLE_SECONDS)

    return Parts(
        servicer,
        tuple(others),
        plugin.whole_gpus,
        tuple(providers),
        essential=essential,
        restarted=restarted,
        counters=counters,
        settled=settled,
        claims=claims,
    )


def _driver_limits(
    config: Config, store: Store, gpus: InventoryHolder, cluster: KubeCluster | NoCluster, devices: DeviceList
) -> DriverLimitManager | NoDriverLimits:
    if config.driver_limits == "off":
        return NoDriverLimits(store)
    reason = "driver limits"
    devices.withdraw(reason, config.driver_limits == "required")  # until the first round
    return DriverLimitManager(
        store,
        gpus,
        PodUsers(store, cluster, exempt=config.driver_limits_exempt, own_pod=own_pod()),
        DriverLimitClient(config.driver_limits_socket),
        ConsumerPods(cluster),
        mode=config.driver_limits,
        margin=config.driver_limits_margin,
        interval=config.measure_interval,
        usable=lambda usable: devices.withdraw(reason, not usable),
    )


def _outside(
    config: Config, store: Store
) -> tuple[KubeCluster | NoCluster, KubeClient | None, DatasetGate | NoDatasetGate]:
    cluster, client = _cluster(config)
    if store.dirs.ledger_files.unsafe:
        store.watchers.append(LedgerEvents(cluster, store).send)
    return cluster, client, _dataset_gate(config, lambda: cluster.synced)


def _dataset_gate(config: Config, sees_pods: Callable[[], bool]) -> DatasetGate | NoDatasetGate:
    if config.dataset_gate is None:
        return NoDatasetGate()
    resources = [name for name in (config.resource, config.whole_gpus) if name]
    return DatasetGate(config.dataset_gate, resources, sees_pods)


def _overuse_policy(config: Config) -> OverusePolicy:
    over_limit = config.evict_over_limit == "on"
    return OverusePolicy(config.overuse, config.evict_grace, config.evict_above, over_limit=over_limit)


def _cluster(config: Config) -> tuple[KubeCluster | NoCluster, KubeClient | None]:
    """The API server as this node sees it, and the way to it, or none. One line of the log says which, and why.

    Raises ConfigError where claims are to be served without it.
    """
    log = logs.get_logger("node")
    if config.kube_api == "off":
        log.info("no access to the API server; annotations and events are off", detail="--kube-api=off")
        return NoCluster(), None
    access, whence = find_access(
        config.kubeconfig, config.kubernetes_service, variable=config.kubeconfig_variable
    )
    node = config.node if config.node_name or config.kubeconfig else ""
    if access is not None and not node:
        access, whence = None, "--node-name is not set, and a pod does not know its node's name"
    if access is None:
        if config.api == "dra":
            raise ConfigError(f"--api=dra needs access to the API server, which has the claims: {whence}")
        log.info("no access to the API server; annotations and events are off", detail=whence)
        return NoCluster(), None
    log.info("API server", server=str(access), credentials=whence, node=node)
    client = node_client(access)
    return KubeCluster(client, node), client
