# SPDX-License-Identifier: Apache-2.0
"""The connections to `gigaslice driver-limits`, which sets the driver's limits: the agent does not have that right.

Two connections, since one answers a question after the other, and a watch is answered when something happens. That role
may be absent, restart, or be of another version; nothing here waits for it for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gigaslice.core.errors import ControlError
from gigaslice.core.limits.driver_limit_messages import (
    MOST_ANSWER_BYTES,
    ApplyAnswer,
    ApplyRequest,
    MessageError,
    SupportAnswer,
    WatchAnswer,
    WatchRequest,
)
from gigaslice.core.text import plain
from gigaslice.runtime.local_sockets import LineConnection
from gigaslice.runtime.tasks import all_of

__all__ = ["DriverLimitClient", "DriverLimitsAwayError"]

_SUPPORT_SECONDS = 20.0  # the driver may have to be opened
_APPLY_SECONDS = 5.0
_WATCH_SECONDS = 30.0
Answer = TypeVar("Answer")


class DriverLimitsAwayError(ControlError):
    """There was no answer, or a refusal; the text says which."""


class DriverLimitClient:
    """Asks on SOCKET. PAUSE: seconds between two attempts to connect."""

    def __init__(self, socket: Path, *, pause: float = 1.0) -> None:
        self.socket = socket
        self._connected: Callable[[], None] = lambda: None

        self._questions = LineConnection(socket, self._announce, most=MOST_ANSWER_BYTES, pause=pause)
        self._watches = LineConnection(socket, _nothing, most=MOST_ANSWER_BYTES, pause=pause)

    @property
    def connected(self) -> bool:
        """Whether a question can be asked."""
        return self._questions.connected

    @property
    def expected(self) -> bool:
        """Whether there is a socket: somebody listens there, or did."""
        return self.socket.exists()

    async def run(self, connected: Callable[[], None]) -> None:
        """Keeps the connections until cancelled. CONNECTED is called whenever a question can be asked again."""
        self._connected = connected
        await all_of(self._questions.run(), self._watches.run())

    async def support(self) -> SupportAnswer:
        """Asks whether limits can be set. Raises DriverLimitsAwayError."""
        return await self._ask(self._questions, {"support": {}}, _SUPPORT_SECONDS, SupportAnswer.decode)

    async def apply(self, request: ApplyRequest) -> ApplyAnswer:
        """Has limits set. Raises DriverLimitsAwayError."""
        return await self._ask(self._questions, request.encode(), _APPLY_SECONDS, ApplyAnswer.decode)

    async def watch(self, sequence: int) -> WatchAnswer:
        """Returns the pods that have cgroups, once they are not those of SEQUENCE. Raises DriverLimitsAwayError."""
        request = WatchRequest(sequence, _WATCH_SECONDS).encode()
        return await self._ask(self._watches, request, 2 * _WATCH_SECONDS, WatchAnswer.decode)

    async def _ask(
        self,
        connection: LineConnection,
        request: Mapping[str, Any],
        seconds: float,
        decode: Callable[[Mapping[str, Any]], Answer],
    ) -> Answer:
        try:
            answer = await connection.ask(request, seconds)
        except OSError as error:
            raise DriverLimitsAwayError(
                f"gigaslice driver-limits does not answer on {self.socket}; is its container running?"
            ) from error
        except asyncio.TimeoutError as error:
            raise DriverLimitsAwayError(
                f"gigaslice driver-limits has not answered within {seconds:g} s on {self.socket}"
            ) from error
        if "error" in answer:
            raise DriverLimitsAwayError(f"gigaslice driver-limits: {plain(str(answer['error']))[:1000]}")
        try:
            return decode(answer)
        except MessageError as error:
            raise DriverLimitsAwayError(f"gigaslice driver-limits: {error}") from error

    async def _announce(self) -> None:
        self._connected()
        await _nothing()


async def _nothing() -> None:
    await asyncio.Event().wait()
