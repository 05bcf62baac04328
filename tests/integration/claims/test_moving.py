# SPDX-License-Identifier: Apache-2.0
"""A node that is moved from one of the kubelet's APIs to the other and back, with pods of both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gigaslice.core.kube.quantity import parse_quantity
from tests.fakes.kubelet import ContainerSpec, PodSpec
from tests.integration.agent.conftest import RESOURCE, gpu_limits, gpu_of, pod, wait_until
from tests.integration.claims.node import CLAIM_QUICK, gpus_of
from tests.integration.claims.oracle import Books, compare, device, recorded, wait_nothing_left

GIB = 1 << 30
WHOLE = "gigaslice.io/gpu"
NEVER = 3600.0
PATIENT = replace(CLAIM_QUICK, claims=replace(CLAIM_QUICK.claims, call_s=45.0, resync_s=NEVER))


@pytest.fixture
def node(begin, api):
    api.answers.pod_policy = True
    made = begin(gpus=2, gib=24, settings=PATIENT, serves=False, api="device-plugin", whole_gpus=WHOLE)
    made.kubelet.wait_allocatable(RESOURCE, 48)
    return made


def move(node, api):
    """Starts the node's agent with the other API for what is new."""
    assert node.agent.terminate() == 0
    count = len(node.agent.events("watching"))
    node.agent.flags["--api"] = api
    node.agent.start()
    node.agent.wait_event("watching", count + 1)


def published(node):
    """GiB of each published device."""
    return {one["name"]: parse_quantity(one["capacity"]["memory"]["value"]) // GIB for one in node.devices()}


def wait_published(node, expected):
    """Returns when that many GiB of each GPU are published."""
    wanted = {device(gpu): size for gpu, size in expected.items()}
    wait_until(lambda: published(node) == wanted, f"{wanted}, not {published(node)}")


def wait_devices(node, count, resource=RESOURCE):
    """Returns when the scheduler has been shown so many healthy devices."""
    node.kubelet.wait_allocatable(resource, count)


def restart(container):
    """Kills a container's program, and returns when it runs again."""
    before = container.restarts
    container.process.kill()
    wait_until(lambda: container.restarts > before and container.running, "the restart")


def gpus(node):
    """The node's GPUs."""
    return sorted({event["gpu"] for event in node.agent.events("GPU found")})


def total(node):
    """GiB that are promised of each GPU, by whatever API."""
    promised = dict.fromkeys(gpus(node), 0)
    for allocation in recorded(node.agent.state).allocations:
        for gpu, size in allocation.quota().items():
            promised[gpu] += size // GIB
    return promised


def test_there_and_back(node):
    old = node.kubelet.run_pod(pod("old", 8))
    held = gpu_of(old.container("c0"))
    (other,) = set(gpus(node)) - {held}

    move(node, "dra")
    wait_published(node, {held: 16, other: 24})
    wait_devices(node, 8)
    assert old.container("c0").restarts == 0
    restart(old.container("c0"))
    node.kubelet.restart()
    wait_published(node, {held: 16, other: 24})
    wait_devices(node, 8)
    assert old.phase == "Running" and old.container("c0").running, old.message
    restart(old.container("c0"))
    assert gpu_limits(old.container("c0"))[0].memory_bytes == 8 * GIB

    claimed = [node.run(name, memory=f"{size}Gi") for name, size in (("x", 16), ("y", 20))]
    compare(Books(node.api), node.agent.state, 24 * GIB)
    assert total(node) == {held: 24, other: 20}
    waiting = node.create("z", memory="5Gi")
    wait_until(lambda: waiting.reason == "Unschedulable", "the refusal")
    node.kubelet.delete_pod(waiting)

    node.kubelet.delete_pod(old)
    wait_published(node, {held: 24, other: 24})
    wait_until(lambda: not node.agent.socket.exists(), "the end of the device plugin")
    third = node.run("third", memory="8Gi")

    move(node, "device-plugin")
    wait_until(lambda: not node.devices(), "the end of the slices")
    wait_devices(node, 4)
    assert all(one.container().restarts == 0 for one in (*claimed, third))
    restart(claimed[0].container())
    new = node.kubelet.run_pod(pod("new", 4))
    assert new.phase == "Running" and gpu_of(new.container("c0")) == other
    wait_until(lambda: total(node) == {held: 24, other: 24}, total(node))
    node.kubelet.restart()
    restart(claimed[1].container())
    assert new.container("c0").running and not node.devices()
    for one in (*claimed, third):
        node.kubelet.delete_pod(one)
    wait_devices(node, 48)
    registry = node.kubelet.plugins_registry
    wait_until(lambda: not list(registry.iterdir()), "the end of the driver")
    wait_until(lambda: not node.api.all("resourceslices") and not node.api.all("resourceclaims"), "nothing")
    node.kubelet.delete_pod(new)
    wait_nothing_left(node.kubelet, node.agent.state)


def test_a_pod_of_a_claim_that_ends_leaves_a_node_that_was_moved_back(node):
    """The last claim of a node whose device plugin gives out what is new."""
    move(node, "dra")
    node.wait_served(2)
    claimed = node.run("x", memory="20Gi")
    (gpu,) = gpus_of(claimed.container())
    move(node, "device-plugin")
    wait_devices(node, 28)
    new = [node.kubelet.run_pod(pod(f"n{number}", size)) for number, size in enumerate((24, 4))]
    assert [one.phase for one in new] == ["Running", "Running"]
    assert gpu_of(new[1].container("c0")) == gpu != gpu_of(new[0].container("c0"))
    node.kubelet.delete_pod(claimed)
    wait_devices(node, 48)


def whole_pod(name):
    """A pod with a GPU of its own."""
    return PodSpec(name, (ContainerSpec("c0", {WHOLE: 1}),))


def test_whole_gpus(node):
    wait_devices(node, 2, WHOLE)
    old = node.kubelet.run_pod(whole_pod("old"))
    held = gpu_of(old.container("c0"))
    (other,) = set(gpus(node)) - {held}
    wait_devices(node, 24)

    move(node, "dra")
    wait_published(node, {other: 24})
    wait_devices(node, 1, WHOLE)
    wait_devices(node, 0)
    node.kubelet.restart()
    wait_devices(node, 1, WHOLE)
    assert old.phase == "Running" and old.container("c0").running, old.message
    restart(old.container("c0"))
    claimed = node.run("x", memory="4Gi")
    assert gpus_of(claimed.container()) == (other,)
    waiting = node.create("y", memory="24Gi")
    wait_until(lambda: waiting.reason == "Unschedulable", "the refusal")
    node.kubelet.delete_pod(old)
    waiting.wait("Running")
    assert gpus_of(waiting.container()) == (held,)

    move(node, "device-plugin")
    wait_until(lambda: not node.devices(), "the end of the slices")
    wait_devices(node, 20)
    wait_devices(node, 0, WHOLE)
    node.kubelet.delete_pod(waiting)
    wait_devices(node, 1, WHOLE)
    back = node.kubelet.run_pod(whole_pod("back"))
    assert gpu_of(back.container("c0")) == held
    restart(claimed.container())


def test_a_pod_that_waits_with_a_claim_when_its_node_is_moved_back(node):
    """Its claim is allocated here and was not prepared before: the API server has promised that part."""
    move(node, "dra")
    node.wait_served(2)
    first = node.run("first", memory="2Gi")
    node.agent.worker.suspend()
    pod_of = node.create("late", memory="4Gi")
    wait_until(lambda: len(node.kubelet.claims.names("NodePrepareResources")) == 2, "the call")
    node.agent.kill()
    node.agent.flags["--api"] = "device-plugin"
    node.agent.start()
    pod_of.wait("Running")
    compare(Books(node.api), node.agent.state, 24 * GIB)
    for one in (first, pod_of):
        node.kubelet.delete_pod(one)
    wait_nothing_left(node.kubelet, node.agent.state)
