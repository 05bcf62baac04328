# SPDX-License-Identifier: Apache-2.0
"""How much of what a container writes into its ledger counts. Pure; every use of a ledger's numbers goes through here.

A ledger belongs to its container, whose processes may write anything into it, with a correct checksum. Others depend
on it: the start decision, elastic limits, time slices, compute shares. So its numbers count only for the allocation's
own GPUs, and for no more than the container can really have, which is the larger of

* what NVML measured in the last round for the processes that hold its slots, and
* what its limits page allows, or allowed since that round began.

Without a measurement, a container whose limit changes (elastic, or resized) may still hold as much as it was once
allowed, which is not recorded: it counts up to the whole GPU. A ledger that cannot be read hides nothing: while the
kernel tells of a living owner of one of its slots, it counts with what was measured, else with all it may have. A
container that reports too little gains nothing either: the rest is measured and counts as undeclared.

What this cannot do: tell a lie within these bounds from the truth. A container can always claim to use all of its
quota, and it can really do so. Tests: tests/unit/agent/ledgers/test_trust.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent.ledgers.usage import Reading
from gigaslice.core.allocation.table import Allocation
from vcuda import ProcessUsage, ShareUsage, TimeSliceUsage

__all__ = ["Ceiling", "RecentLimits", "believed", "believed_flying", "believed_time_slices", "ceiling"]

Bytes = Mapping[str, int]
_NOTHING: Bytes = {}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most bytes by GPU that an allocation can hold now, and can ever have held; for its own GPUs only."""

    now: Bytes
    ever: Bytes


def ceiling(
    allocation: Allocation, limits: Bytes, measured: Bytes | None, recent: Bytes, gpu_bytes: Bytes
) -> Ceiling:
    """Returns the ceiling of an allocation. All sizes are bytes by GPU.

    Args:
        allocation: The allocation.
        limits: The limits in its page.
        measured: Memory of all its processes, from NVML; None without a measurement.
        recent: The largest limits in its page since the last measurement began.
        gpu_bytes: Sizes of the GPUs, with lent host memory.
    """
    changes = allocation.policy.elastic or allocation.resizes > 0
    now, ever = {}, {}
    for gpu, quota in allocation.quota().items():
        allowed = max(quota, limits.get(gpu, 0), recent.get(gpu, 0))
        once = max(allowed, gpu_bytes.get(gpu, 0)) if changes else allowed
        bytes_measured = measured.get(gpu) if measured is not None else None
        now[gpu] = once if bytes_measured is None else max(bytes_measured, allowed)
        ever[gpu] = max(once, now[gpu])
    return Ceiling(now, ever)


def believed(
    reading: Reading,
    most: Ceiling,
    measured: Bytes | None,
    *,
    disowned: frozenset[int] = frozenset(),
    listed: Bytes = _NOTHING,
    ended: bool = False,
) -> Reading:
    """Returns READING as far as it counts.

    Args:
        reading: A ledger.
        most: The ceiling of its allocation.
        measured: Memory of its processes by GPU, from NVML; None without a measurement.
        disowned: Processes with one of its slots that belong to another container.
        listed: How many of its processes NVML lists, by GPU, where that is known.
        ended: The kubelet has given its slices to others. Then a slot without a known owner counts for no more than was
            measured, since a process of another pod that was passed the descriptor can hold it.
    """
    gone = [process for process in reading.processes if process.pid in disowned and process.pid > 0]
    used = {
        gpu: reading.used.get(gpu, 0) - sum(process.used.get(gpu, 0) for process in gone) for gpu in most.now
    }
    if ended:
        for gpu, count in (measured or {}).items():
            nameless = sum(process.used.get(gpu, 0) for process in reading.processes if process.nameless)
            if gpu in used:
                used[gpu] -= max(0, nameless - count)
    trusted = replace(
        reading,
        processes=tuple(
            _process(process, most, dead=process.pid in disowned) for process in reading.processes
        ),
        used=_within(used, most.now),
        peak=_within(reading.peak, most.ever),
        managed=_within(reading.managed, most.now),
        undeclared={gpu: count for gpu, count in reading.undeclared.items() if gpu in most.now},
        most=most.now,
    )
    if reading.problem is not None:
        measured_bytes = measured or {}
        used = {
            gpu: measured_bytes.get(gpu, count) if trusted.alive else 0 for gpu, count in most.now.items()
        }
        return replace(trusted, used=used, undeclared={}, shares={})
    return replace(
        trusted,
        used=trusted.used if trusted.alive else dict.fromkeys(most.now, 0),
        shares={
            gpu: _share(use, min(trusted.living, believed_flying(use.flying, listed.get(gpu))))
            for gpu, use in reading.shares.items()
            if gpu in most.now
        },
    )


def believed_flying(flying: int, listed: int | None) -> int:
    """How many processes with work under way count, where NVML lists LISTED of the container's processes.

    A process without a context has no work. One always counts, since a process that has just begun is not listed yet.
    """
    return flying if listed is None else min(flying, max(1, listed))


def believed_time_slices(
    usage: Mapping[str, TimeSliceUsage], allocation: Allocation, measured: Bytes | None
) -> Mapping[str, TimeSliceUsage]:
    """Returns USAGE with no more memory than the allocation's parts of GPU and host, or than was measured."""
    quota, measured_bytes = allocation.quota(), measured or {}
    return {
        gpu: replace(
            slices,
            real=min(slices.real, max(allocation.physical.get(gpu, 0), measured_bytes.get(gpu, 0))),
            managed=min(slices.managed, max(quota[gpu], measured_bytes.get(gpu, 0))),
        )
        for gpu, slices in usage.items()
        if gpu in quota
    }


@dataclass(slots=True)
class RecentLimits:
    """The largest limits in pages since the latest finished measurement began.

    A process that was allowed more a moment ago may have allocated it, and no measurement shows that yet.
    """

    _noted: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)  # bytes by round
    _round: int = 0

    def note(self, allocation_id: str, gpu: str, memory_bytes: int) -> None:
        """Records that a page had the limit MEMORY_BYTES until now."""
        rounds = self._noted.setdefault((allocation_id, gpu), {})
        rounds[self._round] = max(memory_bytes, rounds.get(self._round, 0))

    def of(self, allocation_id: str) -> dict[str, int]:
        """The largest limits of that allocation, by GPU; nothing where none was lowered."""
        if not self._noted:
            return {}
        return {
            gpu: max(rounds.values()) for (key, gpu), rounds in self._noted.items() if key == allocation_id
        }

    def begin(self) -> int:
        """Begins a measurement, which may not show limits that are noted from now on."""
        self._round += 1
        return self._round

    def end(self, begun: int) -> None:
        """Ends the measurement BEGUN, which has shown all that was noted before it."""
        left = {
            key: {at: count for at, count in rounds.items() if at >= begun}
            for key, rounds in self._noted.items()
        }
        self._noted = {key: rounds for key, rounds in left.items() if rounds}

    def forget(self, allocations: frozenset[str]) -> None:
        """Forgets all allocations but KNOWN."""
        self._noted = {key: rounds for key, rounds in self._noted.items() if key[0] in allocations}


def _within(counts: Bytes, most: Bytes) -> dict[str, int]:
    return {gpu: min(max(0, counts.get(gpu, 0)), count) for gpu, count in most.items()}


def _process(process: ProcessUsage, most: Ceiling, *, dead: bool) -> ProcessUsage:
    used = _within(process.used, most.now)
    return replace(
        process,
        pid=0 if dead else process.pid,
        alive=process.alive and not dead,
        used=used,
        peak=_within(process.peak, most.ever),
        undeclared=_within(process.undeclared, used),
        managed=_within(process.managed, used),
    )


def _share(use: ShareUsage, flying: int) -> ShareUsage:
    return use if use.flying <= flying else replace(use, flying=flying)
