"""The node agent: finds the GPUs, keeps the books, serves the kubelet.

The one place where its parts are built and joined. Nothing is decided here but the order: look at the hardware and at
the configuration before touching any state, have the state in order before serving, and serve before registering.
"""

from __future__ import annotations

import asyncio
import gc
import platform
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

import vcuda
from agent import units
from agent.audit.auditor import Auditor
from agent.audit.policy import Policy as AuditPolicy
from agent.config import Config
from agent.control.cpus import CpuBinder
from agent.control.keeper import LimitKeeper
from agent.control.server import ControlServer
from agent.control.shares import ShareKeeper
from agent.control.turns import TurnKeeper
from agent.discovery.lent import LendingSource
from agent.discovery.nvml import NvmlSource
from agent.discovery.source import Inventory, Source
from agent.discovery.static import StaticSource
from agent.errors import ConfigError, MissingError
from agent.health.keeper import Keeper
from agent.kube import KubeCluster, NoCluster, find_access
from agent.kube.wire import Api
from agent.kubelet import sockets, translate
from agent.kubelet.admission import Admissions
from agent.kubelet.allocator import Allocator
from agent.kubelet.measured import MeasuredPlugin
from agent.kubelet.podresources import PodResourcesClient
from agent.kubelet.poller import Poller
from agent.kubelet.registration import Registration
from agent.kubelet.scanner import Scanner
from agent.model import Lending
from agent.placement import Policy
from agent.providers.cards import WholeGpus
from agent.providers.provider import Provider
from agent.providers.rdma import Rdma
from agent.roles.clock import steady
from agent.roles.measures import Measures
from agent.roles.news import card_news
from agent.roles.providers import host, run_beside
from agent.roles.supervise import leave_within, run_together
from agent.roles.waiting import Wait, look_at_bus
from agent.state.measurer import Measurer
from agent.state.room import Room
from agent.state.store import Store
from agent.telemetry import logs
from agent.telemetry.counters import Counters
from agent.telemetry.http import Server
from agent.telemetry.metrics import Exposition

__all__ = ["look", "run"]

_LEAVE_SECONDS = (
    10.0  # for files to be closed and the driver to be left; what remains of the pods' 30 after a signal
)
_MAX_SLICES = 200_000  # the largest list that fits a message has fewer; more would not even fit the memory


def run(config: Config) -> None:
    """Runs the agent until SIGTERM or SIGINT. Raises a GigasliceError, or a vcuda error, that says why it cannot."""
    logs.set_up(config.log_level, config.log_format)
    log = logs.get_logger("node")
    found = _find(config)
    if found is None:
        log.info("stopped")
        return
    source, inventory = found
    store = Store(config.state_dir)
    try:
        _check_list_fits(inventory, config)
        log.info("starting", version=vcuda.__version__, resource=config.resource, inventory=config.inventory)
        for sentence in config.warnings:
            log.warning("configuration", detail=sentence)
        for sentence in inventory.warnings:
            log.warning("discovery", detail=sentence)
        for gpu in inventory.gpus:
            log.info(
                "gpu",
                gpu=gpu.uuid,
                model=gpu.model,
                slices=gpu.slices,
                numa=gpu.numa_node,
                healthy=gpu.healthy,
            )
        store.open()
        gc.freeze()  # the modules' hundred thousand objects: looking through them again stops every thread for long
        asyncio.run(_serve(config, source, inventory, store))
    finally:
        store.close()
        source.close()
    log.info("stopped")


def look(config: Config) -> Inventory:
    """The GPUs as an agent of this configuration would find them now. Raises MissingError or InventoryError."""
    source = _source(config)
    try:
        return source.scan()
    finally:
        source.close()


def _find(config: Config) -> tuple[Source, Inventory] | None:
    """The GPUs and their source, after waiting for them where that is wanted; None when asked to end meanwhile."""

    def scan() -> tuple[Source, Inventory]:
        source = _source(config)  # a driver that has changed is opened anew
        try:
            return source, source.scan()
        except BaseException:
            source.close()
            raise

    try:
        return scan()
    except MissingError as error:
        if config.without_gpus == "exit" or config.inventory != "nvml":
            raise
        sockets.remove_dead(
            config.kubelet_dir / config.socket_name
        )  # else who looks there takes it for a fault
        wait = Wait(
            scan,
            lambda: look_at_bus(config.sysfs),
            interval=config.scan_interval,
            address=config.metrics_address,
            node=config.node_name or platform.node().lower(),
            resource=config.resource,
        )
        return wait.until_found(error)


def _source(config: Config) -> Source:
    source: Source
    if config.inventory == "nvml":
        source = NvmlSource(config.slice_bytes)
    else:
        source = StaticSource(Path(config.inventory), config.slice_bytes)
    if not config.host_memory:
        return source
    by_gpu = {uuid: count for uuid, count in config.host_memory.items() if uuid}
    return LendingSource(source, Lending(config.host_memory.get("", 0), by_gpu))


def _check_list_fits(inventory: Inventory, config: Config) -> None:
    """Refuses slices so small that the kubelet would end the device list's stream without a word to anybody."""
    slices = sum(gpu.slices for gpu in inventory.gpus)
    size = translate.device_list(inventory).ByteSize() if slices <= _MAX_SLICES else slices * 24
    if size <= translate.MAX_MESSAGE_BYTES:
        return
    enough = config.slice_bytes
    while enough * translate.MAX_MESSAGE_BYTES < config.slice_bytes * size:
        enough *= 2
    raise ConfigError(
        [
            f"--slice {units.format_bytes(config.slice_bytes)}: {slices} slices make a device list of "
            f"{units.format_bytes(size)}, and the kubelet takes {units.format_bytes(translate.MAX_MESSAGE_BYTES)}; "
            f"use --slice {units.format_bytes(enough).replace(' ', '')} or more"
        ]
    )


def _cluster(config: Config) -> KubeCluster | NoCluster:
    """The API server as this node sees it, or nobody. Says in one line of the log which it is, and why."""
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


def _providers(
    config: Config,
    store: Store,
    allocator: Allocator,
    plugin: MeasuredPlugin,
    allocated: Callable[[], None],
    *,
    now: Callable[[], float],
) -> list[Provider]:
    """The resources beside GPU memory that CONFIG turns on."""
    found: list[Provider] = []
    if config.whole_gpus:
        found.append(
            WholeGpus(
                config.whole_gpus,
                store,
                allocator,
                Policy(config.placement),
                config.visible_devices,
                now=now,
                new_id=lambda: secrets.token_hex(16),
                withhold=plugin.set_taken_whole,
                allocated=allocated,
            )
        )
    if config.rdma:
        found.append(Rdma(config.rdma, config.sysfs, config.rdma_share, config.scan_interval))
    return found


async def _serve(config: Config, source: Source, inventory: Inventory, store: Store) -> None:
    stop, now = asyncio.Event(), steady()
    cluster = _cluster(config)

    async def cards_changed(found: Inventory) -> None:
        await plugin.set_inventory(found)

    keeper = Keeper(
        source,
        config.state_dir,
        probation=config.health_probation,
        interval=config.scan_interval,
        now=now,
        changed=cards_changed,
        told=card_news(cluster, store),
    )
    allocator = Allocator(
        store,
        keeper.open(inventory),
        Policy(config.placement),
        now,
        lambda: secrets.token_hex(16),
        resource=config.resource,
        slice_bytes=config.slice_bytes,
    )
    kubelet = PodResourcesClient(config.pod_resources, config.resource, whole=config.whole_gpus)
    poller = Poller(store, allocator, kubelet, config.poll_interval, now)

    def streams_changed() -> None:
        registration.wake()

    def allocated() -> None:
        limits.changed()
        poller.wake()

    def asked_to_stop() -> None:
        stop.set()
        registration.wake()

    admissions = Admissions(store, kubelet, cluster, config.resource)
    plugin = MeasuredPlugin(
        store,
        allocator,
        config.visible_devices,
        allocated,
        streams_changed,
        admissions=admissions,
        cluster=cluster,
    )
    limits = LimitKeeper(
        store,
        allocator,
        cluster,
        slice_bytes=config.slice_bytes,
        interval=config.measure_interval,
        withhold=plugin.withhold,
    )
    limits.refresh(every=True)
    turns = TurnKeeper(store, lambda: allocator.inventory)
    counters = plugin.counters = Counters()
    room = Room(config.state_dir, plugin.set_recordable)
    overuse = AuditPolicy(
        config.overuse, config.evict_grace, config.evict_above, over_limit=config.evict_over_limit == "on"
    )
    auditor = Auditor(store, cluster, overuse, counters)
    measurer = Measurer(store, source, config.measure_interval, auditor)
    measures = Measures(
        resource=config.resource,
        store=store,
        allocator=allocator,
        plugin=plugin,
        keeper=keeper,
        measurer=measurer,
        auditor=auditor,
        counters=counters,
        room=room,
        turns=turns,
    )
    node = config.node_name or platform.node().lower()
    exposition = Exposition(node, measures.collect)
    registration = Registration(plugin, config.kubelet_dir, config.socket_name, config.resource)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop)
    more = {}
    if config.bind_cpus == "on":
        more["cpus"] = CpuBinder(store, lambda: allocator.inventory, config.measure_interval).run()
    providers = _providers(config, store, allocator, plugin, allocated, now=now)
    parts = {
        **more,
        "registration": run_beside(
            registration.run(stop), [host(one, config.kubelet_dir, stop) for one in providers]
        ),
        "poller": poller.run(),
        "cluster": cluster.run(),
        "limits": limits.run(),
        "shares": ShareKeeper(store, now, source.process_busy).run(),
        "turns": turns.run(),
        "room": room.run(),
        "control": ControlServer(store, limits).run(),
        "measurer": measurer.run(),
        "http": Server(config.metrics_address, exposition.prepare, measures.unready).run(),
        "scanner": Scanner(source, inventory, config.scan_interval, keeper.set_inventory).run(),
        "health": keeper.run(),
        "listener": keeper.listen(),
    }
    try:
        await run_together("registration", parts)
    except BaseException as error:
        leave_within(_LEAVE_SECONDS, f"{type(error).__name__}: {error}")
        raise
    leave_within(_LEAVE_SECONDS)
