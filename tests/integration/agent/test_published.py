"""What the agent publishes of its node: stand-ins of API server and kubelet, and the agent as a process of its own."""

import time

import pytest

from gigaslice.cluster.inventory import NodeInventory
from gigaslice.model import Occupant, Share
from tests.fakes.kubeapi import NODE, ApiServer, Fault
from tests.fakes.kubelet import FakeKubelet, Runtime
from tests.fakes.nodes import uuid
from tests.integration.agent.conftest import (
    PATIENCE,
    QUICK,
    RESOURCE,
    AgentProcess,
    gpu_of,
    inventory_text,
    pod,
    wait_until,
)

KEY = "gigaslice.io/inventory"


@pytest.fixture
def api():
    with ApiServer(NODE) as made:
        yield made


@pytest.fixture
def begin(directory, api):
    started = []

    def start(gpus=2):
        kubelet = FakeKubelet(directory / "kubelet", 7, settings=QUICK, runtime=Runtime("plain"), api=api)
        agent = AgentProcess(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
        agent.inventory.write_text(inventory_text(gpus))
        agent.flags |= {"--kubeconfig": api.kubeconfig(directory), "--node-name": NODE}
        agent.flags |= {"--gpu-labels": "rack=r7"}
        started.append((kubelet, agent))
        kubelet.start()
        agent.start()
        kubelet.wait_allocatable(RESOURCE, gpus * 24, PATIENCE)
        return kubelet, agent

    yield start
    for kubelet, agent in started:
        if agent.process is not None:
            assert agent.terminate() == 0
        kubelet.close()
        assert "Traceback" not in agent.output.read_text()


def published(api):
    text = api.get("nodes", NODE)["metadata"].get("annotations", {}).get(KEY)
    return NodeInventory.decode(text) if text else None


def free(api):
    found = published(api)
    return found and [one.free for one in found.gpus]


def test_what_a_pod_takes_and_gives_back_is_published(begin, api):
    kubelet, _ = begin()
    wait_until(lambda: free(api) == [24, 24], "published")
    assert published(api).gpus[0].properties == {"rack": "r7"}
    one = kubelet.run_pod(pod("a", 8))
    gpu = 0 if gpu_of(one.container("c0")) == uuid(0) else 1
    wait_until(lambda: sorted(free(api)) == [16, 24], "the pod's GPU has less")
    uid = api.get("pods", "a", "default")["metadata"]["uid"]
    assert published(api).held == (Occupant(uid, (Share(uuid(gpu), 8),)),)
    kubelet.delete_pod(one)
    wait_until(lambda: free(api) == [24, 24], "given back")
    assert published(api).held == ()


def test_a_gpu_that_fails_and_heals_is_published_each_time(begin, api):
    _, agent = begin()
    wait_until(lambda: free(api), "published")
    text = agent.inventory.read_text()
    agent.inventory.write_text(text.replace("numa: 1}", "numa: 1, healthy: false}"))
    wait_until(lambda: published(api).gpus[1].unhealthy, "unhealthy")
    version, writes = api.version, len(api.accepted("PATCH", "/nodes/"))
    time.sleep(1.5)
    assert (api.version, len(api.accepted("PATCH", "/nodes/"))) == (version, writes), (
        "written without a change"
    )
    agent.inventory.write_text(text)
    wait_until(lambda: not published(api).gpus[1].unhealthy, "healthy")


def test_without_the_right_the_agent_serves_its_pods_and_says_it_once(begin, api):
    api.faults.append(Fault("PATCH", "/nodes/", 403))
    kubelet, agent = begin()
    one = kubelet.run_pod(pod("a", 8))
    assert one.phase == "Running"
    name = "node not annotated; the cluster's parts do not see this node's GPUs"
    agent.wait_event(name)
    kubelet.delete_pod(one)
    assert kubelet.run_pod(pod("b", 8)).phase == "Running"
    assert len(agent.events(name)) == 1
    assert len(api.sent("PATCH", "/nodes/")) == 1
