# SPDX-License-Identifier: Apache-2.0
"""Lists of this node's pods, past the watch, for many who ask at the same time: a second one would end the first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from agent.apiserver.cluster import Cluster
from gigaslice.core.model import Pod

__all__ = ["PodLists"]

_READ_SECONDS = 5.0


class PodLists:
    """Lists the pods, once for all who wait for it."""

    def __init__(self, cluster: Cluster) -> None:
        """CLUSTER has the pods of this node."""
        self._cluster = cluster
        self._listing = asyncio.Lock()
        self._asked = self._told = 0  # numbers of calls: the last one, and the last one before the list began
        self._pods: Mapping[tuple[str, str], Pod] | None = None

    async def read(self) -> Mapping[tuple[str, str], Pod] | None:
        """Returns the pods by a list that was begun after this call; None where the API server does not answer."""
        self._asked += 1
        number = self._asked
        async with self._listing:
            if self._told < number:
                asked = self._asked
                self._pods = await self._cluster.read(_READ_SECONDS)
                self._told = asked  # not where this call is cancelled meanwhile
            return self._pods
