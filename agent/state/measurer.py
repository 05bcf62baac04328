"""Measures what the ledgers do not declare, and keeps ledgers at their size: one round every few seconds.

Asking the driver may block and happens in a thread; pages are written from the agent's own thread, like all state.
"""

from __future__ import annotations

import asyncio

import vcuda
from agent.discovery.source import Source
from agent.state import ledgers
from agent.state.store import Store
from agent.telemetry.logs import get_logger

__all__ = ["Measurer"]


class Measurer:
    """Publishes into the limits pages of STORE what SOURCE measures, every INTERVAL seconds."""

    def __init__(self, store: Store, source: Source, interval: float) -> None:
        self._store = store
        self._source = source
        self._interval = interval
        self._problems: dict[str, str] = {}
        self._log = get_logger("measurer")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.round()

    async def round(self) -> None:
        """Reads every ledger, cuts back those that grew, and publishes what was measured beyond them."""
        before = self._store.readings(trim=True)
        measured = await asyncio.to_thread(self._source.process_memory)
        for grant in self._store.book.grants:
            if grant.id not in before:
                continue  # allocated meanwhile: the next round has both readings
            path = self._store.dirs.path(grant.id)
            reading = ledgers.read(path)
            if before[grant.id].grew:
                self._log.warning(
                    "ledger had grown and was cut back", allocation=grant.id, container=grant.name
                )
            problem = reading.problem
            if problem is None and measured:
                try:
                    changed = ledgers.publish_unhooked(path, grant, before[grant.id], reading, measured)
                    if changed:
                        self._log.debug("measured", allocation=grant.id, unhooked=dict(changed))
                except vcuda.VcudaError as error:
                    problem = str(error)
            self._report(grant.id, grant.name, problem)
        known = {grant.id for grant in self._store.book.grants}
        self._problems = {grant_id: text for grant_id, text in self._problems.items() if grant_id in known}

    def _report(self, grant_id: str, name: str, problem: str | None) -> None:
        """Logs a problem when it begins, not every round."""
        if problem is None:
            self._problems.pop(grant_id, None)
        elif self._problems.get(grant_id) != problem:
            self._problems[grant_id] = problem
            self._log.error("allocation cannot be read", allocation=grant_id, container=name, detail=problem)
