# SPDX-License-Identifier: Apache-2.0
"""Has limits set, and replaces what somebody else has set below a pod's.

Where the driver keeps limits in its own map, the nearest cgroup with one decides. NVIDIA's runtime hook sets one for a
container's cgroup by variables of its environment, and a new cgroup can have the address, and so the limit, of one that
is gone. So what stands below a pod's limit is set to the container's own number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agent.accounting.processes import PROC, read_process
from gigaslice.core.limits.driver_limit_messages import (
    ApplyAnswer,
    ApplyRequest,
    ContainerLimits,
    Leaf,
    PodLimits,
    PodLimitState,
    SupportAnswer,
    WatchAnswer,
)

__all__ = ["DriverLimitSetter", "Limiter"]

_BATCH = 64  # pods of one question: a line of the protocol is bounded

Limits = Mapping[str, Mapping[str, int]]


class Limiter(Protocol):
    """Who sets limits: `agent.limits.driver_limit_client.DriverLimitClient`."""

    @property
    def connected(self) -> bool:
        """Whether it can be asked."""
        ...

    @property
    def expected(self) -> bool:
        """Whether a connection can be expected soon."""
        ...

    async def run(self, connected: Callable[[], None]) -> None:
        """Keeps the connection until cancelled. CONNECTED is called whenever there is one again."""
        ...

    async def support(self) -> SupportAnswer:
        """Whether limits can be set. Raises DriverLimitsAwayError."""
        ...

    async def apply(self, request: ApplyRequest) -> ApplyAnswer:
        """Has limits set. Raises DriverLimitsAwayError."""
        ...

    async def watch(self, sequence: int) -> WatchAnswer:
        """The pods that have cgroups, at the next change. Raises DriverLimitsAwayError."""
        ...


class DriverLimitSetter:
    """Sets limits by LIMITER.

    Args:
        limiter: See there.
        limit_of: Bytes of a GPU that the containers of an allocation may have; None for an allocation that is not
            known, or has nothing of it. By allocation ID and GPU.
        replaced: Told of a limit that was replaced: the pod, the allocation or an empty text, the GPU, what it was, and
            what it is to be.
        proc: Where processes are looked up.
    """

    def __init__(
        self,
        limiter: Limiter,
        limit_of: Callable[[str, str], int | None],
        replaced: Callable[[str, str, Leaf, int], None],
        proc: Path = PROC,
    ) -> None:
        self._limiter = limiter
        self._limit_of = limit_of
        self._replaced = replaced
        self._proc = proc

    async def set(self, limits: Limits) -> dict[str, PodLimitState]:
        """Has LIMITS set, in bytes by pod and GPU. Returns what the driver says afterwards, by pod.

        Raises DriverLimitsAwayError.
        """
        states: dict[str, PodLimitState] = {}
        uids = sorted(limits)
        for begin in range(0, len(uids), _BATCH):
            rows = [PodLimits(uid, limits[uid]) for uid in uids[begin : begin + _BATCH]]
            states |= await self._set(rows)
        return states

    async def _set(self, rows: Sequence[PodLimits]) -> dict[str, PodLimitState]:
        answer = await self._limiter.apply(ApplyRequest(tuple(rows)))
        states = {state.uid: state for state in answer.pods}
        limits = {row.uid: row.gpus for row in rows}
        containers = [
            container
            for uid, state in states.items()
            for container in self._containers(uid, state.leaves, limits.get(uid, {}))
        ]
        if containers:
            named = {container.uid for container in containers}
            pods = tuple(row for row in rows if row.uid in named)
            answer = await self._limiter.apply(ApplyRequest(pods, tuple(containers)))
            states |= {state.uid: state for state in answer.pods}
        return states

    def _containers(
        self, uid: str, leaves: Sequence[Leaf], limits: Mapping[str, int]
    ) -> list[ContainerLimits]:
        """The containers of a pod whose cgroups have limits that they should not have, with those that they should."""
        by_container: dict[str, dict[str, int]] = {}
        for leaf in leaves:
            if not leaf.container or leaf.gpu not in limits:
                continue
            allocation = self._allocation(uid, leaf)
            own = self._limit_of(allocation, leaf.gpu) if allocation else None
            wanted = limits[leaf.gpu] if own is None else min(own, limits[leaf.gpu])
            by_container.setdefault(leaf.container, {})[leaf.gpu] = wanted
            if leaf.hard != wanted:
                self._replaced(uid, allocation, leaf, wanted)
        return [ContainerLimits(uid, container, gpus) for container, gpus in by_container.items()]

    def _allocation(self, uid: str, leaf: Leaf) -> str:
        """The allocation whose files the processes of a cgroup have mounted; empty where that is not known."""
        mounted = set()
        for pid in leaf.pids:
            process = read_process(pid, self._proc)
            if process is not None and process.place is not None and process.place.uid == uid:
                mounted.add(process.mounted)
        return mounted.pop() if len(mounted) == 1 else ""
