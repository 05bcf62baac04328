# SPDX-License-Identifier: Apache-2.0
"""Pods that ask for GPUs and do not get them: which they are, why, and what they are told by an event. No I/O.

What a pod is told has no numbers that change from one moment to the next, and is told again only when it has changed
(`pod_notices`). A mistake that no waiting mends, such as a class that does not exist, is told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.names import ASSIGNMENT, CLASS_PREFIX, GROUP, SCHEDULER_NAME
from gigaslice.core.cluster.refusal import Refusal, RefusalReason
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Pod
from gigaslice.core.views.explain import explain as explained
from gigaslice.roles.controller.pod_notices import Notices

__all__ = ["Notice", "WaitingPod", "WaitingPods"]

_PATIENCE = 5.0
"""Seconds that a pod waits before it is told that nothing is free: most are bound before."""
_CLASS_NOT_FOUND = "ResourceClassNotFound"
_INVALID = "InvalidGPURequest"
_WAITING = "GPUUnavailable"
_UNSERVED = "ResourceClassNotServed"


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that waits. refusal: why, whatever the node; None where nodes differ. fits: nodes with room."""

    pod: Pod
    since: float
    demand: PodDemand | None
    refusal: Refusal | None
    fits: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """In one word, as the metric has it."""
        return "invalid" if self.refusal is not None else "fits" if self.fits else "no-room"


@dataclass(frozen=True, slots=True)
class Notice:
    """An event that is due."""

    pod: Pod
    reason: str
    text: str


class WaitingPods:
    """The pods that wait.

    Args:
        state: The cluster.
        scheduler: schedulerName of pods that ask for classes.
        patience: Seconds before a pod is told that nothing is free.
        explain: Makes the text for a pod that fits no node; pods with equal requests share it.
    """

    def __init__(
        self,
        state: ClusterState,
        scheduler: str = SCHEDULER_NAME,
        *,
        patience: float = _PATIENCE,
        explain: Callable[[Pod], str] | None = None,
    ) -> None:
        self._state = state
        self._scheduler = scheduler
        self._patience = patience
        self._explain = explain or (lambda pod: explained(state, pod).event())
        self._pods: dict[str, tuple[Pod, float]] = {}
        self._notices = Notices()

    def put(self, pod: Pod, now: float) -> None:
        """Takes a pod as it is now."""
        if pod.terminal or pod.ending or (pod.node and not self._unserved(pod)):
            self.drop(pod.uid)
        else:
            previous = self._pods.get(pod.uid)
            self._pods[pod.uid] = pod, now if previous is None else previous[1]

    def drop(self, uid: str) -> None:
        """Forgets a pod that is gone."""
        self._pods.pop(uid, None)
        self._notices.forget(uid)

    def __len__(self) -> int:
        return len(self._pods)

    def waiting(self) -> Iterator[WaitingPod]:
        """Yields the unbound pods, the longest waiting first."""
        usable = [name for name in self._state.nodes if self._usable(name)]
        answers: dict[PodDemand, tuple[str, ...]] = {}
        for pod, since in sorted(self._pods.values(), key=lambda entry: (entry[1], entry[0].uid)):
            if pod.node:
                continue
            demand = self._state.demand_of(pod)
            if isinstance(demand, Refusal):
                yield WaitingPod(pod, since, None, demand)
                continue
            if demand not in answers:
                answers[demand] = tuple(self._state.filter(demand, usable)[0])
            yield WaitingPod(pod, since, demand, None, answers[demand])

    def due_notices(self, now: float) -> list[Notice]:
        """Returns the events that are to be sent now."""
        notices = [Notice(pod, _UNSERVED, self._unserved_text) for pod, _ in self._pods.values() if pod.node]
        texts: dict[PodDemand | None, str] = {}
        for waiting_pod in self.waiting():
            if waiting_pod.refusal is not None:
                unknown = waiting_pod.refusal.reason is RefusalReason.UNKNOWN_CLASS
                notices.append(
                    Notice(
                        waiting_pod.pod, _CLASS_NOT_FOUND if unknown else _INVALID, waiting_pod.refusal.text
                    )
                )
            elif waiting_pod.fits:
                self._notices.forget(waiting_pod.pod.uid)
            elif now - waiting_pod.since >= self._patience:
                if waiting_pod.demand not in texts:
                    texts[waiting_pod.demand] = self._explain(waiting_pod.pod)
                notices.append(Notice(waiting_pod.pod, _WAITING, texts[waiting_pod.demand]))
        return [
            notice
            for notice in notices
            if self._notices.seconds_until_due(notice.pod.uid, notice.text, now) <= 0
        ]

    def note_sent(self, notice: Notice, now: float) -> None:
        """Notes that an event has been sent."""
        self._notices.note_sent(notice.pod.uid, notice.text, now)

    @property
    def _unserved_text(self) -> str:
        return (
            f"the pod was bound without GPUs: only {self._scheduler} gives out GPUs by class; set schedulerName: "
            f"{self._scheduler}, or install the chart's admission, which does"
        )

    def _usable(self, name: str) -> bool:
        facts = self._state.facts(name)
        return facts is not None and facts.schedulable and facts.ready

    def _unserved(self, pod: Pod) -> bool:
        """Whether a pod was bound by a scheduler that does not read classes: it runs, and has no GPU."""
        names = {name for container in pod.containers for name in container.requests}
        classes = {name for name in names if name.startswith(CLASS_PREFIX)}
        units = self._state.units
        counted = any(name.startswith(f"{GROUP}/") or units.counts(name) for name in names)
        return bool(classes) and not counted and ASSIGNMENT not in pod.annotations
