# SPDX-License-Identifier: Apache-2.0
"""Checks the node's GPUs and what their driver does: memory that it clears, page faults, limits of its own, CDI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import vcuda
from agent.config import Config
from agent.inventory import memory_clearing
from agent.inventory.page_faults import counters_are_on
from agent.inventory.source import Inventory
from agent.roles.gpu_wait import read_bus
from gigaslice.core import units
from gigaslice.core.errors import GigasliceError, MissingError
from gigaslice.core.limits.driver_limit_messages import SupportAnswer
from gigaslice.runtime import local_protocol
from gigaslice.runtime.files import read_file
from vcuda.doctor import Finding, check_managed

__all__ = [
    "CDI_DIRECTORIES",
    "check_cdi",
    "check_clearing",
    "check_driver_limits",
    "check_gpus",
    "check_paging",
]

CDI_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where runtimes look for descriptions of devices."""
_LIMITS_LOG = "see the log of the container driver-limits"


def check_gpus(config: Config, scan: Callable[[Config], Inventory]) -> Iterator[Finding]:
    """The GPUs as SCAN finds them; without any, whether the agent would end or wait."""
    try:
        inventory = scan(config)
    except MissingError as error:
        bus = read_bus(config.sysfs)
        if bus.gpus:
            yield Finding("fail", "GPUs", f"{len(bus.gpus)} NVIDIA GPUs are on the PCI bus, but {error}")
        elif config.without_gpus == "wait":
            yield Finding(
                "warn", "GPUs", f"the agent would wait for GPUs: none is on the PCI bus, and {error}"
            )
        else:
            yield Finding("fail", "GPUs", str(error))
        return
    except GigasliceError as error:
        yield Finding("fail", "GPUs", str(error))
        return
    except vcuda.VcudaError as error:
        yield Finding("fail", "GPUs", f"{error.what}: {error.cause}", error.remedy)
        return
    for gpu in inventory.gpus:
        numa = "" if gpu.numa_node is None else f", NUMA node {gpu.numa_node}"
        text = f"{gpu.model}, {gpu.slices} slices of {units.format_bytes(gpu.slice_bytes)}{numa}, {gpu.uuid}"
        if gpu.healthy:
            yield Finding("ok", f"GPU {gpu.index}", text)
        else:
            yield Finding(
                "warn", f"GPU {gpu.index}", text, "it is not healthy: see the agent's log and dmesg"
            )
    for sentence in inventory.warnings:
        yield Finding("warn", "GPUs", sentence, "the agent works, with what it knows")


def check_clearing() -> Iterator[Finding]:
    """What the next tenant of a GPU's memory finds in it."""
    if memory_clearing.is_switched_off():
        yield Finding(
            "warn",
            "GPU memory",
            f"the driver does not clear what a process gives back ({memory_clearing.OPTION}=1): others can read it",
            "take the option out of NVreg_RegistryDwords and load the nvidia module anew",
        )


def check_paging() -> Iterator[Finding]:
    """What lent host memory needs of the driver."""
    yield check_managed()
    told = counters_are_on()
    how = "load nvidia-uvm with uvm_enable_debug_procfs=1 and the driver tells it"
    if told is None:
        yield Finding("ok", "page faults", f"nvidia-uvm is not loaded, or does not tell; {how}")
    elif told:
        yield Finding(
            "ok", "page faults", "the driver counts them; time slices are given only where pages move"
        )
    else:
        yield Finding(
            "ok", "page faults", f"not counted, so progress alone says whether a GPU thrashes; {how}"
        )


def check_driver_limits(config: Config) -> Finding:
    """Whether the driver bounds pods itself: asked of who would set its limits."""
    subject, required = "driver limits", config.driver_limits == "required"
    if config.driver_limits == "off":
        return Finding("ok", subject, "not to be set (--driver-limits=off)")
    try:
        support = SupportAnswer.decode(
            local_protocol.ask(config.driver_limits_socket, "gigaslice driver-limits", {"support": {}})
        )
    except MissingError as error:
        text = f"nobody sets any, and only the library limits: {error}"
        remedy = "the chart's driverLimits.enabled adds that container (driver 615 and later)"
        return Finding("fail" if required else "ok", subject, text, remedy)
    except GigasliceError as error:
        return Finding("fail" if required else "warn", subject, str(error), _LIMITS_LOG)
    if support.backend == "none":
        remedy = "the library limits all the same; docs/driver-limits.md has what is needed"
        return Finding("fail" if required else "warn", subject, support.reason, remedy)
    forgetful = [gpu for gpu, told in support.gpus.items() if told.persistence is False]
    if forgetful:
        text = f"{support.backend}; without persistence mode an idle GPU may forget them while the agent is down: "
        return Finding(
            "warn", subject, text + ", ".join(forgetful), "nvidia-smi -pm 1, or nvidia-persistenced"
        )
    return Finding("ok", subject, f"{support.backend}, driver {support.driver}")


def check_cdi(directories: tuple[Path, ...]) -> Finding:
    """Whether a file in DIRECTORIES describes devices of NVIDIA's."""
    files = [path for directory in directories if directory.is_dir() for path in directory.iterdir()]
    if any("nvidia.com/gpu" in _text(path) for path in files):
        return Finding("ok", "CDI", "devices nvidia.com/gpu are described")
    where = " or ".join(map(str, directories))
    remedy = "nvidia-ctk cdi generate --device-name-strategy=uuid; in a pod, mount that directory to have it checked"
    return Finding("warn", "CDI", f"no description of nvidia.com/gpu in {where}", remedy)


def _text(path: Path) -> str:
    try:
        return read_file(path, 16 << 20).decode("utf-8", "replace")
    except OSError:
        return ""
