# SPDX-License-Identifier: Apache-2.0
"""Publishes the decisions of each GPU's compute arbiter: credit for the time of neighbours, and idle time that is lent.

It polls only GPUs on which a container could gain: those with two containers that have shares, or with one that may
borrow. While one of them has work, it polls about every five milliseconds, at random instants so that programs cannot
synchronise with it; else twenty times a second. What containers report about themselves is read with checked sizes
(``vcuda.ShareReader``) and bounded by `agent.ledgers.trust` and the arbiter. Without this part shares are upper
bounds; nothing waits for it.

Containers without a share do not report their work. Where one is beside a container that may borrow, the driver tells
twice a second what its processes used; that call runs in another thread. A driver without this counter counts as one
that shows no work.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import vcuda
from agent.ledgers.trust import believed_flying
from agent.persistence.store import Store
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.limits.compute_arbiter import ComputeAllowance, ComputeArbiter, ComputeSample
from gigaslice.core.model import PRIORITIES
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import all_of
from vcuda import contract

__all__ = ["ComputeManager"]

_BUSY = 0.005
_QUIET = 0.05
_IDLE = 1.0
"""Seconds between two polls: of GPUs with work, of GPUs without work, and on a node without such GPUs."""
_MEASURE, _SAMPLES = 0.5, 3
"""Seconds between two measurements by the driver, and how many of them count."""
_CREDIT_STEP = 0.02
"""Seconds between two writes of a page's credit."""
_KEEP_ALIVE = 0.5
"""Seconds between two writes of lent time: the library ignores it when the page has not changed for two seconds."""


@dataclass(frozen=True, slots=True)
class _Sharer:
    """A container on a GPU and its files, computed once for each state of the allocation table."""

    id: str
    name: str
    reader: vcuda.ShareReader
    page: str
    share: int
    elastic: bool
    weight: int


@dataclass(slots=True)
class _Page:
    """What was written to a container's page for one GPU, and when."""

    credit_us: int
    credit_at: float
    allowed: int
    allowed_at: float


@dataclass(slots=True)
class _GpuState:
    arbiter: ComputeArbiter = field(default_factory=ComputeArbiter)
    pages: dict[str, _Page] = field(default_factory=dict)


class ComputeManager:
    """Manages the compute shares of the containers in STORE.

    Args:
        store: The node's allocations.
        now: A monotonic clock.
        busy: The part of a GPU's time that each process used lately, by host PID; may block.
    """

    def __init__(
        self,
        store: Store,
        now: Callable[[], float],
        busy: Callable[[str], Mapping[int, float] | None] = lambda gpu: None,
    ) -> None:
        self._store = store
        self._now = now
        self._busy = busy
        self._unlimited: dict[
            str, tuple[Path, ...]
        ] = {}  # by GPU: ledgers of containers without a share, beside borrowers
        self._samples: list[
            Mapping[str, float]
        ] = []  # the parts of GPUs that these containers used, newest last
        self._used: dict[str, float] = {}  # the largest sample by GPU
        self._gpus: dict[str, _GpuState] = {}
        self._reported = LogOnce()
        self._last: dict[tuple[str, str], vcuda.ShareUsage] = {}  # last readings, by allocation and GPU
        self._table: AllocationTable | None = None
        self._sharers: dict[str, dict[str, _Sharer]] = {}
        self._log = get_logger("shares")

    async def run(self) -> None:
        """Works until cancelled."""
        await all_of(self._poll_forever(), self._measure_forever())  # when one fails both are started again

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self.poll() * random.uniform(0.5, 1.5))

    async def _measure_forever(self) -> None:
        while True:
            if self._unlimited:
                self.add_sample(await asyncio.to_thread(self.measure_unlimited, dict(self._unlimited)))
            await asyncio.sleep(_MEASURE)

    def add_sample(self, measured: Mapping[str, float]) -> None:
        """Adds what measure_unlimited() returned. The driver may sample once a second only, so older samples count."""
        self._samples = [*self._samples[1 - _SAMPLES :], measured]
        self._used = {gpu: max(sample.get(gpu, 0.0) for sample in self._samples) for gpu in self._unlimited}

    def measure_unlimited(self, unlimited: Mapping[str, Sequence[Path]]) -> dict[str, float]:
        """The parts of GPUs that containers with these ledgers used lately. For another thread; changes no state."""
        used = {}
        for gpu, ledgers in unlimited.items():
            pids: set[int] = set()
            for ledger in ledgers:
                with contextlib.suppress(vcuda.VcudaError):  # the memory monitor reports the problem
                    pids.update(
                        process.pid for process in vcuda.read_ledger(ledger).processes if process.pid > 0
                    )
                pids -= self._store.disowned.get(ledger.parent.name, frozenset())
            parts = (self._busy(gpu) or {}) if pids else {}
            used[gpu] = sum(part for pid, part in parts.items() if pid in pids)
        return used

    def poll(self) -> float:
        """Polls all GPUs once; returns the seconds until the next poll."""
        pause, now = _IDLE, self._now()
        self._follow_table()
        for gpu, sharers in self._sharers.items():
            samples = {
                name: sighting
                for name, sharer in sharers.items()
                if (sighting := self._observe(sharer, gpu)) is not None
            }
            if samples:
                self._publish(gpu, sharers, samples, now)
            busy = any(sample.flying or sample.waiting for sample in samples.values())
            pause = min(pause, _BUSY if busy else _QUIET)
        return pause

    def _follow_table(self) -> None:
        table = self._store.table
        if table is self._table:
            return
        gpus: dict[str, dict[str, _Sharer]] = {}
        for allocation in table.allocations:
            if allocation.whole or not allocation.keeps:
                continue
            for gpu in allocation.quota():
                if allocation.cores_of(gpu):
                    gpus.setdefault(gpu, {})[allocation.id] = self._sharer(allocation, gpu)
        self._table = table
        self._reported.keep({allocation.id for allocation in table.allocations}.__contains__)
        self._last = {key: use for key, use in self._last.items() if table.find(key[0])}
        self._sharers = {
            gpu: sharers
            for gpu, sharers in gpus.items()
            if len(sharers) > 1 or any(sharer.elastic for sharer in sharers.values())
        }
        self._unlimited = self._without_share(table)
        self._used = {gpu: part for gpu, part in self._used.items() if gpu in self._unlimited}
        for gpu in self._gpus.keys() - self._sharers.keys():
            del self._gpus[gpu]

    def _without_share(self, table: AllocationTable) -> dict[str, tuple[Path, ...]]:
        borrowed_on = {
            gpu
            for gpu, sharers in self._sharers.items()
            if any(sharer.elastic for sharer in sharers.values())
        }
        ledgers_on: dict[str, list[Path]] = {}
        for allocation in table.allocations:
            for gpu in borrowed_on.intersection(allocation.quota()):
                if not allocation.whole and allocation.keeps and not allocation.cores_of(gpu):
                    ledgers_on.setdefault(gpu, []).append(
                        self._store.dirs.path(allocation.id) / contract.LEDGER_FILE
                    )
        return {gpu: tuple(ledgers) for gpu, ledgers in ledgers_on.items()}

    def _sharer(self, allocation: Allocation, gpu: str) -> _Sharer:
        directory = self._store.dirs.path(allocation.id)
        return _Sharer(
            allocation.id,
            allocation.name,
            vcuda.ShareReader(directory / contract.LEDGER_FILE, gpu),
            str(directory / contract.LIMITS_FILE),
            allocation.cores_of(gpu) * 10,
            allocation.policy.cores_elastic,
            PRIORITIES[allocation.policy.priority],
        )

    def _observe(self, sharer: _Sharer, gpu: str) -> ComputeSample | None:
        """None for a ledger that cannot be read: its container's share is not managed, the others' are."""
        try:
            use = sharer.reader.read()
        except vcuda.errors.BusyError:  # the agent waits neither for a container nor for the disk
            use = self._last.get((sharer.id, gpu))
        except vcuda.VcudaError as error:
            self._report(sharer, str(error))
            return None
        if use is None:
            return None
        self._last[sharer.id, gpu] = use
        flying = believed_flying(use.flying, self._store.listed.get(sharer.id, {}).get(gpu))
        return ComputeSample(sharer.share, flying, use.spent, use.waiting, sharer.elastic, sharer.weight)

    def _publish(
        self, gpu: str, sharers: Mapping[str, _Sharer], samples: Mapping[str, ComputeSample], now: float
    ) -> None:
        state = self._gpus.setdefault(gpu, _GpuState())
        for name in samples.keys() - state.pages.keys():
            state.pages[name] = self._read(sharers[name], gpu, now)
        for name in state.pages.keys() - samples.keys():
            del state.pages[name]
        published = {name: page.credit_us / 1e6 for name, page in state.pages.items()}
        for name, allowance in state.arbiter.decide(
            now, samples, published, self._used.get(gpu, 0.0)
        ).items():
            try:
                _write(sharers[name], gpu, state.pages[name], allowance, now)
            except vcuda.VcudaError as error:
                self._report(sharers[name], str(error))

    def _read(self, sharer: _Sharer, gpu: str, now: float) -> _Page:
        """What the agent before this one has published."""
        try:
            limits = vcuda.read_limits(sharer.page)
        except vcuda.VcudaError as error:
            self._report(sharer, str(error))
            return _Page(0, now, 0, now)
        gpu_limits = next((each for each in limits.gpus if each.uuid == gpu), None)
        return _Page(
            gpu_limits.credit_us if gpu_limits else 0,
            now,
            gpu_limits.allowed_permille if gpu_limits else 0,
            now,
        )

    def _report(self, sharer: _Sharer, detail: str) -> None:
        """Logs a problem when it begins."""
        if self._reported.new(sharer.id):
            self._log.warning(
                "compute share not managed", allocation=sharer.id, container=sharer.name, detail=detail
            )


def _write(sharer: _Sharer, gpu: str, page: _Page, allowance: ComputeAllowance, now: float) -> None:
    credit = max(page.credit_us, int(allowance.credit * 1e6))
    if credit > page.credit_us and now - page.credit_at >= _CREDIT_STEP:
        vcuda.set_credit(sharer.page, gpu, credit)
        page.credit_us, page.credit_at = credit, now
    lent = allowance.allowed > sharer.share
    if allowance.allowed != page.allowed or (lent and now - page.allowed_at >= _KEEP_ALIVE):
        vcuda.set_allowed(sharer.page, gpu, allowance.allowed)
        page.allowed, page.allowed_at = allowance.allowed, now
