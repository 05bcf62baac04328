"""Gives the containers of a card turns where that helps: reads their ledgers, asks `state.turns`, writes their pages.

A turn is a lease: the page says until when, and each look renews it, so that containers go on a second after an agent
was killed. Looks are frequent only where containers with host memory have more managed memory than their card has room
for. Everything happens in the agent's own thread; a look at a container is a few reads of its ledger, and one of what
the driver counts of page faults, where it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import vcuda
from agent.discovery.paging import Paging
from agent.discovery.paging import read as read_paging
from agent.discovery.source import Inventory
from agent.model import Gpu
from agent.state.records import Grant
from agent.state.shared import real_part
from agent.state.store import Store
from agent.state.trust import believed_turns
from agent.state.turns import Sighting, Turns
from agent.telemetry.logs import get_logger
from vcuda import contract

__all__ = ["CardTurns", "TurnKeeper"]

SOON, BUSY, QUIET = 0.005, 0.05, 0.5
"""Seconds between two looks: before a turn can begin, at a card that needs turns, and at one that does not."""
LEASE_MS = 1000


@dataclass(slots=True)
class CardTurns:
    """What there is to tell of one card. seconds: that somebody had a turn. paging: what the driver counts."""

    arbiter: Turns = field(default_factory=Turns)
    holder: str | None = None
    held: frozenset[str] = frozenset()
    wanting: int = 0
    fits: bool = True
    seconds: float = 0.0
    paging: Paging | None = None
    said: str = ""


class TurnKeeper:
    """Works over the grants of STORE. INVENTORY gives the present cards; NOW seconds that only go forward."""

    def __init__(
        self,
        store: Store,
        inventory: Callable[[], Inventory],
        now: Callable[[], float] = time.monotonic,
        counters: Callable[[str], Paging | None] = read_paging,
    ) -> None:
        self.cards: dict[str, CardTurns] = {}
        self.held_us: dict[tuple[str, str], int] = {}
        """Microseconds that threads were held back, by grant and card."""
        self._store = store
        self._inventory = inventory
        self._now = now
        self._counters = counters
        self._written: set[tuple[str, str]] = set()  # pages that say something, by grant and card
        self._given: Mapping[str, tuple[int, float]] = {}  # as `given`, by cards whose containers have ended
        self._used: dict[str, Mapping[str, vcuda.TurnUsage]] = {}  # what ledgers said last, by grant
        self._looked = now()
        self._log = get_logger("turns")

    async def run(self) -> None:
        """Works until cancelled; then nobody waits any more."""
        try:
            while True:
                self.look()
                await asyncio.sleep(self.pause)
        finally:
            self.free_all()

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        if any(card.arbiter.hurries for card in self.cards.values()):
            return SOON
        return BUSY if any(not card.fits for card in self.cards.values()) else QUIET

    def given(self) -> dict[str, tuple[int, float]]:
        """Turns, and seconds in turns, since the agent started, by card; for every card that ever had containers."""
        found = dict(self._given)
        for uuid, card in self.cards.items():
            turns, seconds = found.get(uuid, (0, 0.0))
            found[uuid] = (turns + card.arbiter.changes, seconds + card.seconds)
        return found

    def free_all(self) -> None:
        """Nobody has to wait any more."""
        for grant_id, gpu in tuple(self._written):
            self._free(grant_id, gpu)

    def look(self) -> None:
        """Looks once at every card that has containers with host memory."""
        now = self._now()
        passed, self._looked = now - self._looked, now
        grants = [grant for grant in self._store.book.grants if grant.physical and not grant.gone]
        cards = {gpu.uuid: gpu for gpu in self._inventory().gpus}
        wanted = {uuid for grant in grants for uuid in grant.physical} & cards.keys()
        for uuid in self.cards.keys() - wanted:
            self._given = self.given()
            del self.cards[uuid]
        usage = {grant.id: self._usage(grant) for grant in grants}
        for uuid in wanted:
            self._card(now, passed, cards[uuid], [grant for grant in grants if uuid in grant.physical], usage)
        known = {(grant.id, uuid) for grant in grants for uuid in grant.physical}
        there = {grant.id for grant in self._store.book.grants}
        self._used = {key: used for key, used in self._used.items() if key in there}
        self.held_us = {key: count for key, count in self.held_us.items() if key[0] in there}
        for grant_id, uuid in tuple(self._written):
            if (grant_id, uuid) not in known or uuid not in wanted:
                self._free(grant_id, uuid)

    def _card(
        self,
        now: float,
        passed: float,
        gpu: Gpu,
        grants: list[Grant],
        usage: Mapping[str, Mapping[str, vcuda.TurnUsage]],
    ) -> None:
        card = self.cards.setdefault(gpu.uuid, CardTurns())
        if card.holder:
            card.seconds += passed
        seen = {}
        for grant in grants:
            one = usage[grant.id].get(gpu.uuid)
            if one is None:
                continue
            self.held_us[grant.id, gpu.uuid] = one.held_us
            stopped = grant.id == card.holder and self._is_stopped(grant)
            seen[grant.id] = Sighting(
                one.progress,
                one.waiting,
                one.managed,
                busy=one.busy > 0,
                alive=one.alive > 0 and not stopped,
                willing=grant.policy.turns,
            )
        card.paging = self._counters(gpu.uuid)
        moved = card.paging.moved if card.paging else None
        decision = card.arbiter.look(now, self._room(gpu, usage), seen, moved)
        card.holder, card.held = decision.holder, decision.held
        card.wanting, card.fits = decision.wanting, decision.fits
        self._tell(gpu, card)
        end = vcuda.turn_clock() + LEASE_MS
        for name in seen:
            if name in decision.held:
                self._write(name, gpu.uuid, vcuda.hold_turn, end)
            elif name == decision.holder:
                self._write(name, gpu.uuid, vcuda.give_turn, end)
            elif name in decision.short:
                self._write(name, gpu.uuid, vcuda.shorten_queues, end)
            elif (name, gpu.uuid) in self._written:
                self._free(name, gpu.uuid)

    def _room(self, gpu: Gpu, usage: Mapping[str, Mapping[str, vcuda.TurnUsage]]) -> int:
        """Bytes of the card beside what cannot move: real memory of these containers, and all of the others'."""
        taken = 0
        for grant in self._store.book.grants:
            one = usage.get(grant.id, {}).get(gpu.uuid)
            promised = real_part(grant, gpu.uuid, grant.promised.get(gpu.uuid, 0))
            taken += (
                one.real if one is not None else promised
            )  # a ledger that cannot be read lays claim to no more
        return max(0, gpu.memory_bytes - taken)

    def _usage(self, grant: Grant) -> Mapping[str, vcuda.TurnUsage]:
        ledger = self._store.dirs.path(grant.id) / contract.LEDGER_FILE
        try:
            said = vcuda.read_turns(ledger, list(grant.quota()), wait=False)
        except vcuda.errors.BusyError:
            return self._used.get(grant.id, {})  # nobody waits for a container, or for the disk
        except vcuda.VcudaError:
            return {}  # the ledger is the container's; the measuring round says what is wrong with it
        self._used[grant.id] = believed_turns(said, grant, self._store.measured.get(grant.id))
        return self._used[grant.id]

    def _is_stopped(self, grant: Grant) -> bool:
        """Whether every process of the container is stopped: nobody can wait for it."""
        with contextlib.suppress(vcuda.VcudaError):
            path = self._store.dirs.path(grant.id) / contract.LEDGER_FILE
            pids = [one.pid for one in vcuda.read_ledger(path, wait=False).processes if one.pid > 0]
            return bool(pids) and all(_state(pid) in "TtZX" for pid in pids)
        return False

    def _write(self, grant_id: str, gpu: str, say: Callable[[Path, str, int], None], end_ms: int) -> None:
        page = self._store.dirs.path(grant_id) / contract.LIMITS_FILE
        with contextlib.suppress(vcuda.VcudaError):  # it has just ended
            say(page, gpu, end_ms)
            self._written.add((grant_id, gpu))

    def _free(self, grant_id: str, gpu: str) -> None:
        self._written.discard((grant_id, gpu))
        with contextlib.suppress(vcuda.VcudaError):
            vcuda.free_turn(self._store.dirs.path(grant_id) / contract.LIMITS_FILE, gpu)

    def _tell(self, gpu: Gpu, card: CardTurns) -> None:
        if card.said == card.arbiter.mode:
            return
        if card.arbiter.mode == "turns":
            self._log.info("turns begin", gpu=gpu.uuid, containers=card.wanting)
        elif card.said == "turns":
            self._log.info("turns end", gpu=gpu.uuid, fits=card.fits)
        card.said = card.arbiter.mode


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
