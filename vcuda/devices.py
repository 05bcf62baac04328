# SPDX-License-Identifier: Apache-2.0
"""Which GPUs this machine has, and which one a user means: the package's only use of NVML.

Every call starts and ends NVML itself, so that no handle outlives a driver that was unloaded. NVML's answers become
frozen values, its exceptions NoDriverError. This module does not watch health or use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pynvml

from gigaslice.core.uuids import matching
from vcuda import errors, sizes

__all__ = [
    "GpuDevice",
    "driver_version",
    "list_devices",
    "list_with_driver",
    "process_memory",
    "select_devices",
    "visible_devices",
]


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU or MIG instance: NVML index (of the whole GPU), UUID, model name, memory in bytes."""

    index: int
    uuid: str
    name: str
    memory_bytes: int


@contextlib.contextmanager
def _nvml() -> Iterator[None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise errors.NoDriverError("NVML cannot be started", str(error)) from error
    try:
        yield
    except pynvml.NVMLError as error:
        raise errors.NoDriverError(
            "NVML failed", str(error), "see nvidia-smi and the kernel's log"
        ) from error
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def driver_version() -> str:
    """Version of the display driver, "580.65.06"."""
    with _nvml():
        return str(pynvml.nvmlSystemGetDriverVersion())


def list_devices() -> tuple[GpuDevice, ...]:
    """The machine's GPUs in NVML's order. Raises NoDriverError; an empty tuple means a driver without GPUs."""
    return list_with_driver()[1]


def list_with_driver() -> tuple[str, tuple[GpuDevice, ...]]:
    """The driver's version, and the same, by one start of NVML."""
    with _nvml():
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return driver, tuple(_describe(index, handle) for index, handle in enumerate(handles))


def select_devices(names: Sequence[str], present: Sequence[GpuDevice]) -> tuple[GpuDevice, ...]:
    """The devices that NAMES names by NVML index, by UUID or its beginning, each once, in the order given.

    Raises UsageError for a name that fits none of PRESENT. MIG instances are looked up through NVML.
    """
    chosen: list[GpuDevice] = []
    for text in names:
        device = _by_uuid(text, present) if "-" in text else _by_index(text, present)
        if any(device.uuid == other.uuid for other in chosen):
            raise errors.UsageError(f"GPU {text}", "named twice", "name each GPU once")
        chosen.append(device)
    return tuple(chosen)


def visible_devices(listed: str, present: Sequence[GpuDevice], *, by_bus: bool) -> tuple[GpuDevice, ...]:
    """The devices of PRESENT that a program sees under CUDA_VISIBLE_DEVICES=LISTED: up to the first that is none.

    BY_BUS: CUDA counts as NVML does (CUDA_DEVICE_ORDER=PCI_BUS_ID). Else it does where all are of one model; where they
    are not, each may be the one that a number means, and that has a MIG instance. Source: CUDA C++ Programming Guide,
    "CUDA Environment Variables".
    """
    same_order = by_bus or len({device.name for device in present}) == 1
    visible: list[GpuDevice] = []
    for word in listed.split(","):
        name = word.strip()
        if name.startswith("MIG-") or (name.isdigit() and not same_order):
            return tuple(present)
        fitting = [
            device
            for device in present
            if (name == str(device.index) if name.isdigit() else name and device.uuid.startswith(name))
        ]
        if len(fitting) != 1:
            break
        visible += [device for device in fitting if device not in visible]
    return tuple(visible)


def process_memory(uuids: Iterable[str]) -> dict[str, dict[int, int]]:
    """Bytes that each process holds of each of these GPUs now, according to NVML: UUID to PID to bytes.

    A GPU that does not answer, a process without a number and a machine without NVML are left out.
    """
    try:
        with _nvml():
            answers = {uuid: _processes(uuid) for uuid in uuids}
    except errors.NoDriverError:
        return {}
    return {uuid: answer for uuid, answer in answers.items() if answer is not None}


def _processes(uuid: str) -> dict[int, int] | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return None
    with contextlib.suppress(pynvml.NVMLError):
        listed = [*listed, *pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)]
    used: dict[int, int] = {}
    for process in listed:
        if process.usedGpuMemory is not None:  # a process of both lists has the same number in both
            used[process.pid] = max(used.get(process.pid, 0), process.usedGpuMemory)
    return used


def _describe(index: int, handle: object) -> GpuDevice:
    return GpuDevice(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    )


def _by_index(text: str, present: Sequence[GpuDevice]) -> GpuDevice:
    for device in present:
        if text == str(device.index):
            return device
    raise errors.UsageError(f"there is no GPU {text!r}", "", _choices(present))


def _by_uuid(text: str, present: Sequence[GpuDevice]) -> GpuDevice:
    beginning_so = matching(text, [device.uuid for device in present])
    if len(beginning_so) == 1:
        return next(device for device in present if device.uuid == beginning_so[0])
    if beginning_so:
        raise errors.UsageError(f"several GPUs begin with {text}", "", _choices(present))
    raw, flags = sizes.parse_uuid(text)
    uuid = sizes.format_uuid(raw, flags)
    if flags:
        return _mig_instance(uuid, present)
    raise errors.UsageError(f"there is no {uuid}", "", _choices(present))


def _mig_instance(uuid: str, present: Sequence[GpuDevice]) -> GpuDevice:
    with _nvml():
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as error:
            raise errors.UsageError(f"there is no {uuid}", str(error), _choices(present)) from error
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return _describe(int(pynvml.nvmlDeviceGetIndex(parent)), handle)


def _choices(present: Sequence[GpuDevice]) -> str:
    names = [f"{device.index} ({device.uuid})" for device in present]
    return "choose one of " + ", ".join(names) if names else "this machine has no GPU"
