"""Publishes what the arbiter of each card's time decides: credit for what neighbours had, and idle time that is lent.

Only cards on which somebody could gain are looked at: those with two containers that have shares, or with one that
may borrow. While any of them has work the look is taken about every five milliseconds, at instants that programs
cannot fall into step with, else twenty times a second. Everything that containers say about themselves is read with
checked sizes (``vcuda.read_shares``) and bounded by the arbiter. Without this part shares are upper bounds; nothing
waits for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import vcuda
from agent.model import PRIORITIES
from agent.state.arbiter import Arbiter, Sighting, Verdict
from agent.state.records import Grant
from agent.state.store import Store
from agent.telemetry.logs import get_logger
from vcuda import contract

__all__ = ["ShareKeeper"]

_BUSY = 0.005
_QUIET = 0.05
_IDLE = 1.0
"""Seconds between two looks: at cards with work, at cards without, and at a node without such cards."""
_CREDIT_STEP = 0.02
"""Seconds between two writes of a page's credit."""
_KEEP_ALIVE = 0.5
"""Seconds between two writes of what is lent: a library believes no page that is silent for two seconds."""


@dataclass(slots=True)
class _Page:
    """What was written to a container's page for one card, and when."""

    credit_us: int
    credit_at: float
    granted: int
    granted_at: float


@dataclass(slots=True)
class _Card:
    arbiter: Arbiter = field(default_factory=Arbiter)
    pages: dict[str, _Page] = field(default_factory=dict)


class ShareKeeper:
    """Looks after the compute shares of STORE's containers. NOW: a clock that only goes forward."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._cards: dict[str, _Card] = {}
        self._said: set[str] = set()
        self._log = get_logger("shares")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(self.look() * random.uniform(0.5, 1.5))

    def look(self) -> float:
        """One look at all cards; seconds until the next one is due."""
        pause, now = _IDLE, self._now()
        cards = self._sharers()
        for gpu in self._cards.keys() - cards.keys():
            del self._cards[gpu]
        for gpu, grants in cards.items():
            seen = {
                grant.id: sighting for grant in grants if (sighting := self._sight(grant, gpu)) is not None
            }
            if seen:
                self._publish(gpu, {grant.id: grant for grant in grants}, seen, now)
            busy = any(one.flying or one.waiting for one in seen.values())
            pause = min(pause, _BUSY if busy else _QUIET)
        return pause

    def _sharers(self) -> dict[str, list[Grant]]:
        cards: dict[str, list[Grant]] = {}
        for grant in self._store.book.grants:
            if grant.whole or grant.gone or not grant.held:
                continue
            for gpu in grant.quota():
                if grant.cores_of(gpu):
                    cards.setdefault(gpu, []).append(grant)
        return {
            gpu: grants
            for gpu, grants in cards.items()
            if len(grants) > 1 or any(grant.policy.cores_elastic for grant in grants)
        }

    def _sight(self, grant: Grant, gpu: str) -> Sighting | None:
        """None for a ledger that cannot be read: its container's shares are not looked after, others' are."""
        try:
            use = vcuda.read_shares(self._store.dirs.path(grant.id) / contract.LEDGER_FILE).get(gpu)
        except vcuda.VcudaError as error:
            self._say(grant, str(error))
            return None
        if use is None:
            return None
        return Sighting(
            grant.cores_of(gpu) * 10,
            use.flying,
            use.spent,
            use.waiting,
            grant.policy.cores_elastic,
            PRIORITIES[grant.policy.priority],
        )

    def _publish(
        self, gpu: str, grants: Mapping[str, Grant], seen: Mapping[str, Sighting], now: float
    ) -> None:
        card = self._cards.setdefault(gpu, _Card())
        for name in seen.keys() - card.pages.keys():
            card.pages[name] = self._read(grants[name], gpu, now)
        for name in card.pages.keys() - seen.keys():
            del card.pages[name]
        published = {name: page.credit_us / 1e6 for name, page in card.pages.items()}
        for name, verdict in card.arbiter.look(now, seen, published).items():
            try:
                self._write(grants[name], gpu, card.pages[name], verdict, now)
            except vcuda.VcudaError as error:
                self._say(grants[name], str(error))

    def _read(self, grant: Grant, gpu: str, now: float) -> _Page:
        """What a predecessor has published."""
        try:
            limits = vcuda.read_limits(self._store.dirs.path(grant.id) / contract.LIMITS_FILE)
        except vcuda.VcudaError as error:
            self._say(grant, str(error))
            return _Page(0, now, 0, now)
        found = next((one for one in limits.gpus if one.uuid == gpu), None)
        return _Page(found.credit_us if found else 0, now, found.granted_permille if found else 0, now)

    def _write(self, grant: Grant, gpu: str, page: _Page, verdict: Verdict, now: float) -> None:
        path = self._store.dirs.path(grant.id) / contract.LIMITS_FILE
        credit = max(page.credit_us, int(verdict.credit * 1e6))
        if credit > page.credit_us and now - page.credit_at >= _CREDIT_STEP:
            vcuda.set_credit(path, gpu, credit)
            page.credit_us, page.credit_at = credit, now
        lent = verdict.granted > grant.cores_of(gpu) * 10
        if verdict.granted != page.granted or (lent and now - page.granted_at >= _KEEP_ALIVE):
            vcuda.set_granted(path, gpu, verdict.granted)
            page.granted, page.granted_at = verdict.granted, now

    def _say(self, grant: Grant, detail: str) -> None:
        """Logs a problem when it begins."""
        if grant.id not in self._said:
            self._said.add(grant.id)
            self._log.warning(
                "share not looked after", allocation=grant.id, container=grant.name, detail=detail
            )
