# SPDX-License-Identifier: Apache-2.0
"""Where the node agent's GPUs come from, and the first scan for them.

A scan can hang with its driver, so every scan here runs in a thread that the process does not have to wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

from agent.config import Config
from agent.deviceplugin import messages
from agent.deviceplugin.device_list import slice_devices
from agent.front import sockets
from agent.inventory.lending_source import LendingSource
from agent.inventory.nvml import NvmlSource
from agent.inventory.source import Inventory, Source
from agent.inventory.static import StaticSource
from agent.roles.gpu_wait import GpuWait, read_bus, scan_in_thread
from gigaslice.core import units
from gigaslice.core.errors import ConfigError, GigasliceError, MissingError
from gigaslice.core.model import Lending

__all__ = ["check_list_fits", "check_types", "find", "scan_again", "scan_once"]

_SCAN_SECONDS = 120.0  # a machine of eight GPUs without persistence mode takes some twenty
_SCAN_AGAIN_SECONDS = 2.0  # the kubelet's calls wait meanwhile
_MAX_SLICES = 200_000  # the largest list that fits a message has fewer; more would not even fit the memory


def find(
    config: Config, meanwhile: Callable[[asyncio.Event], Coroutine[Any, Any, None]] | None = None
) -> tuple[Source, Inventory] | None:
    """The GPUs and their source, after waiting for them where CONFIG says so; None when asked to end meanwhile.

    MEANWHILE works beside the waiting, until its event is set.
    """

    def scan() -> tuple[Source, Inventory]:
        source = _source(config)  # a driver that has changed is opened anew
        try:
            return source, source.scan()
        except BaseException:
            source.close()
            raise

    if config.inventory != "nvml":
        return scan()
    wait = GpuWait(
        scan,
        lambda: read_bus(config.sysfs),
        config,
        # a dead socket there reads as a fault
        begins=lambda: sockets.remove_dead(config.kubelet_dir / config.socket_name),
        meanwhile=meanwhile,
    )
    return wait.until_found(exits=config.without_gpus == "exit")


def scan_again(source: Source, before: Inventory) -> Inventory:
    """The GPUs as they are now; BEFORE where that takes long or fails, which the scanner deals with later."""
    try:
        return scan_in_thread(source.scan).result(_SCAN_AGAIN_SECONDS)
    except (FutureTimeout, GigasliceError):
        return before


def scan_once(config: Config) -> Inventory:
    """The GPUs as an agent of CONFIG would find them now. Raises MissingError or InventoryError."""

    def scan() -> Inventory:
        source = _source(config)
        try:
            return source.scan()
        finally:
            source.close()

    try:
        return scan_in_thread(scan).result(_SCAN_SECONDS)
    except FutureTimeout:
        raise MissingError(
            f"the NVIDIA driver has not answered for {_SCAN_SECONDS:g} seconds: it hangs; see dmesg"
        ) from None


def check_list_fits(inventory: Inventory, config: Config) -> None:
    """Refuses slices so small that the kubelet would end the device list's stream without any message."""
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
            f"use --slice {units.exact_size(enough)} or more"
        ]
    )


def check_types(inventory: Inventory, config: Config) -> None:
    """Refuses types of GPUs that overlap, or whose resources cannot be served. Removes what an agent without types
    left: a socket that is not served reads as a fault.
    """
    models = [gpu.model for gpu in inventory.gpus]
    if mistakes := config.type_contradictions(models):
        raise ConfigError(mistakes)
    if config.resource not in map(config.resource_types.of, models):
        sockets.remove_dead(config.kubelet_dir / config.socket_name)


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
