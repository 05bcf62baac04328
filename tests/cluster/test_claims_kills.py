# SPDX-License-Identifier: Apache-2.0
"""Agent, kubelet and runtime killed at each step of Prepare and Unprepare, with a real kubelet.

The node is that of test_claims_node.py. Its agent is started as `tests.integration.claims.dying`, which dies or stops
at a point that is armed. A pod has to run, and an allocation to be gone, within LONGEST of the moment at which the
agent is back. Only a call of Unprepare that ended with its front waits for the kubelet, which asks again by itself.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.claim_scenes import restart_of, timed
from tests.cluster.claims_node import ClaimNode
from tests.cluster.control_plane import until
from tests.integration.claims import dying

LONGEST = 5.0
"""Seconds that a restart of anything may cost a pod."""
KUBELET_PAUSE = 20.0
"""Seconds after which a kubelet gives a claim up again, when that was cut off: its own pause, of 8 to 12 here."""
NOTICED = 60.0
PREPARE = list(itertools.product(dying.PREPARE_STEPS, dying.SIDES))
UNPREPARE = list(itertools.product(dying.UNPREPARE_STEPS, dying.SIDES))


class Mortal:
    """The node with an agent that dies or stops at points that are armed in a folder."""

    def __init__(self, node: ClaimNode, points: Path) -> None:
        self.node, self.points = node, points
        self.start()

    def start(self) -> None:
        """Starts front and agent, and waits until the agent serves."""
        module = "tests.integration.claims.dying"
        self.node.start((sys.executable, "-m", module, str(self.points)))
        self.node.wait_served()

    @property
    def worker(self) -> psutil.Process:
        """The agent's own process."""
        (process,) = psutil.Process(self.node.agent.pid).children()
        return process

    def arm(self, point: tuple[str, str], what: str = dying.AGENT) -> Callable[[], None]:
        """Returns what waits until the point was reached, and then brings back what has died there."""
        worker, path = self.worker, dying.arm(self.points, *point, what=what)

        def reached() -> None:
            until(lambda: not path.exists(), NOTICED)
            if what == dying.STOP:
                until(lambda: worker.status() == psutil.STATUS_STOPPED, 10)
                return
            worker.wait(30)
            if what == dying.FRONT:
                self.node.ended(30)
                self.start()
            else:
                self.node.wait_served()

        return reached

    def go_on(self) -> None:
        """Ends the stop of the agent."""
        self.worker.send_signal(signal.SIGCONT)


@pytest.fixture
def mortal(node: ClaimNode, tmp_path: Path) -> Iterator[Mortal]:
    node.halt(signal.SIGTERM)
    yield Mortal(node, tmp_path)
    node.clear()
    node.nothing_left(30)
    node.halt(signal.SIGTERM)
    node.start()
    until(node.offered, 30)


def gone(node: ClaimNode, allocation: str) -> float:
    """Waits until nothing is left of an allocation; returns how long that took."""
    begun = time.monotonic()
    until(lambda: allocation not in node.left() and not node.claims(), 90)
    return time.monotonic() - begun


@pytest.mark.parametrize("what", [dying.AGENT, dying.FRONT])
def test_the_agent_is_killed_at_each_point_of_prepare(mortal: Mortal, what: str) -> None:
    node, delays = mortal.node, []
    for number, point in enumerate(PREPARE):
        reached = mortal.arm(point, what)
        name = f"p{number}"
        node.small(name, 2)
        reached()
        delays.append(timed(f"the pod runs after a kill {point}", node.running(name)))
        assert node.page(name).gib == 2
        node.delete(name)
        node.nothing_left(30)
    assert max(delays) <= LONGEST


@pytest.mark.parametrize("what", [dying.AGENT, dying.FRONT])
def test_the_agent_is_killed_at_each_point_of_unprepare(mortal: Mortal, what: str) -> None:
    node, delays = mortal.node, []
    for number, point in enumerate(UNPREPARE):
        name = f"p{number}"
        node.small(name, 2)
        node.running(name)
        allocation = node.page(name).allocation
        reached = mortal.arm(point, what)
        node.api.delete(f"{node.pods}/{name}")
        reached()
        delays.append(timed(f"nothing is left after a kill {point}", gone(node, allocation)))
        node.delete(name)
    assert max(delays) <= (LONGEST if what == dying.AGENT else KUBELET_PAUSE)


@pytest.mark.parametrize("who", ["KUBELET", "RUNTIME"])
def test_the_kubelet_or_the_runtime_is_killed_at_each_point_of_prepare(mortal: Mortal, who: str) -> None:
    restart, node, delays = restart_of(f"K8S_NODE_{who}_RESTART"), mortal.node, []
    for number, point in enumerate(PREPARE):
        reached = mortal.arm(point, dying.STOP)
        name = f"p{number}"
        node.small(name, 2)
        reached()
        restart()
        mortal.go_on()
        delays.append(timed(f"the pod runs after a kill {point}", node.running(name)))
        assert node.page(name).gib == 2
        node.delete(name)
        node.nothing_left(30)
    print(f"longest: {max(delays):.2f} s")


@pytest.mark.parametrize("who", ["KUBELET", "RUNTIME"])
def test_the_kubelet_or_the_runtime_is_killed_at_each_point_of_unprepare(mortal: Mortal, who: str) -> None:
    restart, node = restart_of(f"K8S_NODE_{who}_RESTART"), mortal.node
    for number, point in enumerate(UNPREPARE):
        name = f"p{number}"
        node.small(name, 2)
        node.running(name)
        allocation = node.page(name).allocation
        reached = mortal.arm(point, dying.STOP)
        node.api.delete(f"{node.pods}/{name}")
        reached()
        restart()
        mortal.go_on()
        timed(f"nothing is left after a kill {point}", gone(node, allocation))
        node.delete(name)
