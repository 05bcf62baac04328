# SPDX-License-Identifier: Apache-2.0
"""The control socket: changes of a running node for root of this node, beside the state that they change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agent.control.client import SOCKET
from agent.control.messages import GpuLimits, ResizeAnswer
from agent.limits.manager import LimitChange, LimitsManager, ResizeOutcome
from agent.persistence.store import Store
from gigaslice.core.errors import ConfigError, ControlError, GigasliceError
from gigaslice.core.kube.fields import text_at
from gigaslice.core.limits.live_limits import ResizeRefusal
from gigaslice.runtime.local_sockets import Answer, LineServer
from gigaslice.runtime.logs import get_logger

__all__ = ["ControlServer"]


class ControlServer:
    """Serves MANAGER's operations on control.sock in STORE's directory."""

    def __init__(self, store: Store, manager: LimitsManager) -> None:
        self._store = store
        self._manager = manager
        self._log = get_logger("control")
        self.run = LineServer(store.state_dir / SOCKET, self._serve).run

    async def _serve(self, request: dict[str, Any], answer: Answer) -> None:
        change = request.get("resize")
        if not isinstance(change, dict):
            raise ControlError("the agent does not know this command; use the same version of both")
        await answer(asdict(await self._resize(decode_change(change))))

    async def _resize(self, change: LimitChange) -> ResizeAnswer:
        """Changes limits of a running container; returns when the change is on the disk."""
        try:
            outcome = self._manager.resize(change)
            await asyncio.to_thread(self._store.sync)
        except GigasliceError as error:
            self._log.error("resize failed", detail=str(error))
            raise
        if isinstance(outcome, ResizeRefusal):
            self._log.info("resize refused", subject=change.subject, detail=outcome.detail)
            raise ConfigError([outcome.detail]) if outcome.mistake else ControlError(outcome.detail)
        return _answer(outcome)


def decode_change(document: Mapping[str, Any]) -> LimitChange:
    """The change that DOCUMENT asks for. Raises ConfigError for an amount that is none."""
    amounts: dict[str, int] = {}
    for name, most in (("memory", 1 << 62), ("cores", 100)):
        value = document.get(name, 0)
        if type(value) is not int or not 0 <= value <= most:
            raise ConfigError([f"{name} must be a whole number from 0 to {most}"])
        if name in document:
            amounts[name] = value
    namespace, pod, container, gpu, allocation = (
        text_at(document, name) for name in ("namespace", "pod", "container", "gpu", "allocation")
    )
    if allocation and not re.fullmatch(r"[0-9a-f]{8,32}", allocation):
        raise ConfigError(["an allocation is named by the first 8 or more digits of its id"])
    return LimitChange(namespace or "default", pod, container, gpu, allocation=allocation, **amounts)


def _answer(outcome: ResizeOutcome) -> ResizeAnswer:
    before, after = outcome.before, outcome.after
    return ResizeAnswer(
        after.name,
        tuple(
            GpuLimits(
                gpu,
                memory_before=before.quota()[gpu],
                memory_after=size,
                cores_before=before.cores_of(gpu),
                cores_after=after.cores_of(gpu),
                used=outcome.used.get(gpu, 0),
            )
            for gpu, size in after.quota().items()
        ),
    )
