# SPDX-License-Identifier: Apache-2.0
"""What the agent publishes of its node: stand-ins of API server and kubelet, and the agent as a process of its own."""

import time

from gigaslice.core.model import Occupant, Share
from tests.fakes.kubeapi import Fault
from tests.fakes.nodes import uuid
from tests.integration.agent.conftest import (
    free_slices,
    gpu_of,
    pod,
    published_inventory,
    wait_until,
)


def test_what_a_pod_takes_and_gives_back_is_published(begin, api):
    kubelet, _ = begin(gpus=2, gpu_labels="rack=r7")
    wait_until(lambda: free_slices(api) == [24, 24], "published")
    assert published_inventory(api).gpus[0].properties == {"rack": "r7", "driverLimits": "none"}
    one = kubelet.run_pod(pod("a", 8))
    gpu = 0 if gpu_of(one.container("c0")) == uuid(0) else 1
    wait_until(lambda: sorted(free_slices(api)) == [16, 24], "the pod's GPU has less")
    uid = api.get("pods", "a", "default")["metadata"]["uid"]
    held = (Occupant(uid, (Share(uuid(gpu), 8),)),)
    wait_until(lambda: published_inventory(api).held == held, "whose they are")
    kubelet.delete_pod(one)
    wait_until(lambda: free_slices(api) == [24, 24], "given back")
    assert published_inventory(api).held == ()


def test_a_gpu_that_fails_and_heals_is_published_each_time(begin, api):
    _, agent = begin(gpus=2, gpu_labels="rack=r7")
    wait_until(lambda: free_slices(api), "published")
    text = agent.inventory.read_text()
    agent.inventory.write_text(text.replace("numa: 1}", "numa: 1, healthy: false}"))
    wait_until(lambda: published_inventory(api).gpus[1].unhealthy, "unhealthy")
    version, writes = api.version, len(api.accepted("PATCH", "/nodes/"))
    time.sleep(1.5)
    assert (api.version, len(api.accepted("PATCH", "/nodes/"))) == (version, writes), (
        "written without a change"
    )
    agent.inventory.write_text(text)
    wait_until(lambda: not published_inventory(api).gpus[1].unhealthy, "healthy")


def test_without_the_right_the_agent_serves_its_pods_and_says_it_once(begin, api):
    api.faults.append(Fault("PATCH", "/nodes/", 403))
    kubelet, agent = begin(gpus=2, gpu_labels="rack=r7")
    one = kubelet.run_pod(pod("a", 8))
    assert one.phase == "Running"
    name = "node not annotated; the cluster's parts do not see this node's GPUs"
    agent.wait_event(name)
    kubelet.delete_pod(one)
    assert kubelet.run_pod(pod("b", 8)).phase == "Running"
    assert len(agent.events(name)) == 1
    trial, refused = api.sent("PATCH", "/nodes/")
    assert list(trial["metadata"]["annotations"]) == ["trial.gigaslice.invalid/is-refused"]
    assert list(refused["metadata"]["annotations"]) == ["gigaslice.io/inventory"]
