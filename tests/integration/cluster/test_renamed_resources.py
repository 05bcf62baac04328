# SPDX-License-Identifier: Apache-2.0
"""Agents whose resources have other names: their pods are placed like all others."""

from dataclasses import replace

import pytest

from gigaslice.core.cluster.inventory import NodeInventory
from gigaslice.core.cluster.names import INVENTORY
from tests.fakes.eventually import until
from tests.integration.cluster.simulated_cluster import bound, held, inventory, node, play, pod

MEMORY, WHOLE, CLASS = "example.com/gib", "example.com/gpu", "gpuclass.gigaslice.io/big"


def renamed(name):
    found = node(name)
    agents = replace(NodeInventory.decode(inventory(name, resource=MEMORY)), whole_resource=WHOLE)
    found["metadata"]["annotations"][INVENTORY] = agents.encode()
    found["status"]["allocatable"] = {MEMORY: "32", WHOLE: "2"}
    return found


@pytest.mark.parametrize(
    ("limits", "slices"), [({MEMORY: 8}, 8), ({WHOLE: 1}, 16), ({CLASS: 1, WHOLE: 1}, 16)]
)
def test_a_pod_gets_its_gpus_by_the_names_that_the_agents_have(limits, slices):
    async def story(api, service, scheduler):
        document = {"metadata": {"name": "big"}, "spec": {"selector": {"matchLabels": {"model": "NVIDIA A"}}}}
        api.create("resourceclasses", document)
        await until(lambda: len(service.classes) == 1)
        api.create("pods", pod("p", **limits))
        await until(lambda: bound(api))
        assert list(held(api).values()) == [slices]

    play(story, renamed("a"), resource=MEMORY, whole_gpus=WHOLE, standin={"managed": (MEMORY, WHOLE)})
