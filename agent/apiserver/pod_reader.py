# SPDX-License-Identifier: Apache-2.0
"""Reads this node's pods past the watch, for an admission on which all other pods of the node wait.

A server that is away costs each of them as little as possible. What it has not answered once it is asked again only
after a pause, and hardly waited for, until it gives a sign of life: the answer to a request, which may come when nobody
waits for it any more, or anything on the watch. A server that answers slowly gives them, and is waited for as ever.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from gigaslice.core.model import Pod
from gigaslice.kubeapi.failures import ApiFailure
from gigaslice.kubeapi.informer import Informer
from gigaslice.runtime.logs import get_logger

__all__ = ["SILENT_SECONDS", "PodReader"]

SILENT_SECONDS = 0.08
"""For each of the three waits that an admission has at most while the server is silent: two for the watch, one here."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0

Pods = dict[tuple[str, str], Pod]


class PodReader:
    """Reads the pods of a watch's node."""

    def __init__(self, watch: Informer[Pod], clock: Callable[[], float] = time.monotonic) -> None:
        """Initializes the reader.

        Args:
            watch: The informer that it reads past.
            clock: Seconds that never go back.
        """
        self._watch = watch
        self._clock = clock
        self._failed_at = -math.inf
        self._failures = 0  # in a row
        self._again = -math.inf
        self._reading: asyncio.Future[Pods] | None = None
        self._late: asyncio.Future[Pods] | None = None  # the last one that was not waited for to its end
        self._log = get_logger("kube")

    @property
    def answering(self) -> bool:
        """Whether the server has given a sign of life since it last failed to answer."""
        return self._failed_at < self._watch.heard_at or not self._failures

    async def read(self, timeout: float) -> Pods | None:
        """Returns the pods as they are now; None where they are not known in TIMEOUT seconds, or at once."""
        if self._clock() < self._again:
            return None
        if self._reading is not None:
            self._reading.cancel()
        limit = timeout if self.answering else min(timeout, SILENT_SECONDS)
        reading = self._reading = asyncio.ensure_future(self._watch.read())
        reading.add_done_callback(self._ended)
        await asyncio.wait({reading}, timeout=limit)
        if not reading.done():
            self._late = reading
            self._failed(f"no answer in {limit:.2g} s")
            return None
        return None if reading.cancelled() or reading.exception() else reading.result()

    def _ended(self, reading: asyncio.Future[Pods]) -> None:
        if self._reading is reading:
            self._reading = None
        if reading.cancelled():
            return
        error = reading.exception()
        if error is None:
            self._failures, self._again = 0, -math.inf
        elif not isinstance(error, ApiFailure):
            raise error  # a mistake of this program, which the loop's handler reports
        elif reading is not self._late:  # which counts already
            self._failed(str(error), error.retry_after)

    def _failed(self, detail: str, wait: float = 0.0) -> None:
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures, 10))
        self._failures += 1
        self._failed_at = self._clock()
        self._again = self._failed_at + max(pause, wait)
        self._log.info("pods not read", detail=detail, pause_seconds=max(pause, wait))
