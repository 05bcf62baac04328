# SPDX-License-Identifier: Apache-2.0
"""An agent of a release and one of today on one node: upgrade, way back, by handing over and after a kill.

The release's agent is its own code (conftest.py), so this is the upgrade of the day after, as a node sees it: the
kubelet's connections go from one version's front to the other's, and the state directory with them.
"""

from __future__ import annotations

import pytest

from tests.integration.agent.conftest import (
    PATIENCE,
    RESOURCE,
    AgentProcess,
    agent,
    allocation_dir,
    directory,
    kubelet,
    node,
    pod,
    wait_until,
)
from tests.integration.agent.test_crash import rpc_answers

__all__ = ["agent", "directory", "kubelet", "node"]
SLICES = 48


@pytest.fixture
def begin(directory, kubelet, release):
    """begin(of) -> an agent of the release, or of today, on the node's directories; not started."""
    made = []

    def make(of):
        one = AgentProcess(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
        one.output = directory / f"agent-{len(made)}.log"
        if of == "release":
            one.root, one.driver = release.tree, release.environment
        made.append(one)
        return one

    yield make
    for one in made:
        if one.process is not None:
            one.kill()
        assert "Traceback" not in one.output.read_text()


def holdings(one):
    return sorted((row["allocation"], row["pod"], row["gpu"], row["limit_bytes"]) for row in one.status())


@pytest.mark.parametrize("how", ["handed over", "killed"])
def test_a_node_is_upgraded_and_goes_back(kubelet, begin, how):
    """Today's agent takes over from the release's, that from today's; no pod notices, and none is forgotten."""
    present = begin("release")
    kubelet.start()
    present.start()
    kubelet.wait_allocatable(RESOURCE, SLICES, PATIENCE)
    running = [kubelet.run_pod(pod("a", 8)), kubelet.run_pod(pod("b", 4, 4))]
    for number, of in enumerate(("today", "release", "today")):
        wait_until(lambda one=present: all(row[1] for row in holdings(one)), "the names of all pods")
        before = holdings(present)
        following = begin(of)
        if how == "handed over":
            following.start(standby="on")
            present.wait_event("successor is ready")
            assert present.terminate() == 0
            following.wait_event("taken over")
        else:
            present.kill()
            following.start()
        wait_until(
            lambda one=following: kubelet.allocatable().get(RESOURCE) == SLICES and rpc_answers(one),
            "registration",
        )
        assert holdings(following) == before
        running.append(kubelet.run_pod(pod(f"c{number}", 2)))
        present = following
    for made in running:
        for container in made.containers:
            assert container.running and container.restarts == 0
            assert allocation_dir(container).is_dir()
    if how == "handed over":
        assert kubelet.registry.registrations == [RESOURCE] and kubelet.registry.stream_ends == []
    assert len(holdings(present)) == 6
