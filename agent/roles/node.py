# SPDX-License-Identifier: Apache-2.0
"""The node agent: finds the GPUs, keeps the allocation table, serves the kubelet.

The order is all that is decided here: read hardware and configuration before any state is touched, have the state in
order before serving, and serve before registering. The parts are built in `agent.roles.node_parts`.
"""

from __future__ import annotations

import asyncio
import gc
import os

import vcuda
from agent.config import Config
from agent.front import sockets, supervise
from agent.front.channel import Kind
from agent.front.handover import HANDOVER
from agent.inventory.holder import InventoryHolder
from agent.inventory.source import Source
from agent.link import Link
from agent.persistence.store import Store
from agent.roles import discovery
from agent.roles.claim_parts import claims_may_come
from agent.roles.claims_without_gpus import ClaimsWithoutGpus
from agent.roles.node_parts import build
from agent.roles.records import CODEC
from agent.roles.serving import serve
from agent.roles.standby import Standby
from gigaslice.core.errors import GigasliceError, LockedError
from gigaslice.runtime import logs
from gigaslice.runtime.heap import limit_arenas
from gigaslice.runtime.role_start import set_at_signals, start_log
from gigaslice.runtime.tasks import LEAVE_SECONDS, lasting, leave_within, run_together

__all__ = ["run"]

# Private files are made so; those that containers read must not depend on the umask that the agent was started with.
_UMASK = 0o022


def run(config: Config) -> None:
    """Runs the agent until SIGTERM or SIGINT. Raises a GigasliceError, or a vcuda error, that says why it cannot."""
    limit_arenas()
    os.umask(_UMASK)
    log = start_log("node", config.log_level, config.log_format, config.warnings)
    link = Link.open()
    link.hello(config.log_level, config.log_format)
    try:
        again = _run(config, link)
    finally:
        link.close()
    if again:
        log.info("new type of GPU; starting anew", resource=again)
        raise SystemExit(supervise.RESTART)
    log.info("stopped")


def _run(config: Config, link: Link) -> str | None:
    """Finds the GPUs and serves; the resources that the agent is to start anew for. None, too, when asked to end."""
    without_gpus = ClaimsWithoutGpus(config, link).run if claims_may_come(config) else None
    source_and_inventory = discovery.find(config, without_gpus)
    if source_and_inventory is None:
        return None
    source, inventory = source_and_inventory
    gpus = InventoryHolder(inventory)
    store = Store(config.state_dir, codec=CODEC, gpu_bytes=gpus.gpu_bytes, ledger_dir=config.ledger_dir)
    try:
        discovery.check_list_fits(inventory, config)
        discovery.check_types(inventory, config)
        _log_start(config, gpus)
        waited = _open(config, store, link)
        if waited is None:
            return None
        if waited:
            gpus.replace(discovery.scan_again(source, inventory))
        gc.freeze()  # the modules' hundred thousand objects: every later collection would stop all threads for them
        return asyncio.run(_serve(config, source, gpus, store, link))
    finally:
        store.close()
        source.close()


def _log_start(config: Config, gpus: InventoryHolder) -> None:
    log = logs.get_logger("node")
    log.info("starting", version=vcuda.__version__, resource=config.resource, inventory=config.inventory)
    for sentence in gpus.now.warnings:
        log.warning("discovery", detail=sentence)
    for gpu in gpus.now.gpus:
        log.info(
            "GPU found",
            gpu=gpu.uuid,
            model=gpu.model,
            slices=gpu.slices,
            numa=gpu.numa_node,
            healthy=gpu.healthy,
        )


def _open(config: Config, store: Store, link: Link) -> bool | None:
    """Opens STORE; whether that meant to wait for the agent that serves this node, None when asked to end."""
    waited, path = False, config.state_dir / HANDOVER
    try:
        # Another front's agent may be away for a moment. Ours is this process's parent, and has been waiting for it.
        if config.standby == "on" and sockets.has_listener(path, besides=os.getppid()):
            raise LockedError(f"the state directory {config.state_dir} is served by another agent")
        store.open()
    except LockedError as error:
        if config.standby == "off":
            raise
        if not Standby(store, link, path, config).until_alone(error):
            return None
        waited = True
    link.say(Kind.ACTIVE, 0, os.fsencode(path))
    return waited


async def _serve(config: Config, source: Source, gpus: InventoryHolder, store: Store, link: Link) -> str:
    """Runs every part until SIGTERM or SIGINT, or until it is to start anew; the resources that it does so for."""
    stop = asyncio.Event()
    reasons: list[str] = []

    def renew(reason: str) -> None:
        reasons.append(reason)
        stop.set()

    parts = build(config, source, gpus, store, link=link, renew=renew)
    set_at_signals(stop)

    async def registration() -> None:
        await parts.settled()
        await serve(config, parts, store, stop, link)

    running = {
        "registration": registration(),
        **{name: part() for name, part in parts.essential.items()},
        **{name: lasting(name, part, parts.counters.part_failed) for name, part in parts.restarted.items()},
    }
    try:
        async with link.attached():
            await run_together("registration", running)
    except BaseException as error:
        if not isinstance(error, GigasliceError | vcuda.VcudaError | asyncio.CancelledError):
            logs.internal_error(error)  # here: a thread that hangs may keep it from getting any further
        leave_within(LEAVE_SECONDS, f"{type(error).__name__}: {error}")
        raise
    leave_within(LEAVE_SECONDS)
    return reasons[0] if reasons else ""
