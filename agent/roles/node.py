"""The node agent: finds the GPUs, keeps the allocation table, serves the kubelet.

The one place where its parts are built and joined. Nothing is decided here but the order: look at the hardware and at
the configuration before touching any state, have the state in order before serving, and serve before registering.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import secrets
import signal
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import vcuda
from agent.accounting.auditor import Auditor
from agent.accounting.memory_monitor import MemoryMonitor
from agent.accounting.overuse import OverusePolicy
from agent.allocation.pod_events import PodEvents
from agent.allocation.service import AllocationService
from agent.allocation.start import StartDecider
from agent.apiserver import KubeCluster, NoCluster, find_access
from agent.apiserver.wire import Api
from agent.config import Config
from agent.control.server import ControlServer
from agent.deviceplugin import messages
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.device_list import DeviceList, slice_devices
from agent.deviceplugin.gpu_memory import GpuMemory
from agent.deviceplugin.hosting import host, run_beside, serve_one
from agent.deviceplugin.link import Link
from agent.deviceplugin.poller import Poller
from agent.deviceplugin.replay import ReplayResolver
from agent.deviceplugin.servicer import Servicer
from agent.front import sockets
from agent.front.channel import Kind
from agent.health.controller import HealthController
from agent.inventory.holder import InventoryHolder
from agent.inventory.lending_source import LendingSource
from agent.inventory.nvml import NvmlSource
from agent.inventory.scanner import Scanner
from agent.inventory.source import Inventory, Source
from agent.inventory.static import StaticSource
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
from agent.roles.gpu_events import gpu_news
from agent.roles.metric_values import Measures
from agent.roles.standby import HANDOVER, Standby
from agent.roles.without_gpus import Wait, look_at_bus, looked
from agent.telemetry.counters import Counters
from agent.telemetry.metrics import Exposition
from gigaslice import units
from gigaslice.errors import ConfigError, GigasliceError, LockedError, MissingError
from gigaslice.model import Lending
from gigaslice.placement import Policy
from gigaslice.runtime import logs
from gigaslice.runtime.clock import steady
from gigaslice.runtime.failures import catch_all
from gigaslice.runtime.heap import keep_small, one_arena
from gigaslice.runtime.http_server import Server
from gigaslice.runtime.tasks import LEAVE_SECONDS, lasting, leave_within, run_together

__all__ = ["look", "run"]

_LOOK_SECONDS = 120.0  # a machine of eight GPUs without persistence mode takes some twenty
_UMASK = (
    0o022  # what is for nobody else is made so; what containers read must not depend on who started the agent
)
_LOOK_AGAIN_SECONDS = 2.0  # the kubelet's calls wait meanwhile
_MAX_SLICES = 200_000  # the largest list that fits a message has fewer; more would not even fit the memory


def run(config: Config) -> None:
    """Runs the agent until SIGTERM or SIGINT. Raises a GigasliceError, or a vcuda error, that says why it cannot."""
    one_arena()
    os.umask(_UMASK)
    logs.set_up(config.log_level, config.log_format)
    log = logs.get_logger("node")
    catch_all(log)
    found = _find(config)
    if found is None:
        log.info("stopped")
        return
    source, inventory = found
    gpus = InventoryHolder(inventory)
    store = Store(config.state_dir, gpu_bytes=gpus.gpu_bytes)
    link = Link.open()
    link.hello(config.log_level, config.log_format)
    try:
        _check_list_fits(inventory, config)
        log.info("starting", version=vcuda.__version__, resource=config.resource, inventory=config.inventory)
        for sentence in config.warnings:
            log.warning("configuration", detail=sentence)
        for sentence in inventory.warnings:
            log.warning("discovery", detail=sentence)
        for gpu in inventory.gpus:
            log.info(
                "GPU found",
                gpu=gpu.uuid,
                model=gpu.model,
                slices=gpu.slices,
                numa=gpu.numa_node,
                healthy=gpu.healthy,
            )
        waited = _open(config, store, link)
        if waited is None:
            log.info("stopped")
            return
        if waited:
            gpus.now = _looked_again(source, inventory)
        gc.freeze()  # the modules' hundred thousand objects: looking through them again stops every thread for long
        asyncio.run(_serve(config, source, gpus, store, link))
    finally:
        store.close()
        source.close()
        link.close()
    log.info("stopped")


def _open(config: Config, store: Store, link: Link) -> bool | None:
    """Opens STORE, and says whether that meant to wait for the agent that serves this node; None when asked to end."""
    waited, path = False, config.state_dir / HANDOVER
    try:
        # Another front's agent may be away for a moment. Ours is this process's parent, and has been waiting for it.
        if config.standby == "on" and sockets.answers(path, besides=os.getppid()):
            raise LockedError(f"the state directory {config.state_dir} is served by another agent")
        store.open()
    except LockedError as error:
        if config.standby == "off":
            raise
        waiting = Standby(
            store,
            link,
            path,
            address=config.metrics_address,
            node=config.node_name or platform.node().lower(),
            resource=config.resource,
        )
        if not waiting.until_alone(error):
            return None
        waited = True
    link.say(Kind.ACTIVE, 0, os.fsencode(path))
    return waited


def _looked_again(source: Source, before: Inventory) -> Inventory:
    """The GPUs as they are now; as BEFORE where that takes long or fails, which the scanner then sees to."""
    try:
        return looked(source.scan).result(_LOOK_AGAIN_SECONDS)
    except (FutureTimeout, GigasliceError):
        return before


def look(config: Config) -> Inventory:
    """The GPUs as an agent of this configuration would find them now. Raises MissingError or InventoryError."""

    def scan() -> Inventory:
        source = _source(config)
        try:
            return source.scan()
        finally:
            source.close()

    answer = looked(scan)  # in a thread: a driver that hangs would keep a person from ending the command
    try:
        return answer.result(_LOOK_SECONDS)
    except FutureTimeout:
        raise MissingError(
            f"the NVIDIA driver has not answered for {_LOOK_SECONDS:g} seconds: it hangs; see dmesg"
        ) from None


def _find(config: Config) -> tuple[Source, Inventory] | None:
    """The GPUs and their source, after waiting for them where that is wanted; None when asked to end meanwhile."""

    def scan() -> tuple[Source, Inventory]:
        source = _source(config)  # a driver that has changed is opened anew
        try:
            return source, source.scan()
        except BaseException:
            source.close()
            raise

    if config.inventory != "nvml":
        return scan()
    wait = Wait(
        scan,
        lambda: look_at_bus(config.sysfs),
        interval=config.scan_interval,
        address=config.metrics_address,
        token_file=config.metrics_token_file,
        node=config.node_name or platform.node().lower(),
        resource=config.resource,
        # else who looks there takes it for a fault
        begins=lambda: sockets.remove_dead(config.kubelet_dir / config.socket_name),
    )
    return wait.until_found(exits=config.without_gpus == "exit")


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
    size = messages.devices(slice_devices(inventory)).ByteSize() if slices <= _MAX_SLICES else slices * 24
    if size <= messages.MAX_MESSAGE_BYTES:
        return
    enough = config.slice_bytes
    while enough * messages.MAX_MESSAGE_BYTES < config.slice_bytes * size:
        enough *= 2
    raise ConfigError(
        [
            f"--slice {units.format_bytes(config.slice_bytes)}: {slices} slices make a device list of "
            f"{units.format_bytes(size)}, and the kubelet takes {units.format_bytes(messages.MAX_MESSAGE_BYTES)}; "
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
    allocator: AllocationService,
    devices: DeviceList,
    allocated: Callable[[], None],
    *,
    now: Callable[[], float],
    admissions: AdmissionResolver,
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
                withhold=devices.set_taken_whole,
                allocated=allocated,
                ended=admissions.over,
            )
        )
    if config.rdma:
        found.append(Rdma(config.rdma, config.sysfs, config.rdma_share, config.scan_interval))
    return found


async def _serve(config: Config, source: Source, gpus: InventoryHolder, store: Store, link: Link) -> None:
    stop, now = asyncio.Event(), steady()
    cluster, counters = _cluster(config), Counters()
    found, devices = gpus.now, DeviceList(gpus)
    controller = HealthController(
        source,
        config.state_dir,
        cooldown=config.health_cooldown,
        interval=config.scan_interval,
        now=now,
        changed=devices.set_inventory,
        told=gpu_news(cluster, store),
    )
    gpus.now = controller.open(found)
    allocator = AllocationService(
        store,
        gpus,
        Policy(config.placement),
        now,
        lambda: secrets.token_hex(16),
        resource=config.resource,
        slice_bytes=config.slice_bytes,
    )
    node = config.node_name or platform.node().lower()
    kubelet = PodResourcesClient(config.pod_resources, config.resource, whole=config.whole_gpus, node=node)
    kept = KeptAnswers(config.kubelet_dir, config.resource, config.whole_gpus)
    poller = Poller(store, allocator, kubelet, config.poll_interval, now, cluster=cluster, answers=kept.read)

    limits = LimitsManager(
        store,
        allocator,
        cluster,
        slice_bytes=config.slice_bytes,
        interval=config.measure_interval,
        withhold=devices.withhold,
    )
    limits.refresh(every=True)

    def allocated() -> None:
        limits.changed()
        poller.wake()

    admissions = AdmissionResolver(store, kubelet, cluster, config.resource)
    events = PodEvents(allocator, cluster)
    provider = GpuMemory(
        store,
        allocator,
        devices,
        config.visible_devices,
        admissions=admissions,
        replays=ReplayResolver(store, allocator, cluster, kept.read),
        starts=StartDecider(store, allocator, cluster, events, allocated),
        events=events,
        allocated=allocated,
    )
    servicer = Servicer(provider, counters)
    turns = TimeSliceManager(store, lambda: allocator.inventory)
    room = Room(config.state_dir, devices.set_recordable, probe=store.probe)
    store.failed.append(room.write_failed)
    overuse = OverusePolicy(
        config.overuse, config.evict_grace, config.evict_above, over_limit=config.evict_over_limit == "on"
    )
    auditor = Auditor(store, cluster, overuse, counters)
    memory_monitor = MemoryMonitor(store, source, config.measure_interval, auditor)
    measures = Measures(
        resource=config.resource,
        store=store,
        allocator=allocator,
        servicer=servicer,
        controller=controller,
        memory_monitor=memory_monitor,
        auditor=auditor,
        counters=counters,
        room=room,
        turns=turns,
    )
    exposition = Exposition(node, measures.collect)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    beside: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
        "cluster": cluster.run,
        "ends": poller.follow,
        "limits": limits.run,
        "shares": ComputeManager(store, now, source.process_busy).run,
        "turns": turns.run,
        "control": ControlServer(store, limits).run,
        "memory_monitor": memory_monitor.run,
        "ledgers": store.dirs.ledgers.run,
        "http": Server(
            config.metrics_address, exposition.prepare, measures.unready, config.metrics_token_file
        ).run,
        "scanner": Scanner(source, found, config.scan_interval, controller.set_inventory).run,
        "health": controller.run,
        "listener": controller.listen,
        "memory": keep_small,
    }
    if config.bind_cpus == "on":
        beside["cpus"] = CpuBinder(store, lambda: allocator.inventory, config.measure_interval).run
    providers = _providers(config, store, allocator, devices, allocated, now=now, admissions=admissions)
    parts = {
        "registration": run_beside(
            serve_one(servicer, config.kubelet_dir, config.socket_name, stop, link),
            [host(one, config.kubelet_dir, stop, link) for one in providers],
        ),
        "poller": poller.run(),
        "room": room.run(),
        **{name: lasting(name, part, counters.part_failed) for name, part in beside.items()},
    }
    try:
        async with link.attached():
            await run_together("registration", parts)
    except BaseException as error:
        if not isinstance(error, GigasliceError | vcuda.VcudaError | asyncio.CancelledError):
            logs.internal_error(error)  # here: a thread that hangs may keep it from getting any further
        leave_within(LEAVE_SECONDS, f"{type(error).__name__}: {error}")
        raise
    leave_within(LEAVE_SECONDS)
