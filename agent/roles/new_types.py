# SPDX-License-Identifier: Apache-2.0
"""Has the agent start anew when a GPU appears whose type has no resource yet.

With `--resource-per-type` the resources are those of the GPUs at the start; every part of the agent is built for them.
A GPU of another type can appear later: it was plugged in, or its driver shows it again. A start takes a second in which
the front keeps the kubelet's connections and calls, so it is the whole of the remedy. It waits until the new GPU has
been there for a while, and until no type that is offered now would be lost by it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from agent.inventory.holder import GpusNow
from gigaslice.core.model import ResourceTypes
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["NewTypes"]

_POLL_SECONDS = 2.0
_SETTLED_SECONDS = 6.0


class NewTypes:
    """Follows the GPUs."""

    def __init__(
        self,
        gpus: GpusNow,
        types: ResourceTypes,
        offered: Collection[str],
        mistakes: Callable[[Collection[str]], list[str]],
        renew: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        poll: float = _POLL_SECONDS,
    ) -> None:
        """Initializes the part.

        Args:
            gpus: The GPUs as they are now.
            types: By which resource the slices of a GPU are requested.
            offered: The resources that are offered.
            mistakes: Returns why an agent with GPUs of these models would not start.
            renew: Has the agent end, and start anew, for the reason that is given.
            clock: Gives seconds that only grow.
            poll: Seconds between two passes.
        """
        self._gpus = gpus
        self._types = types
        self._offered = frozenset(offered)
        self._mistakes = mistakes
        self._renew = renew
        self._clock = clock
        self._poll = poll
        self._since: float | None = None
        self._log = get_logger("node")

    async def run(self) -> None:
        """Works until cancelled."""
        reported = LogOnce()
        while True:
            await asyncio.sleep(self._poll)
            resources = self.due()
            if resources:
                problems = self._mistakes([gpu.model for gpu in self._gpus.now.gpus])
                if not problems:
                    self._renew(resources)
                elif reported.new("mistakes", "; ".join(problems)):
                    self._log.error("new type of GPU cannot be offered", detail="; ".join(problems))

    def due(self) -> str:
        """Returns for which resources the agent should start anew now; empty for none."""
        healthy = {self._types.of(gpu.model) for gpu in self._gpus.now.gpus if gpu.healthy}
        new = healthy - self._offered
        if not new or not self._offered <= healthy:
            self._since = None
            return ""
        now = self._clock()
        if self._since is None:
            self._since = now
        return ", ".join(sorted(new)) if now - self._since >= _SETTLED_SECONDS else ""
