# SPDX-License-Identifier: Apache-2.0
"""GPUs of this machine through NVML: with `nvml_health` the agent's only door to `pynvml`.

Drivers answer single queries with errors (a GPU that fell off the bus, a link that is not supported), and a node must
not be lost to one of them: what fails is left out with a warning, and only a driver that cannot be reached, or shows
no usable GPU at all, is an error. A driver that answers with nothing but errors is opened anew: after it was reloaded
nothing else helps. Every method may block.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from agent.inventory import nvml_health, sysfs
from agent.inventory.nvml_health import asked
from agent.inventory.source import GpuEvent, Inventory, Vitals
from gigaslice.core import units
from gigaslice.core.errors import MissingError
from gigaslice.core.model import Gpu, Topology, count_slices
from gigaslice.runtime.session import ReplacedDriver, Session, SessionBusyError

__all__ = ["NvmlSource"]

_REMEDY = (
    "install the NVIDIA driver and give this process its libraries and devices (runtimeClassName nvidia), "
    "or list GPUs in a file with --inventory FILE"
)
_SAMPLE_TRIES = 4
_AFFINITY_WORDS = 16  # of 64 NUMA nodes each: as many as Linux can have
_ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
}
_NOT_SUPPORTED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_NO_SUCH_LINK = (*_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)


@dataclass(frozen=True, slots=True)
class _NvmlGpu:
    handle: Any
    gpu: Gpu


class NvmlSource:
    """The GPUs that NVML shows, each cut into slices of SLICE_BYTES."""

    def __init__(self, slice_bytes: int, sysfs_root: Path = sysfs.SYSFS) -> None:
        self._slice_bytes = slice_bytes
        self._sysfs_root = sysfs_root
        self._gpus: dict[str, Any] = {}  # handles of this session: a lost GPU is still asked how it is
        self._known: frozenset[str] = frozenset()  # every GPU that was ever found
        self._listener = nvml_health.Listener()
        self._session = Session(self._enter, self._leave)
        self._lost: frozenset[str] = frozenset()
        self._silent: frozenset[str] = frozenset()  # for these the driver was opened anew already
        self._replaced = ReplacedDriver()
        self._sampled: dict[str, int] = {}  # time of the last sample of processes that was seen

    def scan(self) -> Inventory:
        """Asks for every GPU, its memory, place and links. Raises MissingError without a driver or a usable GPU."""
        try:
            self._session.open()
        except pynvml.NVMLError as error:
            raise MissingError(f"the NVIDIA driver cannot be reached (NVML: {error}): {_REMEDY}") from error
        except SessionBusyError:
            pass
        with self._session.use() as ready:
            if not ready:
                raise MissingError("the NVIDIA driver is just being opened anew")
            return self._scan()

    def process_memory(self) -> Mapping[str, Mapping[int, int]] | None:
        """Bytes per GPU and host PID; a GPU that does not answer is left out, None when none does."""
        with self._session.use() as ready:
            answers = {uuid: _processes(handle) for uuid, handle in self._gpus.items()} if ready else {}
        answered = {uuid: answer for uuid, answer in answers.items() if answer is not None}
        return answered or None

    def process_busy(self, gpu: str) -> Mapping[int, float] | None:
        """What the driver has sampled since the last question. No sample is no work; a GPU that cannot say is None."""
        with self._session.use() as ready:
            handle = self._gpus.get(gpu) if ready else None
            if handle is None:
                return None
            try:
                samples = _samples(handle, self._sampled.get(gpu, 0))
            except pynvml.NVMLError_NotFound:
                return {}
            except pynvml.NVMLError:
                return None
        busy: dict[int, float] = {}
        for sample in samples:
            self._sampled[gpu] = max(sample.timeStamp, self._sampled.get(gpu, 0))
            busy[sample.pid] = max(busy.get(sample.pid, 0.0), min(sample.smUtil, 100) / 100)
        return busy

    def events(self, seconds: float) -> tuple[GpuEvent, ...] | None:
        """Waits for Xids and memory errors."""
        with self._session.use() as ready:
            if ready:
                return self._listener.wait(self._gpus, seconds)
        time.sleep(seconds)
        return ()

    def vitals(self) -> Mapping[str, Vitals] | None:
        """Asks every GPU how it is. One that is back is listened to again.

        Where GPUs do not answer, or no event can be waited for, the driver is opened anew and they are asked again:
        at every question while none answers, else once for the same GPUs, since events are missed meanwhile. Raises
        MissingError when the driver was replaced and this process keeps the library of the old one.
        """
        answers = self._vitals("the NVIDIA driver is not open")
        silent, lost = _silent(answers), _lost(answers)
        nothing = bool(self._known) and silent | lost == self._known
        if nothing or silent - self._silent or self._listener.deaf:
            answers = self._vitals(self._reopen())
            silent, lost = _silent(answers), _lost(answers)
        if self._lost - lost or self._silent - silent:
            self._listener.renew()
        self._lost, self._silent = lost, silent
        return answers

    def close(self) -> None:
        """Lets go of the driver, unless a call hangs in it: then it goes with this process."""
        with contextlib.suppress(SessionBusyError):
            self._session.close()

    def _scan(self) -> Inventory:
        warnings: list[str] = []
        gpus = [gpu for index in range(self._count()) if (gpu := self._gpu(index, warnings))]
        if not gpus:
            detail = f" ({'; '.join(warnings)})" if warnings else ""
            raise MissingError(f"the NVIDIA driver shows no usable GPU{detail}: {_REMEDY}")
        handles = {gpu.gpu.uuid: gpu.handle for gpu in gpus}
        if not handles.keys() <= self._gpus.keys():
            self._listener.renew()
        self._gpus = {**self._gpus, **handles}
        self._known |= handles.keys()
        if self._listener.deaf:
            warnings.append("errors of the GPUs cannot be heard: NVML's events fail")
        ends = _all_link_ends(gpus, warnings)
        topology = Topology.build(_levels(gpus), _nvlinks(gpus, ends))
        driver = _driver_properties()
        properties = {
            gpu.gpu.uuid: {
                **_properties(gpu.handle, driver, links),
                **self._place_properties(gpu.gpu.pci_bus_id),
            }
            for gpu, links in zip(gpus, ends, strict=True)
        }
        return Inventory(
            tuple(gpu.gpu for gpu in gpus),
            topology,
            (*warnings, *topology.degraded),
            properties=properties,
        )

    def _vitals(self, closed: str) -> dict[str, Vitals]:
        """The GPUs' answers; CLOSED says why there are none."""
        with self._session.use() as ready:
            if not ready:
                return {uuid: Vitals(silent=closed) for uuid in self._known}
            gone = Vitals(silent="the driver does not show it any more")
            return {
                uuid: nvml_health.vitals(self._gpus[uuid]) if uuid in self._gpus else gone
                for uuid in self._known
            }

    def _reopen(self) -> str:
        """Opens the driver anew; what kept it from that, in words."""
        try:
            self._session.renew()
        except SessionBusyError:
            return "a call of the NVIDIA driver does not come back"
        except pynvml.NVMLError as error:
            self._replaced.failed(error, mismatch=error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
            return f"the NVIDIA driver cannot be reached (NVML: {error})"
        self._replaced.opened()
        return "the NVIDIA driver is not open"

    def _enter(self) -> None:
        pynvml.nvmlInit()
        if self._known:  # not for the first time: from the first moment on errors are to be heard
            self._gpus = _handles()
            self._listener.begin(self._gpus)

    def _leave(self) -> None:
        self._listener.close()
        self._gpus, self._sampled = {}, {}
        asked(pynvml.nvmlShutdown)

    def _place_properties(self, bus_id: str) -> dict[str, str]:
        root = sysfs.pcie_root(bus_id, self._sysfs_root)
        return {"pcieRoot": root} if root else {}

    def _count(self) -> int:
        try:
            return int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise MissingError(
                f"the NVIDIA driver does not tell its GPUs (NVML: {error}): {_REMEDY}"
            ) from error

    def _gpu(self, index: int, warnings: list[str]) -> _NvmlGpu | None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            model = _text(pynvml.nvmlDeviceGetName(handle))
            memory = _usable_memory(handle)
        except pynvml.NVMLError as error:
            warnings.append(f"GPU {index} is left out: NVML: {error}")
            return None
        if _mig_enabled(handle):
            warnings.append(
                f"GPU {index} ({uuid}) is left out: MIG mode is on; switch it off to share the whole GPU"
            )
            return None
        slices = count_slices(memory, self._slice_bytes)
        if slices == 0:
            size, unit = units.format_bytes(memory), units.format_bytes(self._slice_bytes)
            warnings.append(f"GPU {index} ({uuid}) is left out: its {size} are less than one slice of {unit}")
            return None
        bus_id = asked(lambda: _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)) or ""
        node = sysfs.numa_node(bus_id, self._sysfs_root)
        if node is None:
            node = _memory_affinity(handle)
        return _NvmlGpu(handle, Gpu(uuid, index, model, memory, slices, self._slice_bytes, 0, node, bus_id))


def _silent(answers: Mapping[str, Vitals]) -> frozenset[str]:
    return frozenset(uuid for uuid, vitals in answers.items() if vitals.silent)


def _lost(answers: Mapping[str, Vitals]) -> frozenset[str]:
    return frozenset(uuid for uuid, vitals in answers.items() if vitals.lost)


def _handles() -> dict[str, Any]:
    """The GPUs that the driver shows now, by UUID."""
    handles = {}
    for index in range(asked(pynvml.nvmlDeviceGetCount) or 0):
        handle = asked(lambda index=index: pynvml.nvmlDeviceGetHandleByIndex(index))  # type: ignore[misc]
        uuid = None if handle is None else asked(lambda handle=handle: pynvml.nvmlDeviceGetUUID(handle))  # type: ignore[misc]
        if uuid is not None:
            handles[_text(uuid)] = handle
    return handles


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _samples(handle: Any, since: int) -> Sequence[Any]:
    """Utilisation of processes since SINCE, in the driver's microseconds. Raises NVMLError.

    pynvml makes room for as many as there were a moment ago, and samples are taken meanwhile.
    """
    for _ in range(_SAMPLE_TRIES - 1):
        with contextlib.suppress(pynvml.NVMLError_InsufficientSize):
            return list(pynvml.nvmlDeviceGetProcessUtilization(handle, since))
    return list(pynvml.nvmlDeviceGetProcessUtilization(handle, since))


def _usable_memory(handle: Any) -> int:
    """Bytes programs can have: what the driver keeps for itself is part of the total and of no program's share."""
    with_reserved = asked(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))
    if with_reserved is not None:
        return int(with_reserved.total) - int(with_reserved.reserved)
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)


def _mig_enabled(handle: Any) -> bool:
    mode = asked(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _memory_affinity(handle: Any) -> int | None:
    """NUMA node nearest to the GPU by the driver's word; for machines whose sysfs does not show it."""
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    words = asked(lambda: pynvml.nvmlDeviceGetMemoryAffinity(handle, _AFFINITY_WORDS, scope))
    nodes = (
        64 * index + bit for index, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1
    )
    return next(nodes, None)


def _levels(gpus: Sequence[_NvmlGpu]) -> list[list[int | None]]:
    def level(gpu: _NvmlGpu, other: _NvmlGpu) -> int | None:
        if gpu is other:
            return 0
        return asked(lambda: int(pynvml.nvmlDeviceGetTopologyCommonAncestor(gpu.handle, other.handle)))

    return [[level(gpu, other) for other in gpus] for gpu in gpus]


def _driver_properties() -> dict[str, str]:
    """The driver's version, and the newest CUDA that it runs."""
    cuda = asked(lambda: int(pynvml.nvmlSystemGetCudaDriverVersion_v2()))
    return {
        "driver": asked(lambda: _text(pynvml.nvmlSystemGetDriverVersion())) or "",
        "cudaDriver": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
    }


def _properties(handle: Any, driver: Mapping[str, str], ends: _LinkEnds | None) -> dict[str, str]:
    """What selectors can ask for beside model and memory; what the driver does not tell is left out."""
    architecture = asked(lambda: int(pynvml.nvmlDeviceGetArchitecture(handle)))
    capability = asked(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    properties = {
        "architecture": _ARCHITECTURES.get(architecture or 0, ""),
        "computeCapability": f"{capability[0]}.{capability[1]}" if capability else "",
        **driver,
        "nvlink": "" if ends is None else str(sum(ends.peers.values()) + ends.switches),
    }
    return {key: value for key, value in properties.items() if value}


def _all_link_ends(gpus: Sequence[_NvmlGpu], warnings: list[str]) -> list[_LinkEnds | None]:
    """Where the NVLinks of each GPU lead; None for one that does not answer."""
    ends: list[_LinkEnds | None] = []
    for gpu in gpus:
        try:
            ends.append(_link_ends(gpu.handle))
        except pynvml.NVMLError as error:
            ends.append(None)
            warnings.append(f"GPU {gpu.gpu.index}: NVLinks ignored: NVML: {error}")
    return ends


def _nvlinks(gpus: Sequence[_NvmlGpu], ends: Sequence[_LinkEnds | None]) -> list[list[int | None]]:
    """Active links of every pair: direct ones, or else as many as the two can both bring to an NVSwitch."""

    def count(i: int, j: int) -> int | None:
        near, far = ends[i], ends[j]
        if near is None or far is None:
            return None
        return near.peers.get(_place(gpus[j].gpu.pci_bus_id), 0) or min(near.switches, far.switches)

    size = range(len(gpus))
    if any(end is None for end in ends) and all(
        end is None or not (end.peers or end.switches) for end in ends
    ):
        return [
            [0 for _ in size] for _ in size
        ]  # no GPU has links then: one failure is reported, and nothing is lost
    return [[0 if i == j else count(i, j) for j in size] for i in size]


@dataclass(frozen=True, slots=True)
class _LinkEnds:
    """Where a GPU's active NVLinks lead: to other PCI places, and how many to switches."""

    peers: Mapping[tuple[int, str], int]
    switches: int


def _link_ends(handle: Any) -> _LinkEnds:
    peers: dict[tuple[int, str], int] = {}
    switches = 0
    for link in _active_links(handle):
        kind = asked(lambda link=link: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))  # type: ignore[misc]
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            switches += 1
        elif kind in (pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, None):
            place = _place(_text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))
            peers[place] = peers.get(place, 0) + 1
    return _LinkEnds(peers, switches)


def _active_links(handle: Any) -> Iterable[int]:
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            state = pynvml.nvmlDeviceGetNvLinkState(handle, link)
        except pynvml.NVMLError as error:
            if error.value in _NO_SUCH_LINK:
                return
            raise
        if state == pynvml.NVML_FEATURE_ENABLED:
            yield link


def _place(bus_id: str) -> tuple[int, str]:
    """A bus id that compares equal whether its domain has four digits or eight."""
    domain, _, rest = bus_id.partition(":")
    try:
        return int(domain, 16), rest.lower()
    except ValueError:
        return -1, bus_id


def _processes(handle: Any) -> dict[int, int] | None:
    """Bytes per PID; a process in both lists, compute and graphics, is shown with the same memory in each."""
    used: dict[int, int] = {}
    answered = False
    for query in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        processes = asked(lambda query=query: query(handle))  # type: ignore[misc]
        if processes is None:
            continue
        answered = True
        for process in processes:
            used[process.pid] = max(used.get(process.pid, 0), process.usedGpuMemory or 0)
    return used if answered else None
