# SPDX-License-Identifier: Apache-2.0
"""Reads the ledgers of all allocations: which processes live, and how much of each GPU they hold.

Containers write the ledgers, so nothing in them is trusted. `vcuda` reads them with checked sizes, `open_ledgers` cuts
back one that grew, and `trust` decides how much of the numbers counts. A damaged ledger gives a reading with a problem
instead of an error; the kernel still tells which processes live. This module also publishes measured memory in the
limits pages, which only the agent writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import vcuda
from agent.ledgers.undeclared import undeclared_bytes
from gigaslice.core.allocation.table import Allocation
from vcuda import contract

__all__ = ["Reading", "publish_undeclared", "read", "unreadable"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One ledger and its limits page. Sizes are bytes by GPU.

    Attributes:
        used: Held by living processes, according to the ledger.
        peak: The largest sum so far.
        processes: The owners of the ledger's slots.
        undeclared: What the agent has measured beyond `used` and published in the limits page.
        limits: What the page allows now.
        grew: Bytes that the agent has cut from the ledger since the previous round.
        problem: Why the ledger cannot be read.
        without_library: The part of `undeclared` that processes without the library held in the last round.
        managed: The part of `used` that may lie in host memory.
        physical: The part of `limits` in the GPU's own memory; 0: all of it.
        shares: Use of compute.
        cores: Per cent of compute that the page allows; 0: all of it.
        most: The most that the allocation can hold, for its own GPUs (`trust`). Empty in what `read` returns: that is
            what the container claims.
        hidden: The kernel could not be asked whether a process lives.
        driver_refused: How often the driver had no memory although the quota had room.
        driver_refused_bytes: What was asked for the last time; 0 where that is not known.
    """

    used: Mapping[str, int]
    peak: Mapping[str, int]
    processes: tuple[vcuda.ProcessUsage, ...] = ()
    undeclared: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    grew: int = 0
    problem: str | None = None
    without_library: Mapping[str, int] = field(default_factory=dict)
    managed: Mapping[str, int] = field(default_factory=dict)
    physical: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, vcuda.ShareUsage] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    hidden: bool = False
    driver_refused: Mapping[str, int] = field(default_factory=dict)
    driver_refused_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def pids(self) -> tuple[int, ...]:
        """The living processes whose PIDs the kernel tells, in this process's PID namespace."""
        return tuple(process.pid for process in self.processes if process.pid > 0)

    @property
    def living(self) -> int:
        """How many processes own slots and live, whether the kernel tells their PIDs or not."""
        return sum(process.alive for process in self.processes)

    @property
    def alive(self) -> bool:
        """Whether a process is attached, runs in the container without the library, or may live unseen."""
        return self.hidden or self.living > 0 or any(self.without_library.values())

    @property
    def attached(self) -> bool:
        """Whether a process was ever attached."""
        return bool(self.processes) or any(self.peak.values())

    def present(self) -> dict[str, int]:
        """Bytes that its living processes hold of each GPU, declared or not; 0 when none lives."""
        held = {
            gpu: count + (self.undeclared.get(gpu, 0) if self.alive else 0)
            for gpu, count in self.used.items()
        }
        return {gpu: min(count, self.most.get(gpu, count)) for gpu, count in held.items()}


def read(path: Path, *, wait: bool = True) -> Reading:
    """Reads the ledger in the directory PATH of an allocation.

    Args:
        path: The allocation's directory.
        wait: Wait for the disk or for the container where needed.

    Raises:
        vcuda.errors.BusyError: Without `wait`, where it would have to wait.
    """
    ledger = path / contract.LEDGER_FILE
    try:
        usage = vcuda.read_ledger(ledger, wait=wait)
        page = vcuda.read_limits(path / contract.LIMITS_FILE)
        shares = vcuda.read_shares(ledger, page.gpus, wait=wait)
    except vcuda.VcudaError as error:
        if not wait and isinstance(error, vcuda.errors.BusyError):
            raise
        return unreadable(path, str(error))
    used = {uuid: usage.used(uuid) for uuid in usage.gpu_uuids}
    undeclared = {gpu.uuid: gpu.undeclared_bytes for gpu in page.gpus}
    limits = {gpu.uuid: gpu.memory_bytes for gpu in page.gpus}
    return Reading(
        used,
        usage.peak,
        usage.processes,
        undeclared,
        limits,
        managed={uuid: usage.managed(uuid) for uuid in usage.gpu_uuids},
        physical={gpu.uuid: gpu.physical_bytes for gpu in page.gpus},
        shares=shares,
        cores={gpu.uuid: gpu.cores_percent for gpu in page.gpus},
        driver_refused=usage.driver_refused,
        driver_refused_bytes=usage.driver_refused_bytes,
    )


def unreadable(path: Path, problem: str) -> Reading:
    """A reading with PROBLEM of the ledger in PATH: only the slots' owners, which the kernel tells of any open file."""
    try:
        owners = vcuda.ledger_owners(path / contract.LEDGER_FILE)
    except (vcuda.errors.NotFoundError, vcuda.errors.CorruptError):
        return Reading({}, {}, problem=problem)  # no process can have locked a file that does not exist
    except vcuda.VcudaError:
        return Reading({}, {}, problem=problem, hidden=True)
    processes = tuple(vcuda.ProcessUsage(slot, pid, 0, 0, {}, {}, 0, "") for slot, pid in owners)
    return Reading({}, {}, processes, problem=problem)


def publish_undeclared(
    path: Path,
    allocation: Allocation,
    before: Reading,
    after: Reading,
    measured: Mapping[str, Mapping[int, int]],
    *,
    without_library: Mapping[str, int] | None = None,
) -> Iterable[tuple[str, int]]:
    """Publishes in the limits page what was measured beyond the ledger.

    Args:
        path: The allocation's directory.
        allocation: Whose GPUs count.
        before: The ledger before the measurement.
        after: The ledger after it.
        measured: Bytes by GPU and PID, from NVML.
        without_library: Bytes by GPU of processes without the library, which count in full.

    Returns:
        The GPUs whose number has changed, with the new number.

    Raises:
        vcuda.VcudaError: The page cannot be read or written.
    """
    undeclared = undeclared_bytes(before.processes, after.processes, measured, allocation.quota())
    undeclared = {gpu: count + (without_library or {}).get(gpu, 0) for gpu, count in undeclared.items()}
    changed = [(gpu, count) for gpu, count in undeclared.items() if after.undeclared.get(gpu) != count]
    for gpu, count in changed:
        vcuda.set_undeclared(path / contract.LIMITS_FILE, gpu, count)
    return changed
