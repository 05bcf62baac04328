# SPDX-License-Identifier: Apache-2.0
"""A node that serves claims, for every test of it; the parts are in node.py."""

from __future__ import annotations

import pytest

from tests.fakes.claims import ClaimPlane
from tests.fakes.kubeapi import NODE, ApiServer
from tests.fakes.kubeapi.device_documents import DRIVER, class_document
from tests.fakes.kubelet import FakeKubelet, Runtime
from tests.fakes.kubelet.cdi import write_nvidia
from tests.integration.agent.conftest import AgentProcess, directory, driver, inventory_text, program
from tests.integration.claims.node import CLAIM_QUICK, ClaimNode, claim_flags

__all__ = ["directory", "driver", "program"]


@pytest.fixture
def api():
    """An API server that has the node and the class of our devices."""
    with ApiServer(NODE) as made:
        made.create("deviceclasses", class_document())
        yield made


@pytest.fixture
def begin(directory, api):
    """Starts a node of GPUs of GIB, whose agent serves claims; flags are those of the agent.

    machine: the environment of a simulated driver, whose GPUs these are then. serves: wait until its devices can be
    allocated. process: what the agent is. classes, expressions: as of the allocator.
    """
    started = []

    def start(
        gpus=4, gib=24, settings=CLAIM_QUICK, *, machine=None, serves=True, process=AgentProcess, **more
    ):
        selectors = {name: more.pop(name, None) for name in ("classes", "expressions")}
        plane = ClaimPlane(api, **selectors)
        kubelet = FakeKubelet(directory / "kubelet", 7, settings=settings, runtime=Runtime("plain"), api=api)
        agent = process(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
        agent.inventory.write_text(inventory_text(gpus, gib=gib))
        agent.flags |= {"--kubeconfig": api.kubeconfig(directory), **claim_flags(kubelet)}
        if machine is not None:
            agent.driver = machine
            agent.flags["--inventory"] = "nvml"
        agent.flags |= {"--" + name.replace("_", "-"): value for name, value in more.items()}
        node = ClaimNode(api, plane, kubelet, agent)
        started.append(node)
        plane.start()
        kubelet.start()
        (kubelet.directory / "plugins" / DRIVER).mkdir(exist_ok=True)  # as the chart's volume does
        agent.start()
        agent.wait_event("watching")
        names = [event["gpu"] for event in agent.events("GPU found")]
        write_nvidia(kubelet.cdi_directory, names)
        if serves:
            node.wait_served(gpus)
        return node

    yield start
    for node in started:
        if node.agent.process is not None:
            assert node.agent.terminate() == 0
        node.kubelet.close()
        node.plane.stop()
        assert "Traceback" not in node.agent.output.read_text()
