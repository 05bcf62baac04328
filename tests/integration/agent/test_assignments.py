# SPDX-License-Identifier: Apache-2.0
"""Assigned pods on a node: stand-ins of API server and kubelet, and the agent as a process of its own."""

import random
from dataclasses import replace

import pytest

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.model import Share
from tests.fakes.nodes import GIB, uuid
from tests.integration.agent.conftest import (
    PATIENCE,
    RESOURCE,
    PatientAgent,
    asking,
    free_slices,
    gpu_limits,
    pod,
    published_inventory,
    wait_back,
    wait_until,
)


def assigned(name, *containers):
    """A pod of containers with these shares each, as the scheduler binds it."""
    shares = {
        f"c{number}": tuple(Share(uuid(gpu), n) for gpu, n in one) for number, one in enumerate(containers)
    }
    counts = [sum(n for _, n in one) for one in containers]
    return pod(name, *counts, annotations={ASSIGNMENT: Assignment(shares).encode()})


def limits(container):
    return {gpu.uuid: gpu.memory_bytes // GIB for gpu in gpu_limits(container)}


@pytest.mark.parametrize("policy", ["none", "restricted"])
def test_a_burst_gets_exactly_what_was_assigned_over_kills_of_agent_and_kubelet(begin, api, policy):
    kubelet, agent = begin(policy=policy, process=PatientAgent)
    chance = random.Random(5)
    wanted, pods = {}, []
    for number in range(12):
        gpu, slices = number % 4, chance.randint(1, 6)
        wanted[f"p{number}"] = {uuid(gpu): slices}
        pods.append(kubelet.create_pod(assigned(f"p{number}", [(gpu, slices)])))
        if number == 4:
            agent.kill_worker()
    for one in pods:
        one.wait_for(lambda one: one.phase != "Pending", PATIENCE)
    assert {one.spec.name: limits(one.container("c0")) for one in pods if one.phase == "Running"} == wanted
    agent.kill()
    kubelet.restart()
    agent.start()
    wait_back(kubelet, agent, 96)
    late = kubelet.run_pod(assigned("late", [(0, 2), (3, 1)]))
    assert limits(late.container("c0")) == {uuid(0): 2, uuid(3): 1}
    taken = [sum(one.get(uuid(gpu), 0) for one in wanted.values()) for gpu in range(4)]
    left = [24 - taken[0] - 2, 24 - taken[1], 24 - taken[2], 24 - taken[3] - 1]
    wait_until(
        lambda: published_inventory(api) and [one.free for one in published_inventory(api).gpus] == left,
        "published",
    )
    assert published_inventory(api).held == ()


def test_a_watch_that_is_behind_gives_no_pod_another_gpu(begin, api):
    kubelet, agent = begin(process=PatientAgent)
    api.lag = 0.15
    pods = [kubelet.create_pod(assigned(f"p{number}", [(3 - number, 4)])) for number in range(3)]
    for one in pods:
        one.wait_for(lambda one: one.phase != "Pending", PATIENCE)
        assert one.phase == "Running", one.message
    assert [limits(one.container("c0")) for one in pods] == [{uuid(3 - n): 4} for n in range(3)]
    assert not any(one["undecided"] for one in agent.events("allocated"))


def test_a_watch_that_is_a_second_behind_is_waited_for(begin, api):
    kubelet, _ = begin(process=PatientAgent)
    kubelet.run_pod(assigned("first", [(0, 20)]))
    api.lag = 1.0
    late = kubelet.run_pod(assigned("late", [(3, 4)]))
    assert limits(late.container("c0")) == {uuid(3): 4}
    assert not api.events("AssignmentNotExecutable")


def test_a_pod_that_the_watch_does_not_show_is_read_past_it(begin, api):
    kubelet, _ = begin(process=PatientAgent)
    kubelet.run_pod(assigned("first", [(0, 20)]))
    api.lag = 30.0
    late = kubelet.run_pod(assigned("late", [(3, 4)]))
    assert limits(late.container("c0")) == {uuid(3): 4}
    assert not api.events("AssignmentNotExecutable")


def test_a_server_that_does_not_answer_ends_in_a_refused_start_and_never_on_another_gpu(begin, api):
    kubelet, agent = begin()
    first = kubelet.run_pod(assigned("first", [(0, 20)]))
    agent.wait_event("watching")  # a list under way would still show the next pod
    api.hanging = True
    late = kubelet.create_pod(assigned("late", [(3, 4)]))  # left to itself, the agent fills the first GPU
    agent.wait_event("pods not read")
    agent.wait_event("start delayed")
    api.hanging = False
    said = wait_until(lambda: api.events("AssignmentNotExecutable"), "said")
    assert f"it was assigned 4 slices of {uuid(3)}; delete the pod" in said[0]["message"]
    assert late.phase == "Pending"
    kubelet.delete_pod(late)
    again = kubelet.run_pod(assigned("again", [(3, 4)]))
    assert limits(again.container("c0")) == {uuid(3): 4}
    assert limits(first.container("c0")) == {uuid(0): 20}


def test_the_gpu_of_an_init_container_stays_its_pods_where_no_other_of_it_has_it(begin, api):
    """The kubelet gives its device IDs to the next container, which was assigned another GPU."""
    kubelet, agent = begin(gpus=2)
    shares = {"i0": (Share(uuid(0), 8),), "c0": (Share(uuid(1), 8),)}
    spec = replace(
        pod("both", 8, annotations={ASSIGNMENT: Assignment(shares).encode()}),
        init_containers=(asking(8, "i0", command=("true",)),),
    )
    both = kubelet.create_pod(spec)
    both.wait_for(lambda one: one.phase == "Running", PATIENCE)
    assert limits(both.container("i0")) == {uuid(0): 8}
    assert limits(both.container("c0")) == {uuid(1): 8}
    wait_until(lambda: free_slices(api) == [16, 16], "published")
    kubelet.wait_allocatable(RESOURCE, 40, PATIENCE)
    agent.kill_worker()
    late = kubelet.create_pod(pod("late", 20))
    agent.wait_event("start delayed")
    assert late.phase == "Pending"
    kubelet.delete_pod(both)
    late.wait_for(lambda one: one.phase != "Pending", PATIENCE)
    assert late.phase == "Running"


def test_a_full_gpu_frees_the_pod_that_waits_for_it(begin, api):
    kubelet, agent = begin(gpus=2)
    plain = kubelet.run_pod(pod("plain", 20))
    (on,) = limits(plain.container("c0"))
    number = 0 if on == uuid(0) else 1
    sent = kubelet.create_pod(assigned("sent", [(number, 8)]))
    agent.wait_event("start delayed")
    assert sent.phase == "Pending"
    wait_until(lambda: api.events("WaitingForGPU"), "said")
    kubelet.delete_pod(plain)
    sent.wait_for(lambda one: one.phase != "Pending", PATIENCE)
    assert limits(sent.container("c0")) == {on: 8}


def test_a_gpu_that_is_not_there_fails_the_pod_with_the_sentence(begin, api):
    kubelet, _ = begin(gpus=2)
    lost = kubelet.run_pod(assigned("lost", [(7, 8)]))
    assert lost.phase == "Failed"
    assert f"names {uuid(7)}, which this node does not have" in lost.message
    assert kubelet.run_pod(assigned("next", [(1, 8)])).phase == "Running"
