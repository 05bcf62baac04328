# SPDX-License-Identifier: Apache-2.0
"""The agent killed between any two steps of Prepare and Unprepare: every claim is prepared once, and leaves nothing.

The kubelet of these tests never asks again by itself for what it was answered with an error. So a pod starts when its
call was held, or when the pod was woken, and else never.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.integration.agent.conftest import AgentProcess, gpu_limits, wait_until
from tests.integration.claims import dying
from tests.integration.claims.node import CLAIM_QUICK
from tests.integration.claims.oracle import (
    RELEASED_WITHIN,
    Books,
    compare,
    compare_containers,
    recorded,
    wait_nothing_left,
)

GIB = 1 << 30
SIZE = 24 * GIB
NEVER = 3600.0
PATIENT = replace(
    CLAIM_QUICK, claims=replace(CLAIM_QUICK.claims, call_s=45.0, resync_s=NEVER, register_after_s=1.0)
)
PREPARE = list(itertools.product(dying.PREPARE_STEPS, dying.SIDES))
UNPREPARE = list(itertools.product(dying.UNPREPARE_STEPS, dying.SIDES))


class DyingAgent(AgentProcess):
    """An agent that dies at points that are armed."""

    def command(self, **flags):
        python, module, _, *words = super().command(**flags)
        return [python, module, "tests.integration.claims.dying", str(self.points), *words]

    @property
    def points(self):
        path = self.output.parent / "points"
        path.mkdir(exist_ok=True)
        return path

    def arm(self, step, side, *, what=dying.AGENT):
        return dying.arm(self.points, step, side, what=what)

    def start_again(self):
        """Starts the agent after its front was killed, as the kubelet starts a container."""
        self.process.wait()
        self.process = None
        self.start()

    def kill_front(self):
        """Kills the front, and with it the agent."""
        self.kill()
        self.start()


@pytest.fixture
def node(begin, api):
    api.answers.pod_policy = True
    return begin(gpus=2, gib=24, settings=PATIENT, process=DyingAgent)


@pytest.fixture
def books(node):
    return Books(node.api)


def refused(pods):
    """What pods were told of claims that were not prepared."""
    return [
        event.message
        for pod in pods
        for event in pod.events
        if event.reason == "FailedPrepareDynamicResources"
    ]


def check(books, node, pods):
    compare(books, node.agent.state, SIZE)
    compare_containers(books, pods, SIZE)


def die(node, point, **more):
    """Arms a point, and returns what waits until the agent has died there."""
    path = node.agent.arm(*point, **more)
    return lambda: wait_until(lambda: not path.exists(), f"the agent to die {point}")


def test_killed_at_every_point_of_prepare(node, books):
    pods = []
    for number, point in enumerate(PREPARE):
        died = die(node, point)
        pods.append(node.create(f"p{number}", memory="2Gi"))
        died()
        check(books, node, pods)
        pods[-1].wait("Running")
        check(books, node, pods)
        (limits,) = gpu_limits(pods[-1].container())
        assert limits.memory_bytes == 2 * GIB
        assert len(recorded(node.agent.state).allocations) == len(pods)
    assert refused(pods) == []
    for pod in pods:
        node.kubelet.delete_pod(pod)
    wait_nothing_left(node.kubelet, node.agent.state)
    wait_until(lambda: not node.api.all("resourceclaims"), "the end of the claims")


def test_killed_at_every_point_of_unprepare(node, books):
    pods = [node.run(f"p{number}", memory="2Gi") for number in range(len(UNPREPARE))]
    for number, (point, pod) in enumerate(zip(UNPREPARE, list(pods), strict=True)):
        died = die(node, point)
        # Once its pod has ended, a claim may be deallocated before the node has released it, which then has too much.
        books.forced.update(
            claim["metadata"]["uid"]
            for claim in node.api.all("resourceclaims")
            if claim["metadata"]["name"].startswith(f"p{number}-")
        )
        deleting = node.begin_deleting(pod)
        pods.remove(pod)
        died()
        check(books, node, pods)
        deleting.join(60)
        wait_until(
            lambda: len(recorded(node.agent.state).allocations) == len(pods),
            f"the allocation to end, {point}",
            RELEASED_WITHIN,
        )
    wait_nothing_left(node.kubelet, node.agent.state)
    wait_until(lambda: not node.api.all("resourceclaims"), "the end of the claims")


def test_a_pod_that_goes_while_its_claim_is_prepared_anew_leaves_nothing(node, books):
    for number, point in enumerate(PREPARE):
        died = die(node, point)
        pod = node.create(f"p{number}", memory="2Gi")
        died()
        claims = [claim["metadata"]["uid"] for claim in node.api.all("resourceclaims")]
        node.kubelet.delete_pod(pod, force=True)
        books.forced.update(claims)
        check(books, node, [])
        pod.ended.wait(60)
        wait_nothing_left(node.kubelet, node.agent.state)
    wait_until(lambda: not node.api.all("resourceclaims"), "the end of the claims")


def test_a_front_killed_at_every_point_of_prepare_leaves_no_pod_behind(node, books):
    pods = []
    for number, point in enumerate(PREPARE):
        died = die(node, point, what=dying.FRONT)
        pods.append(node.create(f"p{number}", memory="2Gi"))
        died()
        node.agent.start_again()
        pods[-1].wait("Running")
        check(books, node, pods)
        assert len(recorded(node.agent.state).allocations) == len(pods)
    for pod in pods:
        node.kubelet.delete_pod(pod)
    wait_nothing_left(node.kubelet, node.agent.state)


def test_a_front_killed_at_every_point_of_unprepare_leaves_nothing(node):
    for number, point in enumerate(UNPREPARE):
        pod = node.run(f"p{number}", memory="2Gi")
        path = node.agent.arm(*point, what=dying.FRONT)
        deleting = node.begin_deleting(pod)
        wait_until(lambda path=path: not path.exists(), f"the agent to die {point}")
        node.agent.start_again()
        deleting.join(60)
        wait_nothing_left(node.kubelet, node.agent.state)


def test_pods_that_wait_while_the_front_is_dead_start(node):
    """Their calls fail at once: there is nobody at the socket, or no driver is registered any more."""
    node.agent.kill()
    pods = [node.create(f"p{number}", memory="2Gi") for number in range(3)]
    wait_until(lambda: len(refused(pods)) == 3, "the errors")
    node.agent.start()
    for pod in pods:
        pod.wait("Running")


def test_pods_that_wait_while_the_kubelet_starts_again_start(node):
    """A kubelet that starts syncs its pods before it has found its drivers again."""
    node.agent.worker.suspend()
    pod = node.create("p", memory="2Gi")
    wait_until(lambda: node.kubelet.claims.names("NodePrepareResources"), "the call")
    node.kubelet.stop()
    node.agent.worker.resume()
    node.kubelet.start()
    pod.wait("Running")
