"""The agent killed at random under load; `make test-kills` does it some hundred times."""

from tests.integration.agent.conftest import AgentProcess
from tests.integration.agent.storm import Breeze, Storm


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
