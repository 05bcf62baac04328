"""The provider of whole GPUs: one device per card, decided in the same book as slices.

Its containers get the card as it is, without library and limits. The kubelet keeps two lists of the same cards and
learns late, so a card can be given out whole that has just lost slices, and the other way round: the later one has it
in the book, waits behind the start gate, and the lists are put right at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from agent.discovery.source import Inventory
from agent.placement import Policy
from agent.providers import whole
from agent.providers.provider import Answer, Device, NotYetError, Provider, RefusedError
from agent.state.alarm import Alarm
from agent.state.records import Book, Grant, GrantPolicy, whole_token
from agent.state.store import Store
from agent.telemetry.logs import get_logger

__all__ = ["Cards", "WholeGpus"]

_LOOK_SECONDS = 1.0  # for changes of the hardware; those of the book are told
_GATE_PATIENCE = 5.0
_GATE_INTERVAL = 0.1
_GIVEN_AWAY = "the kubelet has given this container's GPUs to another one; delete the pod"


async def nobody(tokens: Iterable[str]) -> frozenset[str]:
    """Whoever had TOKENS may live."""
    del tokens
    return frozenset()


class Cards(Protocol):
    """Who knows the cards, and whether a container on them may start: the allocator."""

    inventory: Inventory

    def may_start(self, grant: Grant) -> str | None:
        """None, or what is waited for."""
        ...


class WholeGpus(Provider):
    """Hands out whole cards of CARDS as RESOURCE, in STORE's book. VISIBLE_DEVICES: "env" or "cdi".

    WITHHOLD is called with the slices that are not to be had, ALLOCATED when the kubelet's list is worth a look. ENDED
    tells, of allocations whose tokens the kubelet shows as free or hands out, which are over.
    """

    prefers = True
    gated = True

    def __init__(
        self,
        resource: str,
        store: Store,
        cards: Cards,
        policy: Policy,
        visible_devices: str,
        *,
        now: Callable[[], float],
        new_id: Callable[[], str],
        withhold: Callable[[frozenset[str]], Awaitable[None]],
        allocated: Callable[[], None],
        ended: Callable[[Iterable[str]], Awaitable[frozenset[str]]] = nobody,
    ) -> None:
        self.resource = resource
        self._store = store
        self._cards = cards
        self._policy = policy
        self._visible_devices = visible_devices
        self._now = now
        self._new_id = new_id
        self._withhold = withhold
        self._allocated = allocated
        self._ended = ended
        self._alarm = Alarm()
        self._log = get_logger("whole-gpus")

    def devices(self) -> tuple[Device, ...]:
        """Every card; healthy while nobody has anything of it, or one has it whole."""
        return whole.devices(self._store.book, self._cards.inventory.gpus)

    async def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Cards that placement would choose together."""
        unheld = frozenset(whole_token(one) for one in set(available) - set(must_include))
        over = await self._ended(unheld)
        book = self._store.book.counted_out(over).given_back(unheld, over)
        self._store.remember(book)
        after, _ = book.taken_over((whole_token(one) for one in must_include), over=over)
        return whole.prefer(
            after, self._cards.inventory, self._policy, available, must_include=must_include, size=size
        )

    async def allocate(self, wanted: Sequence[Sequence[str]]) -> list[Answer]:
        """One grant per container, recorded. All or none."""
        over = await self._ended(whole_token(one) for devices in wanted for one in devices)
        book, fresh = self._store.book.counted_out(over), list[Grant]()
        for devices in wanted:
            book, grant = self._add(book, devices, over)
            fresh.append(grant)
        self._store.commit(book, fresh)
        for grant in fresh:
            self._log.info(
                "allocated",
                allocation=grant.id,
                container=grant.name,
                whole=list(grant.quota()),
                supersedes=list(grant.supersedes),
                waiting=grant.waiting,
            )
        self._allocated()
        return [self._answer(grant) for grant in fresh]

    async def start(self, devices: Sequence[str], remaining: float | None) -> None:
        """Waits until the cards are free of everybody else and the book is safe on disk."""
        found = self._store.book.of_tokens(frozenset(map(whole_token, devices)))
        if found is None:
            raise RefusedError(
                f"no record of this container's {len(devices)} GPUs in {self._store.state_dir}; delete the pod, so "
                "that it is allocated again"
            )
        patience = _GATE_PATIENCE if remaining is None else min(_GATE_PATIENCE, remaining / 2)
        deadline = time.monotonic() + patience
        while reason := self._reason(found.id):
            if time.monotonic() >= deadline:
                self._log.info("start held back", allocation=found.id, container=found.name, detail=reason)
                raise NotYetError(reason)
            self._allocated()
            await asyncio.sleep(_GATE_INTERVAL)
        await asyncio.to_thread(self._store.sync)  # what has just been decided, too
        if self._store.book.find(found.id) is None:
            raise NotYetError(_GIVEN_AWAY)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Follows book and cards, and keeps both lists in agreement with them."""
        shown: tuple[Device, ...] | None = None
        self._store.watchers.append(self._alarm.ring)
        try:
            while True:
                await self._withhold(whole.slices_withheld(self._store.book, self._cards.inventory.gpus))
                if (now := self.devices()) != shown:
                    shown = now
                    changed()
                seen = self._cards.inventory
                while self._cards.inventory is seen and not await self._alarm.wait(_LOOK_SECONDS):
                    pass
        finally:
            self._store.watchers.remove(self._alarm.ring)

    def _add(self, book: Book, devices: Sequence[str], over: frozenset[str]) -> tuple[Book, Grant]:
        tokens = frozenset(map(whole_token, devices))
        after, superseded = book.taken_over(tokens, over=over)
        gpus = self._cards.inventory.gpus
        chosen = whole.choose(after, gpus, sorted(set(devices))) if devices else None
        if chosen is None:
            raise RefusedError(
                f"{len(devices)} whole GPUs asked for, and this node has {len(gpus)}; ask for fewer"
            )
        grant = Grant(
            id=self._new_id(),
            number=after.next_number,
            created=round(self._now(), 3),
            holds=chosen.holds,
            library=self._store.library,
            supersedes=superseded,
            waiting=chosen.waiting,
            policy=GrantPolicy(exclusive=True),
        )
        return after.with_grant(grant), grant

    def _answer(self, grant: Grant) -> Answer:
        uuids = tuple(grant.quota())
        annotations = {"gigaslice.io/allocation": grant.id}
        if self._visible_devices == "cdi":
            return Answer(cdi=tuple(f"nvidia.com/gpu={uuid}" for uuid in uuids), annotations=annotations)
        return Answer(env={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)}, annotations=annotations)

    def _reason(self, grant_id: str) -> str | None:
        grant = self._store.book.find(grant_id)
        if grant is None:
            return _GIVEN_AWAY
        return self._cards.may_start(grant)
