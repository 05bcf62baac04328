# SPDX-License-Identifier: Apache-2.0
"""Time-slices the GPUs whose containers thrash: reads their ledgers, asks the arbiter, and writes their limits pages.

A time slice is a lease: the page says until when, and each poll renews it, so that containers go on a second after an
agent was killed. Polls are frequent only where containers with host memory have more managed memory than their GPU has
room for. Everything happens in the agent's own thread; polling a container takes a few reads of its ledger, and one of
the driver's counters of page faults, where it has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import vcuda
from agent.inventory.page_faults import Paging
from agent.inventory.page_faults import read as read_paging
from agent.inventory.source import Inventory
from agent.ledgers.trust import believed_time_slices
from agent.persistence.store import Store
from gigaslice.core.allocation.host_memory import real_part
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.limits.time_slicing import TimeSlicer, TimeSliceSample
from gigaslice.core.model import Gpu
from gigaslice.runtime.logs import get_logger
from vcuda import contract

__all__ = ["GpuTimeSlices", "TimeSliceManager"]

SOON, BUSY, QUIET = 0.005, 0.05, 0.5
"""Seconds between two polls: before a time slice can begin, of a GPU that needs them, and of one that does not."""
LEASE_MS = 1000


@dataclass(slots=True)
class GpuTimeSlices:
    """The state of one GPU, for metrics too. seconds: in time slices so far. paging: the driver's counters."""

    arbiter: TimeSlicer = field(default_factory=TimeSlicer)
    holder: str | None = None
    held: frozenset[str] = frozenset()
    wanting: int = 0
    fits: bool = True
    seconds: float = 0.0
    paging: Paging | None = None
    logged_mode: str = ""


class TimeSliceManager:
    """Time-slices the GPUs of the allocations in STORE.

    Args:
        store: The node's allocations.
        inventory: Returns the present GPUs.
        now: A monotonic clock.
        counters: Reads the driver's counters of page faults for a GPU; None where it has none.
    """

    def __init__(
        self,
        store: Store,
        inventory: Callable[[], Inventory],
        now: Callable[[], float] = time.monotonic,
        counters: Callable[[str], Paging | None] = read_paging,
    ) -> None:
        self.gpus: dict[str, GpuTimeSlices] = {}
        self.held_us: dict[tuple[str, str], int] = {}
        """Microseconds that threads have waited for a time slice, by allocation and GPU."""
        self._store = store
        self._inventory = inventory
        self._now = now
        self._counters = counters
        self._written: set[tuple[str, str]] = set()  # pages with a time slice, by allocation and GPU
        self._ended_totals: Mapping[
            str, tuple[int, float]
        ] = {}  # `totals` of GPUs whose containers have ended
        self._used: dict[str, Mapping[str, vcuda.TimeSliceUsage]] = {}  # last readings, by allocation
        self._polled_at = now()
        self._log = get_logger("time_slices")

    async def run(self) -> None:
        """Works until cancelled; then no container waits any more."""
        try:
            while True:
                self.poll()
                await asyncio.sleep(self.pause)
        finally:
            self.end_all()

    @property
    def pause(self) -> float:
        """Seconds until the next poll."""
        if any(gpu.arbiter.urgent for gpu in self.gpus.values()):
            return SOON
        return BUSY if any(not gpu.fits for gpu in self.gpus.values()) else QUIET

    def totals(self) -> dict[str, tuple[int, float]]:
        """Time slices and seconds in them since the agent started, by GPU, for every GPU that had containers."""
        totals = dict(self._ended_totals)
        for uuid, gpu in self.gpus.items():
            count, seconds = totals.get(uuid, (0, 0.0))
            totals[uuid] = (count + gpu.arbiter.changes, seconds + gpu.seconds)
        return totals

    def end_all(self) -> None:
        """Ends time slicing on all GPUs: no container waits any more."""
        for allocation_id, gpu in tuple(self._written):
            self._end(allocation_id, gpu)

    def poll(self) -> None:
        """Polls every GPU that has containers with host memory, and writes their pages."""
        now = self._now()
        passed, self._polled_at = now - self._polled_at, now
        allocations = [
            allocation
            for allocation in self._store.table.allocations
            if allocation.physical and not allocation.ended
        ]
        gpus = {gpu.uuid: gpu for gpu in self._inventory().gpus}
        uuids = {uuid for allocation in allocations for uuid in allocation.physical} & gpus.keys()
        for uuid in self.gpus.keys() - uuids:
            self._ended_totals = self.totals()
            del self.gpus[uuid]
        usage = {allocation.id: self._usage(allocation) for allocation in allocations}
        for uuid in uuids:
            self._poll_gpu(
                now,
                passed,
                gpus[uuid],
                [allocation for allocation in allocations if uuid in allocation.physical],
                usage,
            )
        pages = {(allocation.id, uuid) for allocation in allocations for uuid in allocation.physical}
        there = {allocation.id for allocation in self._store.table.allocations}
        self._used = {key: used for key, used in self._used.items() if key in there}
        self.held_us = {key: count for key, count in self.held_us.items() if key[0] in there}
        for allocation_id, uuid in tuple(self._written):
            if (allocation_id, uuid) not in pages or uuid not in uuids:
                self._end(allocation_id, uuid)

    def _poll_gpu(
        self,
        now: float,
        passed: float,
        gpu: Gpu,
        allocations: list[Allocation],
        usage: Mapping[str, Mapping[str, vcuda.TimeSliceUsage]],
    ) -> None:
        state = self.gpus.setdefault(gpu.uuid, GpuTimeSlices())
        if state.holder:
            state.seconds += passed
        samples = {}
        for allocation in allocations:
            reading = usage[allocation.id].get(gpu.uuid)
            if reading is None:
                continue
            self.held_us[allocation.id, gpu.uuid] = reading.held_us
            stopped = allocation.id == state.holder and self._is_stopped(allocation)
            samples[allocation.id] = TimeSliceSample(
                reading.progress,
                reading.waiting,
                reading.managed,
                busy=reading.busy > 0,
                alive=reading.alive > 0 and not stopped,
                willing=allocation.policy.time_slicing,
            )
        state.paging = self._counters(gpu.uuid)
        moved = state.paging.moved if state.paging else None
        decision = state.arbiter.decide(now, self._room(gpu, usage), samples, moved)
        state.holder, state.held = decision.holder, decision.held
        state.wanting, state.fits = decision.contending, decision.fits
        self._log_mode(gpu, state)
        end = vcuda.time_slice_clock() + LEASE_MS
        for name in samples:
            if name in decision.held:
                self._write(name, gpu.uuid, vcuda.withhold_time_slice, end)
            elif name == decision.holder:
                self._write(name, gpu.uuid, vcuda.give_time_slice, end)
            elif name in decision.short:
                self._write(name, gpu.uuid, vcuda.shorten_queues, end)
            elif (name, gpu.uuid) in self._written:
                self._end(name, gpu.uuid)

    def _room(self, gpu: Gpu, usage: Mapping[str, Mapping[str, vcuda.TimeSliceUsage]]) -> int:
        """Bytes of the GPU that managed pages can use: all but the others' memory and these containers' real memory."""
        taken = 0
        for allocation in self._store.table.allocations:
            reading = usage.get(allocation.id, {}).get(gpu.uuid)
            promised = real_part(allocation, gpu.uuid, allocation.promised.get(gpu.uuid, 0))
            taken += (
                reading.real if reading is not None else promised
            )  # a ledger that cannot be read counts as promised
        return max(0, gpu.memory_bytes - taken)

    def _usage(self, allocation: Allocation) -> Mapping[str, vcuda.TimeSliceUsage]:
        ledger = self._store.dirs.path(allocation.id) / contract.LEDGER_FILE
        try:
            reported = vcuda.read_time_slices(ledger, list(allocation.quota()), wait=False)
        except vcuda.errors.BusyError:
            return self._used.get(
                allocation.id, {}
            )  # the agent waits neither for a container nor for the disk
        except vcuda.VcudaError:
            return {}  # the memory monitor reports the problem
        self._used[allocation.id] = believed_time_slices(
            reported, allocation, self._store.measured.get(allocation.id)
        )
        return self._used[allocation.id]

    def _is_stopped(self, allocation: Allocation) -> bool:
        """Whether every process of the container is stopped: then it must not keep the time slice."""
        with contextlib.suppress(vcuda.VcudaError):
            path = self._store.dirs.path(allocation.id) / contract.LEDGER_FILE
            pids = [
                process.pid for process in vcuda.read_ledger(path, wait=False).processes if process.pid > 0
            ]
            return bool(pids) and all(_state(pid) in "TtZX" for pid in pids)
        return False

    def _write(
        self, allocation_id: str, gpu: str, write: Callable[[Path, str, int], None], end_ms: int
    ) -> None:
        page = self._store.dirs.path(allocation_id) / contract.LIMITS_FILE
        with contextlib.suppress(vcuda.VcudaError):  # the allocation has just ended
            write(page, gpu, end_ms)
            self._written.add((allocation_id, gpu))

    def _end(self, allocation_id: str, gpu: str) -> None:
        self._written.discard((allocation_id, gpu))
        with contextlib.suppress(vcuda.VcudaError):
            vcuda.end_time_slices(self._store.dirs.path(allocation_id) / contract.LIMITS_FILE, gpu)

    def _log_mode(self, gpu: Gpu, state: GpuTimeSlices) -> None:
        if state.logged_mode == state.arbiter.mode:
            return
        if state.arbiter.mode == "slicing":
            self._log.info("time slicing started", gpu=gpu.uuid, containers=state.wanting)
        elif state.logged_mode == "slicing":
            self._log.info("time slicing stopped", gpu=gpu.uuid, fits=state.fits)
        state.logged_mode = state.arbiter.mode


def _state(pid: int) -> str:
    """The process's state as one letter; "X" when it is gone."""
    try:
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="ascii", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except (OSError, IndexError):
        return "X"
