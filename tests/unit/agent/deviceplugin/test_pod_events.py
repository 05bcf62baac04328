# SPDX-License-Identifier: Apache-2.0
"""What a pod is told of its allocations."""

import pytest

from agent.deviceplugin.pod_events import PodEvents
from agent.deviceplugin.requester import ContainerMatch, Requester
from tests.fakes.cluster import MemoryCluster
from tests.fakes.nodes import device_ids, uuid
from tests.fakes.pods import gpu_pod

GPU = "gigaslice.io/vgpu-memory"


@pytest.mark.parametrize("asked, mistakes", [("1", []), ("two", ['"two" must be a whole number'])])
def test_a_pod_is_told_what_it_got_and_which_annotations_are_wrong(allocator, asked, mistakes):
    cluster = MemoryCluster()
    pod = gpu_pod("p", 2, gpus=asked)
    identified = ContainerMatch(Requester(pod, pod.containers[0]))
    made = allocator.allocate([device_ids(0, 1, 2)], identified)
    PodEvents(allocator, cluster).allocated(identified, made)
    assert cluster.said("GPUAllocated") == [f"2 GiB of {uuid(0)} for container default/p/c0"]
    texts = cluster.said("InvalidAnnotation")
    assert len(texts) == len(mistakes) and all(
        part in text for part, text in zip(mistakes, texts, strict=True)
    )
