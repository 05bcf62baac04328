"""Reads the ledgers of all allocations: who lives, and how much of which GPU they hold.

Ledgers are written by the containers and trusted in nothing: they are read with checked sizes by `vcuda`, one that grew
is cut back elsewhere (`openledgers`), and one that is damaged becomes a reading with a problem instead of an
error, which still says who lives: that is the kernel's word. How much of the rest counts is decided in `trust`.
Publishes measured memory into the limits pages, which only the agent writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import vcuda
from agent.ledgers.undeclared import unhooked_bytes
from gigaslice.allocation.table import Allocation
from vcuda import contract

__all__ = ["Reading", "publish_unhooked", "read", "unreadable"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One ledger; sizes are bytes by GPU.

    used: what living processes declare, managed: the part of it that may lie in host memory. peak: largest sum so far.
    unhooked: what was measured beyond that. limits: what the page says now, physical: of it in the GPU's own memory, 0
    where all of it. grew: bytes that were cut from it since the round before. problem: why the ledger cannot be read.
    strangers: the part of unhooked that processes without the library hold, as of the last round. shares: use of
    compute, cores: per cent of it that the page gives, 0 for all.
    most: what it can hold altogether, of GPUs that it was granted (`trust`); empty in what `read` returns, which is the
    container's word. hidden: nobody can tell whether a process lives.
    """

    used: Mapping[str, int]
    peak: Mapping[str, int]
    processes: tuple[vcuda.ProcessUsage, ...] = ()
    unhooked: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    grew: int = 0
    problem: str | None = None
    strangers: Mapping[str, int] = field(default_factory=dict)
    managed: Mapping[str, int] = field(default_factory=dict)
    physical: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, vcuda.ShareUsage] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    hidden: bool = False

    @property
    def pids(self) -> tuple[int, ...]:
        """The living processes whose PIDs the kernel tells, as this process counts them."""
        return tuple(process.pid for process in self.processes if process.pid > 0)

    @property
    def living(self) -> int:
        """How many processes own slots and live, whether the kernel tells their PIDs or not."""
        return sum(process.alive for process in self.processes)

    @property
    def alive(self) -> bool:
        """Whether any process is attached to it, or runs in the container without being, or may do so unseen."""
        return self.hidden or self.living > 0 or any(self.strangers.values())

    @property
    def attached(self) -> bool:
        """Whether a process was attached to it at any time."""
        return bool(self.processes) or any(self.peak.values())

    def present(self) -> dict[str, int]:
        """Bytes that its living processes hold of each GPU, declared or not; 0 when none lives."""
        held = {
            gpu: count + (self.unhooked.get(gpu, 0) if self.alive else 0) for gpu, count in self.used.items()
        }
        return {gpu: min(count, self.most.get(gpu, count)) for gpu, count in held.items()}


def read(path: Path, *, wait: bool = True) -> Reading:
    """Reads the ledger of the allocation directory PATH.

    Without WAIT it raises vcuda.errors.BusyError where it would have to wait for the disk or for the container.
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
    unhooked = {gpu.uuid: gpu.unhooked_bytes for gpu in page.gpus}
    limits = {gpu.uuid: gpu.memory_bytes for gpu in page.gpus}
    return Reading(
        used,
        usage.peak,
        usage.processes,
        unhooked,
        limits,
        managed={uuid: usage.managed(uuid) for uuid in usage.gpu_uuids},
        physical={gpu.uuid: gpu.physical_bytes for gpu in page.gpus},
        shares=shares,
        cores={gpu.uuid: gpu.cores_percent for gpu in page.gpus},
    )


def unreadable(path: Path, problem: str) -> Reading:
    """What the kernel alone knows of the ledger in PATH: who holds a slot. That takes a file that can be opened."""
    try:
        owners = vcuda.ledger_owners(path / contract.LEDGER_FILE)
    except (vcuda.errors.NotFoundError, vcuda.errors.CorruptError):
        return Reading({}, {}, problem=problem)  # nobody can have a lock of what is not there
    except vcuda.VcudaError:
        return Reading({}, {}, problem=problem, hidden=True)
    processes = tuple(vcuda.ProcessUsage(slot, pid, 0, 0, {}, {}, 0, "") for slot, pid in owners)
    return Reading({}, {}, processes, problem=problem)


def publish_unhooked(
    path: Path,
    allocation: Allocation,
    before: Reading,
    after: Reading,
    measured: Mapping[str, Mapping[int, int]],
    *,
    strangers: Mapping[str, int] | None = None,
) -> Iterable[tuple[str, int]]:
    """Writes what was measured beyond the ledger into the limits page; returns what has changed, by GPU.

    BEFORE and AFTER are readings from both sides of the measurement. STRANGERS: bytes of processes without the library,
    by GPU, which count in full. Raises vcuda.VcudaError when the page cannot be read or written.
    """
    found = unhooked_bytes(before.processes, after.processes, measured, allocation.quota())
    found = {gpu: count + (strangers or {}).get(gpu, 0) for gpu, count in found.items()}
    changed = [(gpu, count) for gpu, count in found.items() if after.unhooked.get(gpu) != count]
    for gpu, count in changed:
        vcuda.set_unhooked(path / contract.LIMITS_FILE, gpu, count)
    return changed
