# SPDX-License-Identifier: Apache-2.0
"""The start gate: tells the GPU agent of this node whether the datasets of a pod are there.

An agent that keeps a connection open, and has said which resources it guards, makes early publishing possible: no
container that asks for one of them starts before this has said so. The other side is agent/allocation/dataset_gate.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gigaslice.core.text import plain
from gigaslice.roles.dataset_node.tasks.volume_tasks import VolumeTasks
from gigaslice.runtime.local_sockets import Answer, LineServer
from gigaslice.runtime.logs import get_logger

__all__ = ["GATE_DIRECTORY", "GATE_SOCKET", "StartGate"]

GATE_DIRECTORY = (
    "gate"  # in the service's directory; the one of its directories that the agent's container has
)
GATE_SOCKET = "gate.sock"
_EARLY_FILE = "published-early"  # as the agent knows it
_MOST_RESOURCES = 32
_MOST_DETAIL = 1000  # characters: a text is part of a pod's event, and an agent reads lines of some KiB only


class StartGate:
    """Answers on gate.sock in DIRECTORY, which the agent's container has: nothing secret may be in it.

    `tasks` is set before it runs.
    """

    def __init__(self, directory: Path) -> None:
        self.tasks: VolumeTasks | None = None
        self._early_file = directory / _EARLY_FILE
        self._guards: dict[Answer, tuple[str, ...]] = {}
        self._server = LineServer(directory / GATE_SOCKET, self._serve, self._left)
        self._log = get_logger("gate")

    @property
    def resources(self) -> tuple[str, ...]:
        """What connected agents guard."""
        return tuple(dict.fromkeys(resource for resources in self._guards.values() for resource in resources))

    def mark_early(self) -> None:
        """Leaves word that volumes may be published early, for an agent that starts while this service is away.

        It stays until the machine starts anew, as placeholders do. Blocking.

        Raises:
            OSError: It cannot be written.
        """
        self._early_file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._early_file.touch(mode=0o644)

    async def run(self) -> None:
        """Works until cancelled."""
        await self._server.run()

    async def _serve(self, message: dict[str, Any], answer: Answer) -> None:
        if isinstance(guard := message.get("gatekeeper"), dict):
            named = guard.get("resources")
            resources = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
            self._guards[answer] = tuple(resources[:_MOST_RESOURCES])
            self._log.info("agent connected", resources=list(self._guards[answer]))
            return
        uid, volumes = message.get("ready"), message.get("volumes")
        if not isinstance(uid, str) or self.tasks is None:
            await answer(
                {"id": message.get("id"), "ready": False, "detail": "the dataset service has not started yet"}
            )
            return
        names = [name for name in volumes if isinstance(name, str)] if isinstance(volumes, list) else None
        reason = await self.tasks.blocker(uid, names)
        await answer(
            {"id": message.get("id"), "ready": reason is None, "detail": plain(reason or "")[:_MOST_DETAIL]}
        )

    def _left(self, answer: Answer) -> None:
        if self._guards.pop(answer, None) is not None:
            self._log.warning("agent left: volumes are not published early", agents=len(self._guards))
