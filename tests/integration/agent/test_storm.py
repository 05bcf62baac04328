# SPDX-License-Identifier: Apache-2.0
"""The agent killed at random under load; `make test-kills` does it some hundred times."""

from tests.fakes.kubelet import FakeKubelet, Runtime
from tests.integration.agent.conftest import QUICK, AgentProcess
from tests.integration.agent.storm import Breeze, Crowd, Storm


def test_kills_under_load_lose_nothing_and_touch_no_other_process(kubelet, agent):
    storm = Storm(kubelet, agent, seed=5)
    storm.begin()
    try:
        storm.blow(15)
        storm.end()
    finally:
        storm.halt.set()
    assert storm.kills == 15 and storm.made > 15


def test_kills_behind_the_front_and_hand_overs_fail_no_pod(directory, kubelet):
    storm = Breeze(
        kubelet, AgentProcess(directory, kubelet.plugin_directory, kubelet.pod_resources_socket), 3
    )
    storm.begin()
    try:
        storm.blow(10)
        storm.end()
    finally:
        storm.halt.set()
        storm.deployment.halt.set()
        storm.agent.kill()
    assert storm.kills > 5 and storm.handed_over > 1
    assert not [one for one in directory.glob("agent*.log") if "Traceback" in one.read_text()]


def test_kills_on_a_node_that_is_asked_for_more_than_it_has_fail_no_pod(directory, api):
    """41 failed in the first seconds of an agent that took back what it had not yet seen end."""
    with FakeKubelet(directory / "kubelet", 7, settings=QUICK, runtime=Runtime("plain"), api=api) as kubelet:
        agent = AgentProcess(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
        kubelet.stop()
        storm = Crowd(kubelet, agent, 5)
        storm.begin()
        try:
            storm.blow(4)
            storm.end()
        finally:
            storm.halt.set()
            storm.deployment.halt.set()
            agent.kill()
    assert storm.kills == 4 and "Traceback" not in agent.output.read_text()
