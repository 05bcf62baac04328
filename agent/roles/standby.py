# SPDX-License-Identifier: Apache-2.0
"""A node agent beside the one that serves: ready to go on when that one ends.

So an upgrade is a hand-over, and the gap no image start and no start of an interpreter. What takes time has been done
by then: the program is loaded and the GPUs were scanned. The front takes over the kubelet's connections
(`agent.front.handover`) and reports when it has no predecessor any more; this side waits for that and for the state
directory. Its lock comes free however the other one ends, and whatever its version.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from agent.config import Config
from agent.front.channel import Kind
from agent.link import Link
from agent.persistence.store import Store
from agent.telemetry.metrics import values_of
from gigaslice.core.errors import LockedError
from gigaslice.runtime.http_server import endpoints
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.metrics import Values
from gigaslice.runtime.role_start import set_at_signals
from gigaslice.runtime.tasks import run_together
from gigaslice.runtime.time_limit import set_within

__all__ = ["Standby"]

_POLL_SECONDS = 0.1


class Standby:
    """Waits until STORE can be opened and the front at PATH has ended. LINK leads to our own."""

    def __init__(self, store: Store, link: Link, path: Path, config: Config) -> None:
        self._store = store
        self._link = link
        self._path = path
        self._resource = config.resource
        self.http = endpoints(config, self.collect, lambda: None, node=config.node)
        self._log = get_logger("node")

    def until_alone(self, first: LockedError) -> bool:
        """Returns with STORE open; False when asked to end before. FIRST names the agent that is there."""
        return asyncio.run(self._run(first))

    def collect(self) -> Values:
        """The values of now."""
        values = values_of(self._resource, registered=False)
        values.add("gigaslice_standby", 1)
        return values

    async def _run(self, first: LockedError) -> bool:
        self._log.info("standing by", detail=str(first))
        stop = set_at_signals(asyncio.Event())
        opened: list[bool] = []

        async def watch() -> None:
            while not stop.is_set():
                if not await set_within(self._link.go, _POLL_SECONDS):
                    continue
                self._link.go.clear()
                try:
                    self._store.open()
                except LockedError:
                    continue
                opened.append(True)
                return

        async with self._link.attached():
            self._link.say(Kind.STANDBY, 0, os.fsencode(self._path))
            await run_together("watch", {"watch": watch(), "http": self.http.run()})
        return bool(opened)
