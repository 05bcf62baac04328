"""Wakes schedulers that retry a rejected pod only when a node's labels or resources change: kube-scheduler before 1.26.

When a waiting pod fits a node, a label of that node gets another value. Newer schedulers retry when the agent's
inventory changes, and need none of this; it is off unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gigaslice.controller.waiting_pods import WaitingPod

__all__ = ["WAKE_LABEL", "WakeUps"]

WAKE_LABEL = "gigaslice.io/wake"
_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0
"""How long a pod must wait before a label is changed for it, twice as long after each time."""


@dataclass(slots=True)
class WakeUps:
    """For which pods labels were changed. pods: by UID, when the next change is due and seconds to the one after."""

    pods: dict[str, tuple[float, float]] = field(default_factory=dict)

    def node(self, waiting: Iterable[WaitingPod], now: float) -> str:
        """Returns the node whose label is to be changed now, for one pod; empty where there is none."""
        due = [one for one in waiting if one.fits]
        uids = {one.pod.uid for one in due}
        self.pods = {uid: at for uid, at in self.pods.items() if uid in uids}
        for one in due:
            at, pause = self.pods.setdefault(one.pod.uid, (one.since + _FIRST_SECONDS, _FIRST_SECONDS))
            if at <= now:
                self.pods[one.pod.uid] = now + pause, min(2 * pause, _LONGEST_SECONDS)
                return one.fits[0]
        return ""
