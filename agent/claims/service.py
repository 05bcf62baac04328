# SPDX-License-Identifier: Apache-2.0
"""What the kubelet asks about claims, answered by the parts that do it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from agent.claims.messages import ClaimName, PrepareAnswer
from agent.claims.preparation import ClaimPreparation
from agent.claims.release import ClaimRelease

__all__ = ["Claims"]


class Claims:
    """Prepares and unprepares claims, all of one call beside each other."""

    def __init__(self, preparation: ClaimPreparation, release: ClaimRelease) -> None:
        self._preparation = preparation
        self._release = release

    async def prepare(
        self, claims: Sequence[ClaimName], remaining: float | None
    ) -> Mapping[str, PrepareAnswer]:
        """Prepares claims. Returns an answer for each, by UID."""
        answers = await asyncio.gather(*(self._preparation.prepare(name, remaining) for name in claims))
        return {name.uid: answer for name, answer in zip(claims, answers, strict=True)}

    async def unprepare(self, claims: Sequence[ClaimName]) -> Mapping[str, str]:
        """Unprepares claims. Returns why not, by UID."""
        for name in claims:
            self._preparation.unprepared(name.uid)
        return {name.uid: await self._unprepare(name) for name in claims}

    async def _unprepare(self, name: ClaimName) -> str:
        error = await self._release.unprepare(name)
        if not error:
            self._preparation.refusals.done(name.uid)
        return error
