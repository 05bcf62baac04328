# SPDX-License-Identifier: Apache-2.0
"""The scheduler's count and the kubelet's sync loop: pods are admitted one by one, in one thread.

The scheduler knows one number per resource: what the node last reported as allocatable, less the requests of
the pods it has bound. Everything finer is found out at admission, where a refusal is final.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tests.fakes.kubelet.devices import AdmissionError, DeviceManager
from tests.fakes.kubelet.pods import FAILED, PENDING, Pod

UNEXPECTED = "UnexpectedAdmissionError"
TOPOLOGY = "TopologyAffinityError"


def shortage(pod: Pod, allocatable: Mapping[str, int], bound: Sequence[Pod]) -> list[str]:
    """Resources of which the node has too few left for POD."""
    requested = {name for container in pod.spec.all_containers for name in container.resources}
    short = []
    for name in sorted(requested):
        used = sum(other.spec.requests(name) for other in bound)
        if pod.spec.requests(name) > allocatable.get(name, 0) - used:
            short.append(name)
    return short


def admit(pod: Pod, manager: DeviceManager, policy: str) -> bool:
    """Allocates for every container in turn; False when the pod was rejected, with the reason in its status."""
    pod.active = True
    for state in pod.all_containers:
        mask, admitted = manager.affinity(policy, pod, state.spec)
        if not admitted:
            _reject(pod, TOPOLOGY, "Resources cannot be allocated with Topology locality")
            return False
        try:
            manager.allocate(pod, state.spec, mask, started=state.running)
        except AdmissionError as error:
            _reject(pod, UNEXPECTED, f"Allocate failed due to {error}, which is unexpected")
            return False
    return True


def _reject(pod: Pod, reason: str, text: str) -> None:
    pod.active = False
    message = f"Pod was rejected: {text}"
    pod.set(FAILED, reason, message)
    pod.event("Warning", reason, message)


class SyncLoop(threading.Thread):
    """Reports the node's capacity every PERIOD_S; binds and admits what waits then, and whenever something changed.

    A resource whose stream has ended is reported as before until the next report is due. What is bound meanwhile, by a
    number that no longer holds, fails (kubelet-dp-plugin-gone: 24/24 became 24/0 four seconds after the stream's end).
    """

    def __init__(
        self,
        manager: DeviceManager,
        policy: str,
        pods: Callable[[], Sequence[Pod]],
        admitted: Callable[[Pod], None],
        period_s: float,
        *,
        scheduled: Callable[[Pod], bool] = lambda pod: True,
    ) -> None:
        super().__init__(name="sync loop", daemon=True)
        self.manager = manager
        self.policy = policy
        self.pods = pods
        self.admitted = admitted
        self.period_s = period_s
        self.scheduled = (
            scheduled  # whether the scheduler has bound a pod that has claims, which is another one
        )
        self.halt = threading.Event()
        self.report = manager.capacity()
        self.rounds = 0  # complete passes over what waits
        self.errors: list[BaseException] = []

    def run(self) -> None:
        try:
            due = time.monotonic()
            while not self.halt.is_set():
                if time.monotonic() >= due:
                    self.report = self.manager.capacity()
                    due = time.monotonic() + self.period_s
                for pod in self.pods():
                    if not pod.bound and pod.phase == PENDING and not pod.deleting.is_set():
                        self._try(pod)
                self.rounds += 1
                self.manager.changed.wait(max(0.0, due - time.monotonic()))
                self.manager.changed.clear()
        except Exception as error:  # noqa: BLE001 - shown by the kubelet's stop(), not lost with the thread
            self.errors.append(error)

    def _try(self, pod: Pod) -> None:
        if pod.spec.claims and not self.scheduled(pod):
            return
        bound = [p for p in self.pods() if p.bound and not p.terminal and not p.deleted]
        short = [] if pod.spec.bind else shortage(pod, self.report[1], bound)
        if short:
            text = "; ".join(f"1 Insufficient {name}" for name in short)
            pod.set(PENDING, "Unschedulable", f"0/1 nodes are available: {text}.")
            pod.event("Warning", "FailedScheduling", pod.message)
            return
        pod.bound = True
        pod.set(PENDING)
        if admit(pod, self.manager, self.policy):
            self.admitted(pod)
        else:
            pod.ended.set()
