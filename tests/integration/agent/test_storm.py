"""The agent killed at random under load; `make test-kills` does it some hundred times."""

from tests.integration.agent.storm import Storm


def test_kills_under_load_lose_nothing_and_touch_nobody(kubelet, agent):
    storm = Storm(kubelet, agent, seed=5)
    storm.begin()
    try:
        storm.blow(15)
        storm.end()
    finally:
        storm.halt.set()
    assert storm.kills == 15 and storm.made > 15
