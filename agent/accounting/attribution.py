# SPDX-License-Identifier: Apache-2.0
"""Attributes the memory on the GPUs to containers, and finds overuse. Pure.

A process that owns a slot of a ledger belongs to that ledger's container, according to the kernel's locks. A container
can deceive here: the kernel names the process that took the lock, which may have ended and left lock and PID behind,
and a descriptor can be passed on. So a claim is checked against the process's cgroup and mounts, which a container
cannot choose. Processes without a slot are attributed by these two alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.accounting.processes import ProcessInfo
from agent.ledgers.usage import Reading
from gigaslice.core.allocation.consumer import Consumer
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.units import format_bytes
from vcuda import ProcessUsage

__all__ = [
    "CONTEXT_BYTES",
    "LibraryBypass",
    "Survey",
    "credible_owners",
    "examine",
    "owner_of",
    "undeclared_overuse",
    "with_found_pids",
]

Memory = Mapping[str, Mapping[int, int]]  # GPU -> host PID -> bytes, as measured
CONTEXT_BYTES = 1 << 30
"""Undeclared bytes that a process may hold of a GPU: contexts, module code and libraries' workspaces."""


@dataclass(frozen=True, slots=True)
class LibraryBypass:
    """One container that has processes without the library. over: bytes beyond its limit by GPU, if any."""

    allocation: Allocation
    processes: tuple[tuple[ProcessInfo, str, int], ...]
    over: Mapping[str, int]

    def text(self) -> str:
        """Describes the processes for display."""
        parts = [
            f"process {process.pid} ({process.name}) holds {format_bytes(count)} of {gpu}"
            for process, gpu, count in self.processes[:4]
        ]
        more = f" and {len(self.processes) - 4} more" if len(self.processes) > 4 else ""
        return ", ".join(parts) + more


@dataclass(frozen=True, slots=True)
class Survey:
    """What one round found.

    Attributes:
        without_library: Bytes of processes without the library, by allocation ID and GPU.
        foreign: Bytes of processes outside all allocations, by GPU.
        bypasses: The containers that have processes without the library.
    """

    without_library: Mapping[str, Mapping[str, int]]
    foreign: Mapping[str, int]
    bypasses: tuple[LibraryBypass, ...]


def owner_of(
    process: ProcessInfo,
    allocations: Sequence[Allocation],
    pods: Mapping[str, tuple[str, str]],
    siblings: Mapping[str, str],
) -> str | None:
    """Returns the ID of the allocation that a process belongs to; None when it belongs to none or it is unclear.

    Args:
        process: The process.
        allocations: All allocations of the node.
        pods: Namespace and name by UID.
        siblings: Allocation IDs by the container IDs of processes that own slots.
    """
    allocation_ids = {allocation.id for allocation in allocations}
    if process.place is None:
        return process.mounted if process.mounted in allocation_ids else None
    if process.place.container in siblings:
        return siblings[process.place.container]
    name = pods.get(process.place.uid)
    mine = [allocation for allocation in allocations if _is_of(allocation, process.place.uid, name)]
    if process.mounted in {allocation.id for allocation in mine}:
        return process.mounted
    if not mine and name is None:
        return process.mounted if process.mounted in allocation_ids else None
    living = [allocation for allocation in mine if allocation.keeps]
    return living[0].id if len(living) == 1 else None


def with_found_pids(
    readings: Mapping[str, Reading], processes: Iterable[ProcessInfo], claimed: Collection[int]
) -> dict[str, Reading]:
    """Returns READINGS with the PIDs of living owners whose record locks are lost.

    Without the PID the memory of such a process would count twice for its container. The owner is the process that has
    the allocation's files mounted and whose PID inside the container is the one in its slot. The container chooses that
    number, but not which processes have its files mounted.

    Args:
        readings: By allocation ID.
        processes: The processes that were read.
        claimed: PIDs that locks name.
    """
    unclaimed: dict[tuple[str, int], list[int]] = {}
    for process in processes:
        if process.pid not in claimed:
            unclaimed.setdefault((process.mounted, process.inner), []).append(process.pid)

    def name(key: str, process: ProcessUsage) -> ProcessUsage:
        pids = unclaimed.get((key, process.pid_inside), [])
        return replace(process, pid=pids.pop()) if process.nameless and len(pids) == 1 else process

    return {
        key: replace(reading, processes=tuple(name(key, process) for process in reading.processes))
        if any(process.nameless for process in reading.processes)
        else reading
        for key, reading in readings.items()
    }


def credible_owners(
    claims: Mapping[int, Collection[str]],
    processes: Iterable[ProcessInfo],
    allocations: Sequence[Allocation],
    pods: Mapping[str, tuple[str, str]],
) -> dict[int, str]:
    """Returns the allocation ID of each process that holds a slot, by PID; of allocations that have ended too.

    A process that runs in another pod, or has another allocation's files mounted, does not belong to the allocation.
    One that several allocations could claim belongs to none.

    Args:
        claims: The IDs of the allocations in whose ledgers a process has slots, by PID.
        processes: The processes that were read.
        allocations: All allocations of the node.
        pods: Namespace and name by UID.
    """
    process_by_pid = {process.pid: process for process in processes}
    by_id = {allocation.id: allocation for allocation in allocations}
    owners = {}
    for pid, keys in claims.items():
        left = [key for key in keys if not _contradicts(process_by_pid.get(pid), key, by_id, pods)]
        mounted = [key for key in left if pid in process_by_pid and process_by_pid[pid].mounted == key]
        if len(mounted or left) == 1:
            owners[pid] = (mounted or left)[0]
    return owners


def _contradicts(
    process: ProcessInfo | None,
    key: str,
    by_id: Mapping[str, Allocation],
    pods: Mapping[str, tuple[str, str]],
) -> bool:
    """Whether a process cannot belong to the allocation KEY; what is unknown contradicts nothing."""
    if process is None:
        return False
    if process.mounted in by_id and process.mounted != key:
        return True
    allocation = by_id.get(key)
    if allocation is None or not allocation.consumers or process.place is None:
        return False
    uid, name = process.place.uid, pods.get(process.place.uid)
    return all(_is_another(consumer, uid, name) for consumer in allocation.consumers)


def undeclared_overuse(allocation: Allocation, reading: Reading, measured: Memory) -> dict[str, int]:
    """Undeclared bytes by GPU that the processes with slots hold beyond the limit: plug-ins can bypass the library.

    The memory of contexts is tolerated: the library cannot know it in advance everywhere. A limit that was lowered
    below the declared memory is not this kind of overuse.

    Args:
        allocation: The allocation.
        reading: Its ledger as far as it counts.
        measured: Bytes by GPU and PID, from NVML.
    """
    overuse = {}
    may_shrink = allocation.policy.elastic or allocation.resizes > 0
    for gpu, limit in {} if allocation.whole or reading.problem else reading.limits.items():
        sizes = {pid: measured.get(gpu, {}).get(pid, 0) for pid in reading.pids}
        declared = dict.fromkeys(sizes, 0)
        for process in reading.processes:
            if process.pid in declared:
                declared[process.pid] += process.used.get(gpu, 0) - process.undeclared.get(gpu, 0)
        held = sum(sizes.values())
        undeclared = sum(max(0, count - declared[pid]) for pid, count in sizes.items())
        if not may_shrink:  # its processes could never declare more than the limit
            undeclared = max(undeclared, held - limit)
        if held > limit and undeclared > CONTEXT_BYTES * sum(count > 0 for count in sizes.values()):
            overuse[gpu] = min(held - limit, undeclared)
    return overuse


def examine(
    measured: Memory,
    owners: Mapping[int, str],
    processes: Iterable[ProcessInfo],
    allocations: Sequence[Allocation],
    pods: Mapping[str, tuple[str, str]],
    *,
    limits: Mapping[str, Mapping[str, int]] | None = None,
) -> Survey:
    """Attributes what was measured.

    Args:
        measured: Bytes by GPU and PID, from NVML.
        owners: Allocation IDs by PID of the processes that own slots, of allocations that have ended too.
        processes: The processes that were read.
        allocations: All allocations of the node.
        pods: Namespace and name by UID.
        limits: The limits pages' limits by allocation ID and GPU; default: the quotas.
    """
    process_by_pid = {process.pid: process for process in processes}
    by_id = {allocation.id: allocation for allocation in allocations}
    siblings = {
        process.place.container: owners[pid]
        for pid, process in process_by_pid.items()
        if owners.get(pid) in by_id and process.place is not None and process.place.container
    }
    belongs = {
        pid: owner_of(process, allocations, pods, siblings)
        for pid, process in process_by_pid.items()
        if pid not in owners
    }
    without_library: dict[str, dict[str, int]] = {}
    foreign: dict[str, int] = dict.fromkeys(measured, 0)
    listed: dict[str, list[tuple[ProcessInfo, str, int]]] = {}
    for gpu, by_pid in measured.items():
        for pid, count in by_pid.items():
            if pid not in belongs:
                continue
            owner = belongs[pid]
            if owner is None:
                foreign[gpu] += count
                continue
            by_gpu = without_library.setdefault(owner, {})
            by_gpu[gpu] = by_gpu.get(gpu, 0) + count
            listed.setdefault(owner, []).append((process_by_pid[pid], gpu, count))
    bypasses = tuple(
        LibraryBypass(
            by_id[owner],
            tuple(rows),
            _over(
                owner,
                (limits or {}).get(owner) or by_id[owner].quota(),
                measured,
                owners,
                without_library[owner],
            ),
        )
        for owner, rows in listed.items()
        if not by_id[owner].whole  # nothing is limited there, and no library expected
    )
    return Survey(without_library, foreign, bypasses)


def _is_of(allocation: Allocation, uid: str, name: tuple[str, str] | None) -> bool:
    return any(
        consumer.uid == uid if consumer.uid else (consumer.ref.namespace, consumer.ref.pod) == name
        for consumer in allocation.consumers
    )


def _is_another(consumer: Consumer, uid: str, name: tuple[str, str] | None) -> bool:
    """Whether a consumer is certainly of another pod than that of the UID and the name, if that is known."""
    if consumer.uid:
        return consumer.uid != uid
    return name is not None and (consumer.ref.namespace, consumer.ref.pod) != name


def _over(
    owner: str,
    limits: Mapping[str, int],
    measured: Memory,
    owners: Mapping[int, str],
    without_library: Mapping[str, int],
) -> dict[str, int]:
    over = {}
    for gpu, count in without_library.items():
        own = sum(size for pid, size in measured[gpu].items() if owners.get(pid) == owner)
        beyond = own + count - limits.get(gpu, 0)
        if beyond > 0:
            over[gpu] = beyond
    return over
