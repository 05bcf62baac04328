# SPDX-License-Identifier: Apache-2.0
"""GPUs that err, vanish or are taken out of service, and what becomes of the node and its containers."""

import subprocess
import sys

import pytest

from tests.fakedriver.env import library_directory
from tests.integration.agent.conftest import RESOURCE, ROOT, gpu_of, pod, wait_until
from tests.integration.agent.test_truth import metrics
from tests.native.running import GIB, SUCCESS


@pytest.fixture
def fakectl(gpu_node, agent):
    def order(*words):
        subprocess.run([library_directory() / "fakectl", *map(str, words)], env=agent.driver, check=True)

    return order


def command(agent, *words):
    run = [sys.executable, "-m", "gigaslice_cli", *words, "--state-dir", str(agent.state)]
    return subprocess.run(
        run, cwd=ROOT, capture_output=True, text=True, check=True, env=agent.environment()
    ).stdout


def slices(agent):
    """Of one GPU; the GPUs of the simulated node are alike."""
    return agent.events("GPU found")[0]["slices"]


def test_a_fatal_xid_takes_the_gpu_and_only_the_gpu(gpu_node, agent, fakectl, program):
    count = slices(agent)
    container = gpu_node.run_pod(pod("a", 4)).container("c0")
    client = program(container)
    fakectl("xid", [e["gpu"] for e in agent.events("GPU found")].index(gpu_of(container)), 95)
    assert agent.wait_event("GPU unhealthy")["detail"].startswith("Xid 95: uncontained memory error")
    wait_until(lambda: gpu_node.allocatable()[RESOURCE] == count, "one GPU's slices")
    assert gpu_node.capacity()[RESOURCE] == 2 * count
    assert client.do("alloc a", GIB).code == SUCCESS, "what runs goes on"
    running = gpu_node.run_pod(pod("b", 4))
    other = running.container("c0")
    assert other.launch, running.events
    assert gpu_of(other) != gpu_of(container)
    assert "Xid 95" in command(agent, "status")
    assert metrics(agent, "gigaslice_gpu_xid_errors_total", xid="95", gpu_uuid=gpu_of(container)) == [1]
    assert metrics(agent, "gigaslice_gpu_condition") == [1]
    assert metrics(agent, "gigaslice_gpu_condition", condition="xid-95", gpu_uuid=gpu_of(container)) == [1]


def test_a_programs_own_error_changes_nothing(gpu_node, agent, fakectl):
    fakectl("xid", 0, 31)
    assert agent.wait_event("xid")["effect"] == "application"
    fakectl("xid", 1, 13)
    agent.wait_event("xid", 2)
    assert not agent.events("GPU unhealthy")
    assert gpu_node.allocatable()[RESOURCE] == 2 * slices(agent)


@pytest.fixture
def short_cooldown(agent):
    agent.flags["--health-cooldown"] = "500ms"


def test_a_gpu_comes_back_by_itself(short_cooldown, gpu_node, agent, fakectl):
    fakectl("xid", 0, 119)
    agent.wait_event("GPU unhealthy")
    agent.wait_event("GPU recovered")
    wait_until(lambda: gpu_node.allocatable()[RESOURCE] == 2 * slices(agent), "all slices")
    fakectl("xid", 0, 119)
    assert agent.wait_event("GPU unhealthy", 2)["cooldown_seconds"] == 1, "a relapse waits twice as long"


def test_a_lost_gpu_is_unhealthy_until_it_was_back_for_a_while(short_cooldown, gpu_node, agent, fakectl):
    count = slices(agent)
    fakectl("lost", 1)
    wait_until(lambda: any("lost" in e["detail"] for e in agent.events("GPU unhealthy")), "the loss")
    wait_until(lambda: gpu_node.allocatable()[RESOURCE] == count, "one GPU's slices")
    assert gpu_node.capacity()[RESOURCE] == 2 * count, "a lost GPU does not vanish from the node"
    fakectl("found", 1)
    wait_until(lambda: gpu_node.allocatable()[RESOURCE] == 2 * count, "both GPUs' slices")

    def heard():
        fakectl("xid", 1, 62)  # again and again: it is listened to when the wait under way is over
        return any("Xid 62" in e["detail"] for e in agent.events("GPU unhealthy"))

    wait_until(heard, "news of it")


def test_an_unhealthy_gpu_is_unhealthy_after_a_restart_of_the_agent(gpu_node, agent, fakectl):
    fakectl("xid", 0, 95)
    agent.wait_event("GPU unhealthy")
    agent.kill()
    agent.start()
    agent.wait_event("registered", 2)
    wait_until(lambda: gpu_node.allocatable()[RESOURCE] == slices(agent), "one GPU's slices")
    assert len(agent.events("GPU unhealthy")) == 2


def test_a_cordoned_gpu_keeps_what_runs_and_gets_no_more(gpu_node, agent, program):
    count = slices(agent)
    container = gpu_node.run_pod(pod("a", 4)).container("c0")
    client = program(container)
    gpu = gpu_of(container)
    assert gpu in command(agent, "cordon", gpu, "--reason", "fan is loud")
    wait_until(lambda: gpu_node.allocatable()[RESOURCE] == count, "the other GPU's slices")
    assert client.do("alloc a", GIB).code == SUCCESS
    assert "cordoned: fan is loud" in command(agent, "status")
    container.process.kill()
    wait_until(lambda: container.runs > 1 and container.running, "the container's own restart")
    assert gpu_of(gpu_node.run_pod(pod("b", 4)).container("c0")) != gpu
    agent.kill()
    agent.start()
    agent.wait_event("registered", 2)
    wait_until(lambda: gpu_node.allocatable()[RESOURCE] == count, "the other GPU's slices again")
    command(agent, "uncordon", gpu)
    wait_until(lambda: gpu_node.allocatable()[RESOURCE] == 2 * count, "all slices")


def test_a_gpu_can_be_cordoned_while_no_agent_runs(gpu_node, agent):
    count = slices(agent)
    agent.kill()
    command(agent, "cordon", "0")
    agent.start()
    agent.wait_event("registered", 2)
    wait_until(lambda: gpu_node.allocatable()[RESOURCE] == count, "one GPU's slices")


def test_a_driver_that_answers_nothing_takes_the_slices_and_gives_them_back(
    gpu_node, agent, fakectl, program
):
    """Every call fails as after a reload of the driver's module, and so does opening it anew, for a while."""
    count = slices(agent)
    client = program(gpu_node.run_pod(pod("a", 4)).container("c0"))
    for call in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCount_v2", "nvmlInitWithFlags"):
        fakectl("fail", call, 9 if call == "nvmlInitWithFlags" else 999, 1_000_000, "--pid", agent.worker.pid)
    assert "Driver Not Loaded" in agent.wait_event("GPU not responding", 2)["detail"]
    wait_until(lambda: gpu_node.allocatable()[RESOURCE] == 0, "no slices")
    assert gpu_node.capacity()[RESOURCE] == 2 * count
    assert client.do("alloc a", GIB).code == SUCCESS, "what runs goes on"
    assert "cannot be reached" in command(agent, "status")
    fakectl("reset")
    agent.wait_event("GPU responding again", 2)
    wait_until(lambda: gpu_node.allocatable()[RESOURCE] == 2 * count, "all slices")

    def heard():
        fakectl("xid", 0, 95)  # again and again: it is listened to when the wait under way is over
        return any("Xid 95" in one["detail"] for one in agent.events("GPU unhealthy"))

    wait_until(heard, "news from an event set of the new session")
