"""Reads the ledgers of all allocations: who lives, and how much of which card they hold.

Ledgers are written by the containers and trusted in nothing: they are read with checked sizes by `vcuda`, one that grew
is cut back so that nobody fills the node's disk, and one that is damaged becomes a reading with a problem instead of an
error. Publishes measured memory into the limits pages, which only the agent writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import vcuda
from agent.state.measure import unhooked_bytes
from agent.state.records import Grant
from vcuda import contract

__all__ = ["Reading", "publish_unhooked", "read"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One ledger; sizes are bytes by GPU.

    used: what living processes declare, managed: the part of it that may lie in host memory. peak: largest sum so far.
    unhooked: what was measured beyond that. limits: what the page says now, physical: of it in the card's own memory, 0
    where all of it. problem: why the ledger cannot be read. strangers: the part of unhooked that processes without the
    library hold, as of the last round. shares: use of compute, cores: per cent of it that the page gives, 0 for all.
    """

    used: Mapping[str, int]
    peak: Mapping[str, int]
    processes: tuple[vcuda.ProcessUsage, ...] = ()
    unhooked: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    grew: bool = False
    problem: str | None = None
    strangers: Mapping[str, int] = field(default_factory=dict)
    managed: Mapping[str, int] = field(default_factory=dict)
    physical: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, vcuda.ShareUsage] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)

    @property
    def pids(self) -> tuple[int, ...]:
        """The living processes, as this process counts PIDs."""
        return tuple(process.pid for process in self.processes if process.pid > 0)

    @property
    def alive(self) -> bool:
        """Whether any process is attached to it, or runs in the container without being."""
        return bool(self.pids) or any(self.strangers.values())

    @property
    def attached(self) -> bool:
        """Whether a process was attached to it at any time."""
        return bool(self.processes) or any(self.peak.values())

    def present(self) -> dict[str, int]:
        """Bytes that its living processes hold of each card, declared or not; 0 when none lives."""
        return {
            gpu: count + (self.unhooked.get(gpu, 0) if self.alive else 0) for gpu, count in self.used.items()
        }


def read(path: Path, *, trim: bool = False) -> Reading:
    """Reads the ledger of the allocation directory PATH; TRIM cuts it back first when it grew."""
    ledger = path / contract.LEDGER_FILE
    grew = False
    try:
        if trim:
            with contextlib.suppress(vcuda.VcudaError):
                grew = vcuda.trim_ledger(ledger)
        usage = vcuda.read_ledger(ledger)
        page = vcuda.read_limits(path / contract.LIMITS_FILE)
        shares = vcuda.read_shares(ledger, page.gpus)
    except vcuda.VcudaError as error:
        return Reading({}, {}, grew=grew, problem=str(error))
    used = {uuid: usage.used(uuid) for uuid in usage.gpu_uuids}
    unhooked = {gpu.uuid: gpu.unhooked_bytes for gpu in page.gpus}
    limits = {gpu.uuid: gpu.memory_bytes for gpu in page.gpus}
    return Reading(
        used,
        usage.peak,
        usage.processes,
        unhooked,
        limits,
        grew,
        managed={uuid: usage.managed(uuid) for uuid in usage.gpu_uuids},
        physical={gpu.uuid: gpu.physical_bytes for gpu in page.gpus},
        shares=shares,
        cores={gpu.uuid: gpu.cores_percent for gpu in page.gpus},
    )


def publish_unhooked(
    path: Path,
    grant: Grant,
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
    found = unhooked_bytes(before.processes, after.processes, measured, grant.quota())
    found = {gpu: count + (strangers or {}).get(gpu, 0) for gpu, count in found.items()}
    changed = [(gpu, count) for gpu, count in found.items() if after.unhooked.get(gpu) != count]
    for gpu, count in changed:
        vcuda.set_unhooked(path / contract.LIMITS_FILE, gpu, count)
    return changed
