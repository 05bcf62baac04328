"""When what a kubelet's list lacks means something. Pure.

A kubelet that has just been started answers with an empty list, then with the static pods of its node, and with the
others when it has heard of them from the API server: two seconds later, or hours later where that is away too. So a
list counts only after this kubelet has shown a pod that is not static, and after a while besides, since it takes up its
pods one by one. A kubelet that was there before this process is no exception: it may have been started just before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

__all__ = ["Settling"]

_SETTLE_SECONDS = 5.0
_EMPTY_SECONDS = 300.0  # a node may really have no pods


class Settling:
    """Follows the answers of the kubelets of NODE, whose name ends the names of its static pods ("" if not known).

    informed: this kubelet has shown a pod that is not static. settled: what its last answer lacks means something.
    """

    def __init__(self, node: str = "") -> None:
        self.informed = False
        self.settled = False
        self._static = f"-{node}" if node else ""
        self._kubelet: Hashable = None
        self._since = 0.0

    def observe(self, kubelet: Hashable, pods: Iterable[str], now: float) -> bool:
        """Takes note of one answer: KUBELET is the identity of who gave it at NOW (seconds), PODS are their names.

        Returns whether what this answer lacks means something.
        """
        if kubelet != self._kubelet:
            self._kubelet, self._since, self.informed = kubelet, now, False
        self.informed = self.informed or any(
            not (self._static and one.endswith(self._static)) for one in pods
        )
        self.settled = now - self._since >= (_SETTLE_SECONDS if self.informed else _EMPTY_SECONDS)
        return self.settled
