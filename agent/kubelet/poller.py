"""Learns from the kubelet whose allocation is whose and which are over.

Looks at regular intervals, which count towards giving an allocation up, and shortly after something has happened, which
do not: those only learn names, so that a burst of events cannot shorten anybody's patience.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from agent.errors import GigasliceError, KubeletError
from agent.kubelet.allocator import Allocator
from agent.kubelet.podresources import PodResources
from agent.state.alarm import Alarm
from agent.state.breaks import with_breaks
from agent.state.reconcile import review
from agent.state.store import Store
from agent.telemetry.logs import get_logger

__all__ = ["Poller"]

PATIENCE = 3
"""Regular looks in a row that must not show a container before its allocation is given up."""
_NEVER = 1 << 30
_YOUNG_SECONDS = 300.0  # the kubelet lists a pod from its admission on, and admits one after the other
_AFTER_ANSWER = 0.005  # seconds after an event until files for the next allocation are made
_SOON = (
    0.2,
    1.0,
    3.0,
)  # seconds after an event: the kubelet lists a container's devices once it has taken the answer


@dataclass(slots=True)
class _Plan:
    """When to look next: the regular time, and the extra times that events have asked for."""

    regular: float
    extra: list[float]


class Poller:
    """Compares the book of STORE with what the kubelet lists, every INTERVAL seconds and after `wake`."""

    def __init__(
        self,
        store: Store,
        allocator: Allocator,
        kubelet: PodResources,
        interval: float,
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._allocator = allocator
        self._kubelet = kubelet
        self._interval = interval
        self._now = now
        self._unlisted: dict[str, int] = {}
        self._first_seen: dict[str, float] = {}
        self._alarm = Alarm()
        self._plan = _Plan(0.0, [])
        self._failure = ""
        self._log = get_logger("poller")

    def wake(self) -> None:
        """Something has happened that the kubelet will soon list."""
        if not self._plan.extra:
            start = time.monotonic()
            self._plan.extra = [start + delay for delay in _SOON]
        self._alarm.ring()

    async def run(self) -> None:
        """Works until cancelled."""
        self._plan.regular = time.monotonic()
        while True:
            due = min([self._plan.regular, *self._plan.extra])
            if await self._alarm.wait(due - time.monotonic()):
                await asyncio.sleep(_AFTER_ANSWER)
                await asyncio.to_thread(self._store.make_ahead)
            if time.monotonic() >= due:  # whether it rings or not: with many that wait it always does
                await self._due()

    async def look(self, *, regular: bool) -> None:
        """Asks the kubelet once. A look that is not REGULAR learns and gives nothing up."""
        asked_at = self._store.book.next_number
        try:
            listing = await self._kubelet.list()
            alive = await self._alive(patience=PATIENCE if regular else _NEVER)
            found = review(
                self._store.book,
                listing,
                young=self._young(listing.pods),
                asked_at=asked_at,
                alive=alive,
                unlisted=self._unlisted,
                patience=PATIENCE if regular else _NEVER,
                gpus=self._allocator.inventory.gpus,
                library=self._store.library,
                now=self._now(),
            )
            self._store.apply(found)
            if regular:
                self._unlisted = dict(found.unlisted)
            await asyncio.to_thread(self._to_disk, sync=bool(self._store.book.grants or found.released))
            self._failure = ""
        except GigasliceError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                level = self._log.warning if isinstance(error, KubeletError) else self._log.error
                level("pods unknown; nothing is given up meanwhile", detail=self._failure)

    async def _alive(self, *, patience: int) -> frozenset[str]:
        """The grants with a living process, as far as this look may give them up: reading every ledger takes long.

        Those are the ones that would now be missing often enough, and the nameless ones, which end with others.
        """
        looks = {grant.id: self._unlisted.get(grant.id, 0) + 1 for grant in self._store.book.grants}
        if all(count < patience for count in looks.values()):
            return frozenset()
        asked = [
            grant.id
            for grant in self._store.book.grants
            if looks[grant.id] >= patience or grant.container is None
        ]
        return frozenset(
            [grant_id async for grant_id in with_breaks(asked) if self._store.reading(grant_id).alive]
        )

    def _to_disk(self, *, sync: bool) -> None:
        """What takes a disk long and nobody waits for."""
        self._store.tidy()
        if sync:
            self._store.sync()

    def _young(self, pods: frozenset[str]) -> frozenset[str]:
        """Those of PODS that were not there yet some minutes ago, as far as this process knows."""
        now = time.monotonic()
        self._first_seen = {pod: self._first_seen.get(pod, now) for pod in pods}
        return frozenset(pod for pod, first in self._first_seen.items() if now - first < _YOUNG_SECONDS)

    async def _due(self) -> None:
        now = time.monotonic()
        regular = now >= self._plan.regular
        if regular:
            self._plan.regular = now + self._interval
        self._plan.extra = [moment for moment in self._plan.extra if moment > now]
        await self.look(regular=regular)
