# SPDX-License-Identifier: Apache-2.0
"""A Deployment: so many pods of one kind, and another for each that fails, without limit and without pause.

The real one does the same: its replica set counts the pods that have not ended and makes what is missing. What failed
stays, for people to see; here it is counted and taken away, since it holds nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.fakes.kubelet.node import FakeKubelet
from tests.fakes.kubelet.pods import FAILED, Pod, PodSpec
from tests.fakes.threads import await_end

_POLL_S = 0.02


class Deployment(threading.Thread):
    """REPLICAS pods of SPEC(number) on NODE. REACTION_S pass until the end of one is answered by another."""

    def __init__(
        self, node: FakeKubelet, spec: Callable[[int], PodSpec], replicas: int, reaction_s: float = 1.0
    ) -> None:
        super().__init__(name="deployment", daemon=True)
        self.node = node
        self.spec = spec
        self.replicas = replicas
        self.reaction_s = reaction_s
        self.made = 0
        self.failed: list[str] = []  # what was said of the pods that failed
        self.pods: list[Pod] = []
        self.halt = threading.Event()
        self.error: BaseException | None = None
        self._lock = threading.RLock()
        self._missing: list[float] = []  # when each of them is noticed

    def run(self) -> None:
        try:
            while not self.halt.wait(_POLL_S):
                with self._lock:
                    self._pass()
        except BaseException as error:  # noqa: BLE001  (shown by the thread that ends it)
            self.error = error

    def replace(self, count: int = 1) -> None:
        """Ends COUNT of the running pods, oldest first; others are made in their place."""
        with self._lock:
            for pod in [pod for pod in self.pods if pod.phase == "Running"][:count]:
                self.pods.remove(pod)
                threading.Thread(target=self.node.delete_pod, args=(pod,), daemon=True).start()

    def running(self) -> int:
        """How many pods run."""
        with self._lock:
            return sum(pod.phase == "Running" for pod in self.pods)

    def end(self) -> list[str]:
        """No more pods; why those failed that did."""
        self.halt.set()
        await_end(self)
        if self.error:
            raise self.error
        return self.failed

    def _pass(self) -> None:
        now = time.monotonic()
        for pod in [pod for pod in self.pods if pod.phase == FAILED]:
            self.failed.append(pod.message)
            self.pods.remove(pod)
            self._missing.append(now + self.reaction_s)
            self.node.delete_pod(pod)
        self._missing = [due for due in self._missing if due > now]
        while len(self.pods) + len(self._missing) < self.replicas:
            self.made += 1
            self.pods.append(self.node.create_pod(self.spec(self.made)))
