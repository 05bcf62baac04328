"""Finds out, while the kubelet waits, whom a preference or an allocation is for.

The question to the kubelet takes a millisecond or two. The watch of the pods comes from the same API server as the
kubelet's, and usually knows a pod before the kubelet admits it. When it does not, it is waited for, for half a second
at most and only while it is running: everything else is left to the start gate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from agent.errors import KubeletError
from agent.kube import Cluster
from agent.kubelet.podresources import PodResources
from agent.kubelet.whose import Verdict, identify
from agent.state.store import Store
from agent.telemetry.logs import get_logger

__all__ = ["Admissions"]

_PATIENCE = 0.5  # seconds to wait for the watch
_UNSEEN_SECONDS = (
    5.0  # a pod that the watch does not show for so long is not waited for again: it may be a static one
)
_SAME_SECONDS = 2.0  # the kubelet allocates right after it has asked for a preference


class Admissions:
    """Asks KUBELET and CLUSTER for containers that ask for RESOURCE; STORE knows who has been given devices."""

    def __init__(
        self,
        store: Store,
        kubelet: PodResources,
        cluster: Cluster,
        resource: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._kubelet = kubelet
        self._cluster = cluster
        self._resource = resource
        self._clock = clock
        self._unseen: dict[str, float] = {}
        self._preferred: tuple[frozenset[str], float, Verdict] | None = None
        self._log = get_logger("admission")

    async def whose(self, size: int) -> Verdict:
        """For whom SIZE devices are. Never fails: an answer that says nothing is one too."""
        if not self._cluster.expected:
            return Verdict()
        try:
            listed = await self._kubelet.pods()
        except KubeletError as error:
            self._log.warning("pods unknown during an admission", detail=str(error))
            return Verdict()
        deadline = self._clock() + _PATIENCE
        while True:
            book = self._store.book
            verdict = identify(listed, self._cluster.pod, book, self._resource, size)
            left = deadline - self._clock()
            if not self._worth_waiting(verdict) or left <= 0 or not self._cluster.synced:
                return verdict
            await self._cluster.news(left)

    async def of_tokens(self, tokens: Iterable[str]) -> Verdict:
        """For whom an allocation of TOKENS is: that of the preference just given, if these are its tokens."""
        wanted = frozenset(tokens)
        preferred, self._preferred = self._preferred, None
        if preferred and preferred[0] == wanted and self._clock() - preferred[1] < _SAME_SECONDS:
            return preferred[2]
        return await self.whose(len(wanted))

    def prefers(self, tokens: Iterable[str], verdict: Verdict) -> None:
        """Notes that TOKENS were preferred for the container of VERDICT."""
        self._preferred = (frozenset(tokens), self._clock(), verdict)

    def _worth_waiting(self, verdict: Verdict) -> bool:
        if not verdict.unseen:
            self._unseen.clear()
            return False
        now = self._clock()
        self._unseen = {name: self._unseen.get(name, now) for name in verdict.unseen}
        return any(now - first < _UNSEEN_SECONDS for first in self._unseen.values())
