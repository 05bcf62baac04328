# SPDX-License-Identifier: Apache-2.0
"""Who sets the driver's limits, in memory: for tests of what the agent asks of it.

It keeps a limit below present use at the use, as the real one does, and says what it was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from agent.limits.driver_limit_client import DriverLimitsAwayError
from gigaslice.core.limits.driver_limit_messages import (
    ApplyAnswer,
    ApplyRequest,
    GpuLimitState,
    GpuSupport,
    Leaf,
    MessageError,
    PodLimitState,
    SupportAnswer,
    WatchAnswer,
)


class MemoryLimiter:
    """Attributes:
    requests: What was asked for.
    asked: How often it was asked whether limits can be set.
    hard, used: Bytes by pod and GPU.
    absent: Pods without a cgroup.
    """

    def __init__(self, totals: Mapping[str, int], backend: str = "dmem") -> None:
        self.connected = self.expected = True
        self.answer = SupportAnswer(
            backend, driver="615.10", gpus={gpu: GpuSupport(n) for gpu, n in totals.items()}
        )
        self.requests: list[ApplyRequest] = []
        self.asked = 0
        self.pauses: list[float] = []  # seconds that the next answers take
        self.hard: dict[tuple[str, str], int] = {}
        self.used: dict[tuple[str, str], int] = {}
        self.absent: set[str] = set()
        self.problems: dict[str, str] = {}
        self.leaves: dict[str, tuple[Leaf, ...]] = {}
        self.away = ""
        self.sequence, self.uids = 1, ()
        self._changed = asyncio.Event()

    async def run(self, connected: Callable[[], None]) -> None:
        connected()
        await asyncio.Event().wait()

    async def support(self) -> SupportAnswer:
        self._check()
        self.asked += 1
        return self.answer

    async def apply(self, request: ApplyRequest) -> ApplyAnswer:
        self._check()
        self._decode(request)
        await asyncio.sleep(self.pauses.pop(0) if self.pauses else 0)
        self.requests.append(request)
        for container in request.containers:
            kept = [
                leaf for leaf in self.leaves.get(container.uid, ()) if leaf.container != container.container
            ]
            self.leaves[container.uid] = tuple(kept)
        return ApplyAnswer(tuple(self._state(pod.uid, pod.gpus) for pod in request.pods))

    async def watch(self, sequence: int) -> WatchAnswer:
        self._check()
        while sequence == self.sequence:
            self._changed.clear()
            await self._changed.wait()
        return WatchAnswer(self.sequence, self.uids)

    def show(self, *uids: str) -> None:
        """Makes these the pods that have cgroups."""
        self.sequence, self.uids = self.sequence + 1, uids
        self._changed.set()

    def limits(self, uid: str) -> dict[str, int]:
        """The limits of a pod by GPU."""
        return {gpu: count for (pod, gpu), count in self.hard.items() if pod == uid}

    def _state(self, uid: str, wanted: Mapping[str, int]) -> PodLimitState:
        if uid in self.absent or uid in self.problems:
            return PodLimitState(uid, uid not in self.absent, self.problems.get(uid, ""))
        for gpu, count in wanted.items():
            self.hard[uid, gpu] = max(count, self.used.get((uid, gpu), 0))
        states = {gpu: GpuLimitState(self.hard[uid, gpu], self.used.get((uid, gpu), 0)) for gpu in wanted}
        return PodLimitState(uid, True, "", states, self.leaves.get(uid, ()))

    @staticmethod
    def _decode(request: ApplyRequest) -> None:
        """Refuses what the real one refuses: one wrong row, and all of the request."""
        try:
            ApplyRequest.decode(request.encode()["apply"])
        except MessageError as error:
            raise DriverLimitsAwayError(str(error)) from error

    def _check(self) -> None:
        if self.away or not self.connected:
            raise DriverLimitsAwayError(self.away or "nobody answers")
