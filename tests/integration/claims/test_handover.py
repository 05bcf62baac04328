# SPDX-License-Identifier: Apache-2.0
"""An upgrade of a node that serves claims: two agents side by side, and the kubelet sees neither come nor go."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tests.fakes.kubeapi.device_documents import DRIVER, request_document
from tests.integration.agent.conftest import RESOURCE, AgentProcess, pod, wait_until
from tests.integration.claims import dying
from tests.integration.claims.node import CLAIM_QUICK
from tests.integration.claims.oracle import recorded, wait_nothing_left
from tests.integration.claims.test_kills import DyingAgent

NEVER = 3600.0
PATIENT = replace(
    CLAIM_QUICK, claims=replace(CLAIM_QUICK.claims, call_s=45.0, resync_s=NEVER, unprepare_retry_s=NEVER)
)


@pytest.fixture
def node(begin, api):
    api.answers.pod_policy = True
    return begin(gpus=2, gib=24, settings=PATIENT)


@pytest.fixture
def successor(directory, node):
    """Another agent for the same node, ready: the pod that a rolling update starts beside the old one."""
    others = []

    def start(*, until="standing by", process=AgentProcess, armed=None, **flags):
        ready = len(node.agent.events("successor is ready"))
        other = process(directory, node.kubelet.plugin_directory, node.kubelet.pod_resources_socket)
        other.inventory.write_text(inventory)
        other.flags = dict(node.agent.flags)
        other.output = directory / f"agent-{len(others)}.log"
        if armed is not None:
            other.arm(*armed)
        other.start(standby="on", **flags)
        others.append(other)
        if until:
            other.wait_event(until)
            node.agent.wait_event("successor is ready", ready + 1)
        return other

    inventory = node.agent.inventory.read_text()
    yield start
    for other in others:
        if other.process is not None:
            other.kill()
        assert "Traceback" not in other.output.read_text()


def hand_over(node, other):
    """Asks the agent to end, and returns when the other one serves."""
    assert node.agent.terminate() == 0
    other.wait_event("taken over")
    taken_over(node, other)


def taken_over(node, other):
    """The other one is the node's agent from now on."""
    node.agent.process, other.process = other.process, None
    node.agent.output = other.output


def sockets(node):
    """What is in the kubelet's directories of drivers: names and inodes."""
    plugins = node.kubelet.directory / "plugins" / DRIVER
    return {
        path: path.stat().st_ino
        for directory in (node.kubelet.plugins_registry, plugins)
        for path in directory.iterdir()
        if path.is_socket()
    }


def versions(node):
    """Of what is published."""
    return [one["metadata"]["resourceVersion"] for one in node.api.all("resourceslices")]


@pytest.fixture
def unnoticed(node):
    """Nothing of the driver's registration, sockets and slices changes until the end of the test, and no call fails."""
    before = sockets(node)
    registrations = node.kubelet.claims.names("")
    yield
    assert sockets(node) == before
    again = [name for name in node.kubelet.claims.names("") if name == "NotifyRegistrationStatus"]
    assert again == [name for name in registrations if name == "NotifyRegistrationStatus"]
    errors = [call for call in node.kubelet.claims.calls if call.error or _answered_with_error(call)]
    assert errors == []


def _answered_with_error(call):
    return call.reply is not None and any(one.error for one in call.reply.claims.values())


def test_a_claim_is_prepared_by_one_agent_and_unprepared_by_the_next(node, successor, unnoticed):
    before = versions(node)
    first = node.run("a", memory="4Gi")
    wait_until(lambda: len(node.devices()) == 2, "the slice")
    for name in "bc":
        hand_over(node, successor())
        pod_of = node.run(name, memory="4Gi")
        assert pod_of.container().running and first.container().restarts == 0
    assert len(recorded(node.agent.state).allocations) == 3
    assert versions(node) == before, "one order of two equal GPUs is as good as the other"
    for one in node.kubelet.pods:
        node.kubelet.delete_pod(one)
    wait_nothing_left(node.kubelet, node.agent.state)


def test_calls_in_the_middle_are_answered_by_the_next(node, successor, unnoticed):
    """A Prepare and an Unprepare that the agent has been given and has not answered when it is asked to end."""
    leaving = node.run("a", memory="4Gi")
    node.claim("shared", request_document(memory="2Gi"))
    sharing = node.run("s", node.named("shared"))
    other, worker = successor(), node.agent.worker
    worker.suspend()
    coming = node.create("b", memory="4Gi")
    deleting = node.begin_deleting(leaving)
    wait_until(lambda: node.kubelet.claims.names("NodeUnprepareResources"), "the last call")
    wait_until(lambda: len(node.kubelet.claims.names("NodePrepareResources")) == 3, "the call")
    node.agent.process.send_signal(signal.SIGTERM)
    assert node.agent.process.wait(60) == 0  # the frozen one is killed, and its calls go over
    other.wait_event("taken over")
    taken_over(node, other)
    coming.wait("Running")
    deleting.join(60)
    wait_until(lambda: len(recorded(node.agent.state).allocations) == 2, "the end of the allocation")
    assert sharing.container().restarts == 0


def test_a_standby_that_dies_changes_nothing(node, successor, unnoticed):
    first = node.run("a", memory="4Gi")
    other = successor()
    other.kill()
    second = node.run("b", memory="4Gi")
    third = successor()
    third.kill_worker()
    third.wait_event("standing by", 2)
    node.kubelet.delete_pod(first)
    hand_over(node, third)
    node.run("c", memory="4Gi")
    assert second.container().restarts == 0


def test_a_successor_that_is_killed_right_after_the_handover_is_started_again(node, successor, unnoticed):
    first = node.run("a", memory="4Gi")
    for number in range(3):
        other = successor()
        assert node.agent.terminate() == 0
        other.kill_worker()
        coming = node.create(f"b{number}", memory="2Gi")
        other.wait_event("taken over")
        taken_over(node, other)
        coming.wait("Running")
    assert first.container().restarts == 0
    assert len(recorded(node.agent.state).allocations) == 4


def test_a_front_that_is_killed_while_it_takes_over_has_changed_nothing(node, successor, unnoticed):
    """The older one starts its agent again, which has the call that was held, and hands over to the next."""
    first = node.run("a", memory="4Gi")
    other, worker = successor(process=DyingAgent, armed=(dying.TAKE_OVER_STEP, "after")), node.agent.worker
    worker.suspend()
    coming = node.create("b", memory="4Gi")
    wait_until(lambda: len(node.kubelet.claims.names("NodePrepareResources")) == 2, "the call")
    node.agent.process.send_signal(signal.SIGTERM)
    assert other.process.wait(60) == -signal.SIGKILL
    other.process = None
    node.agent.wait_event("successor lost; serving on")
    next_one = successor(until="")
    coming.wait("Running")
    assert node.agent.process.wait(60) == 0
    next_one.wait_event("taken over")
    taken_over(node, next_one)
    third = node.run("c", memory="4Gi")
    assert [pod_of.container().restarts for pod_of in (first, coming, third)] == [0, 0, 0]
    assert len(recorded(node.agent.state).allocations) == 3


def test_a_successor_takes_over_from_a_front_that_is_killed(node, successor):
    """Files and sockets are made anew then, and the kubelet finds the driver again."""
    first = node.run("a", memory="4Gi")
    other = successor()
    node.agent.kill()
    coming = node.create("b", memory="4Gi")
    other.wait_event("registered")
    taken_over(node, other)
    coming.wait("Running")
    assert first.container().restarts == 0
    node.kubelet.delete_pod(first)
    node.kubelet.delete_pod(coming)
    wait_nothing_left(node.kubelet, node.agent.state)


def test_device_plugins_and_claims_are_handed_over_together(begin, directory, api):
    """On a node that was moved while pods had something by the other API."""
    api.answers.pod_policy = True
    claims = begin(gpus=2, gib=24, settings=PATIENT, serves=False, api="device-plugin")
    claims.kubelet.wait_allocatable(RESOURCE, 48)
    old = claims.kubelet.run_pod(pod("old", 8))
    assert claims.agent.terminate() == 0
    claims.agent.start(api="dra")
    claims.agent.flags["--api"] = "dra"
    claims.wait_served(2)
    new = claims.run("new", memory="4Gi")
    before, slices = sockets(claims), versions(claims)
    streams = len(claims.kubelet.registry.stream_ends)
    other = AgentProcess(directory, claims.kubelet.plugin_directory, claims.kubelet.pod_resources_socket)
    other.inventory.write_text(claims.agent.inventory.read_text())
    other.flags, other.output = dict(claims.agent.flags), directory / "agent-next.log"
    other.start(standby="on")
    other.wait_event("standing by")
    claims.agent.wait_event("successor is ready")
    hand_over(claims, other)
    old.container("c0").process.kill()
    wait_until(lambda: old.container("c0").restarts == 1 and old.container("c0").running, "the restart")
    claims.run("newer", memory="4Gi")
    assert sockets(claims) == before and versions(claims) == slices
    assert len(claims.kubelet.registry.stream_ends) == streams
    assert new.container().restarts == 0
