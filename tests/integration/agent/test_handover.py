# SPDX-License-Identifier: Apache-2.0
"""The agent away for a moment, and an upgrade: the kubelet sees neither, and no pod fails.

A node reports its slices every ten seconds. What the kubelet loses in between the scheduler does not know: what it
binds fails, is made anew and fails again. So these nodes report as seldom.
"""

import os
import signal
import threading
import time

import grpc
import psutil
import pytest

from agent.control import client
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from agent.persistence.store import read_only
from agent.roles.records import CODEC
from gigaslice.core.deviceplugin.origin import plugin
from tests.fakes.kubelet import ContainerSpec, PodSpec
from tests.fakes.kubelet.deployment import Deployment
from tests.integration.agent.conftest import (
    PATIENCE,
    RESOURCE,
    AgentProcess,
    ProgramAgent,
    allocation_dir,
    inventory_text,
    pod,
    wait_until,
)

SLICES = 64
WHOLE = "gigaslice.io/gpu"


@pytest.fixture
def node(kubelet, agent):
    agent.inventory.write_text(inventory_text(4, 16))
    kubelet.start()
    agent.start()
    kubelet.wait_allocatable(RESOURCE, SLICES, PATIENCE)
    kubelet.report_every(10.0)
    return kubelet


@pytest.fixture
def deployment(node):
    made = Deployment(node, lambda number: pod(f"d{number}", 4), 8)
    yield made
    if made.is_alive():
        made.end()


@pytest.fixture
def successor(directory, kubelet, agent):
    """Another agent for the same node, ready: the pod that a rolling update starts beside the old one."""
    others = []

    def start(*, until="standing by", process=AgentProcess, **flags):
        other = process(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
        other.output = directory / f"agent-{len(others)}.log"
        other.inventory.write_text(inventory_text(4, 16))
        other.start(standby="on", **flags)
        others.append(other)
        if until:
            other.wait_event(until)
        return other

    yield start
    for other in others:
        if other.process is not None:
            other.kill()
        assert "Traceback" not in other.output.read_text()


def all_run(deployment):
    wait_until(lambda: deployment.running() == deployment.replicas, "all pods to run")


@pytest.mark.parametrize("reason", ["grown", "whole"])
def test_an_agent_that_starts_anew_shows_no_slice_that_it_takes_back(kubelet, agent, reason):
    """The scheduler would bind pods by it, which the kubelet fails."""
    agent.flags["--whole-gpus"] = WHOLE
    agent.inventory.write_text(inventory_text(4, 16))
    kubelet.start()
    agent.start()
    kubelet.wait_allocatable(RESOURCE, SLICES, PATIENCE)
    if reason == "whole":
        kubelet.wait_allocatable(WHOLE, 4, PATIENCE)
        assert kubelet.run_pod(PodSpec("a", (ContainerSpec("c0", {WHOLE: 1}),))).phase == "Running"
    else:
        kubelet.run_pod(pod("a", 4))
        wait_until(lambda: [row for row in agent.status() if row["pod"] == "a"], "the name")
        client.resize(agent.state, namespace="default", pod="a", memory=12 << 30)
    left = SLICES - {"whole": 16, "grown": 8}[reason]
    kubelet.wait_allocatable(RESOURCE, left, PATIENCE)
    shown, devices = [], kubelet.manager.devices

    def watch(resource, listed):
        if resource == RESOURCE:
            shown.append(sum(one.health == "Healthy" for one in listed))
        devices(resource, listed)

    kubelet.manager.devices = watch
    agent.kill_worker()
    agent.wait_event("metrics served", 2)
    assert kubelet.run_pod(pod("b", 1)).phase == "Running"
    assert set(shown) <= {left}


def test_a_killed_agent_fails_no_pod(node, agent, deployment):
    """Without a front 24 failed in the two seconds until the agent was back."""
    agent.kill_worker()
    deployment.start()
    all_run(deployment)
    for _ in range(3):
        deployment.replace(3)
        agent.kill_worker()
        all_run(deployment)
    assert deployment.end() == []
    assert node.registry.registrations == [RESOURCE] and node.registry.stream_ends == []
    assert len(agent.events("agent ended; restarted")) == 4


def test_an_agent_that_may_stand_by_does_not_wait_for_its_own_front(kubelet, agent, successor):
    """As the DaemonSet starts it: killed alone, and again after it has taken over."""
    agent.inventory.write_text(inventory_text(4, 16))
    kubelet.start()
    agent.start(standby="on")
    kubelet.wait_allocatable(RESOURCE, SLICES, PATIENCE)
    agent.kill_worker()
    kubelet.create_pod(pod("a", 8)).wait_for(lambda one: one.phase == "Running", PATIENCE)
    other = successor()
    assert agent.terminate() == 0
    other.wait_event("taken over")
    for name in ("b", "c"):
        other.kill_worker()
        kubelet.create_pod(pod(name, 8)).wait_for(lambda one: one.phase == "Running", PATIENCE)
    assert kubelet.registry.stream_ends == []


def test_an_allocation_that_the_agent_did_not_live_to_answer_is_answered_by_the_next(node, agent):
    """Frozen before it can answer, then killed: the call stays with the front."""
    worker = agent.worker
    worker.suspend()
    made = begin_allocation(node, pod("a", 8))
    assert made.phase == "Pending"
    worker.kill()
    made.wait_for(lambda one: one.phase == "Running", PATIENCE)
    assert len(read_only(agent.state, CODEC)[0].allocations) == 1


def test_an_allocation_that_was_recorded_is_not_made_twice(node, agent):
    """Killed between the record and the answer: the next agent answers with what it finds."""
    with grpc.insecure_channel(f"unix:{agent.socket}") as channel:
        call = rpc.DevicePluginStub(channel).Allocate
        device_ids = sorted(node.manager.healthy[RESOURCE])[:4]
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=device_ids)]
        )
        for round_number in range(8):
            worker = wait_until(lambda: agent.worker, "the agent")
            answers = []
            caller = threading.Thread(
                target=lambda answers=answers: answers.append(call(request, timeout=60))
            )
            caller.start()
            time.sleep(0.001 * round_number)
            worker.kill()
            caller.join(60)
            (response,) = answers[0].container_responses
            source = next(m.host_path for m in response.mounts if m.container_path == "/etc/vcuda/limits")
            newest = max(
                read_only(agent.state, CODEC)[0].allocations, key=lambda allocation: allocation.number
            )
            assert newest.id in source, "the answer is of the allocation that counts"
            assert plugin(newest).device_ids == frozenset(device_ids)
            wait_until(lambda worker=worker: agent.worker not in (None, worker), "the next agent")


def begin_allocation(node, spec):
    """Creates a pod, and returns it when the agent's front has the kubelet's first call for it."""
    stub, begun = node.manager.endpoints[RESOURCE].stub, threading.Event()
    prefer = stub.GetPreferredAllocation

    def noted(request):
        call = prefer.future(request)
        begun.set()
        return call.result()

    stub.GetPreferredAllocation = noted
    made = node.create_pod(spec)
    assert begun.wait(PATIENCE)
    stub.GetDevicePluginOptions(api.Empty())  # comes after it, and is answered by the front
    return made


def test_calls_in_flight_end_before_the_agent_does(node, agent):
    """An allocation under way when the agent is asked to end is answered, and by that agent."""
    running = node.run_pod(pod("a", 8))
    worker = agent.worker
    worker.suspend()
    made = begin_allocation(node, pod("b", 8))
    os.kill(agent.process.pid, signal.SIGTERM)
    time.sleep(0.2)
    worker.resume()
    assert agent.process.wait(PATIENCE) == 0
    agent.process = None
    assert made.wait_for(lambda one: one.phase != "Pending" or one.containers[0].waiting, PATIENCE)
    assert made.phase != "Failed", made.message
    assert running.container("c0").running


def test_an_upgrade_is_a_hand_over(node, agent, deployment, successor):
    """Successor beside it, then asked to end, as a rolling update with maxSurge does."""
    deployment.start()
    all_run(deployment)
    present = agent
    for _ in range(3):
        other = successor()
        present.wait_event("successor is ready")
        deployment.replace(3)
        assert present.terminate() == 0
        other.wait_event("taken over")
        all_run(deployment)
        present = other
    node.run_pod(pod("last", 4))
    assert deployment.end() == []
    assert node.registry.registrations == [RESOURCE] and node.registry.stream_ends == []
    assert present.socket.is_socket()
    node.restart()  # its new socket is the one that serves
    node.wait_allocatable(RESOURCE, SLICES, PATIENCE)
    assert node.run_pod(pod("after", 4)).phase == "Running"
    assert present.terminate() == 0
    assert not present.socket.exists()


class StartingAgent(ProgramAgent):
    """An agent that stops when it has announced itself."""

    module = "tests.integration.agent.starting"


def starting(agent, successor, **flags):
    """A successor that has announced itself, and gets no further until it is resumed."""
    other = successor(until="", process=StartingAgent, **flags)
    agent.wait_event("successor is starting")
    wait_until(lambda: other.worker and other.worker.status() == psutil.STATUS_STOPPED, "its stop")
    return other


def test_an_agent_that_is_asked_to_end_waits_for_a_successor_that_is_starting(
    node, agent, deployment, successor
):
    """23 pods failed in six rollouts where the old pods were ended before the new ones were ready."""
    other = starting(agent, successor)
    agent.process.terminate()
    deployment.start()
    all_run(deployment)
    assert agent.process.poll() is None and agent.events("handed over") == []
    other.worker.resume()
    assert agent.process.wait(PATIENCE) == 0
    agent.process = None
    other.wait_event("taken over")
    deployment.replace(3)
    all_run(deployment)
    assert deployment.end() == []
    assert node.registry.registrations == [RESOURCE] and node.registry.stream_ends == []


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_successor_that_ends_before_it_is_ready_is_waited_for_no_longer(node, agent, successor, end):
    """Asked to end as all pods of a node are at its shutdown, or at uninstall."""
    other = starting(agent, successor)
    agent.process.terminate()
    time.sleep(0.5)
    assert agent.process.poll() is None
    if end == "kill":
        other.kill()
    else:
        other.process.terminate()  # its agent is suspended, and cannot end by itself
    assert agent.process.wait(PATIENCE) == 0
    agent.process = None
    assert agent.events("successor not ready in time") == []


def test_an_agent_without_a_successor_waits_for_none(node, agent, successor):
    other = starting(agent, successor)
    other.kill()
    assert agent.terminate() == 0
    assert agent.events("successor not ready in time") == []


def test_a_successor_stands_by_while_the_agent_of_the_one_before_is_not_ready_yet(node, agent, successor):
    """Nothing holds the state directory at that moment, and its lock is not the next one's to take."""
    second = successor()
    agent.wait_event("successor is ready")
    second.worker.suspend()
    assert agent.terminate() == 0
    second.wait_event("taken over")
    third = successor()
    second.wait_event("successor is ready")
    second.worker.resume()
    second.wait_event("state loaded")
    assert second.terminate() == 0
    third.wait_event("taken over")  # the streams, too, unless the second agent was away for too long
    wait_until(lambda: node.manager.capacity()[1].get(RESOURCE) == SLICES, "slices")
    assert node.run_pod(pod("a", 4)).phase == "Running"


def test_a_killed_agent_of_a_successor_is_started_again_and_takes_over(node, agent, successor):
    """The front beside it holds the place of the next one; it goes on, before the hand-over and in the midst of it."""
    running = node.run_pod(pod("a", 8))
    other = successor()
    agent.wait_event("successor is ready")
    other.kill_worker()
    other.wait_event("standing by", 2)
    other.worker.suspend()
    assert agent.terminate() == 0
    other.wait_event("taken over")
    other.worker.kill()
    assert node.run_pod(pod("b", 4)).phase == "Running"
    assert running.container("c0").running
    assert node.registry.registrations == [RESOURCE] and node.registry.stream_ends == []
    assert len(agent.events("successor is ready")) == 1, "its front never went away"


def test_a_successor_takes_over_from_one_that_is_killed(node, agent, successor):
    running = node.run_pod(pod("a", 8))
    other = successor()
    agent.wait_event("successor is ready")
    agent.kill()
    other.wait_event("registered")
    wait_until(lambda: node.manager.capacity()[1].get(RESOURCE) == SLICES, "slices")
    assert node.run_pod(pod("b", 4)).phase == "Running"
    assert running.container("c0").running
    assert len(other.status()) == 2


def test_a_successor_that_is_asked_to_end_leaves_nothing(node, agent, successor):
    other = successor()
    agent.wait_event("successor is ready")
    assert other.terminate() == 0
    assert node.run_pod(pod("a", 8)).phase == "Running"
    third = successor()
    agent.wait_event("successor is ready", 2)
    third.kill()
    assert agent.terminate() == 0


def test_a_start_decision_that_waits_is_handed_over(node, agent, successor):
    """A PreStartContainer under way is asked again of the successor, and the kubelet does not notice."""
    running = node.run_pod(pod("a", 4))
    assert allocation_dir(running.container("c0")).is_dir()
    other = successor()
    agent.wait_event("successor is ready")
    worker = agent.worker
    worker.suspend()
    made = node.create_pod(pod("b", 4))
    time.sleep(0.3)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(PATIENCE) == 0  # the frozen one is killed, and its call goes over
    agent.process = None
    other.wait_event("taken over")
    made.wait_for(lambda one: one.phase == "Running", PATIENCE)
    assert node.registry.stream_ends == []


def test_an_agent_that_cannot_start_again_is_not_waited_for(node, agent):
    """It has ended by itself three times: people and the kubelet see that, as they see an agent that ends."""
    agent.inventory.write_text("half written")
    worker = agent.worker
    worker.kill()
    assert agent.process.wait(PATIENCE) == 2
    agent.process = None
    assert not agent.socket.exists()
    wait_until(lambda: node.registry.stream_ends == ["EOF"], "the end of the stream")


def test_the_front_is_small(node, agent):
    """What it has beside what it shares with its child; `import grpc` alone would be 31 MiB."""
    node.run_pod(pod("a", 8))
    assert psutil.Process(agent.process.pid).memory_full_info().uss < 12 << 20
