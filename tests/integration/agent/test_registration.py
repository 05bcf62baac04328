# SPDX-License-Identifier: Apache-2.0
"""Being known to the kubelet, whatever happens to either side or to the sockets between them."""

import shutil
import signal
import socket
from pathlib import Path

import pytest

from tests.fakes.nodes import GIB
from tests.integration.agent.conftest import PATIENCE, RESOURCE, inventory_text, pod, wait_back, wait_until


def test_it_registers_once_and_stays_registered(node, agent):
    assert node.registry.registrations == [RESOURCE]
    assert node.run_pod(pod("a", 8)).phase == "Running"
    assert node.registry.registrations == [RESOURCE]
    assert node.registry.stream_ends == []


def test_the_agent_may_be_there_before_the_kubelet(kubelet, agent):
    agent.start()
    agent.wait_event("waiting for the kubelet")
    kubelet.start()
    kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)
    assert len(agent.events("waiting for the kubelet")) <= 2


def test_a_kubelet_that_restarts_is_told_again(node, agent):
    running = node.run_pod(pod("a", 8))
    for _ in range(3):
        node.restart()
        node.wait_allocatable(RESOURCE, 48, PATIENCE)
        assert node.registry.registrations == [RESOURCE]
    assert running.container("c0").running
    assert node.run_pod(pod("b", 8)).phase == "Running"
    assert len(agent.events("serving")) == 4


def test_a_kubelet_that_stays_away_and_comes_back(node, agent):
    node.stop()
    agent.wait_event("stream ended")
    node.start()
    node.wait_allocatable(RESOURCE, 48, PATIENCE)


def test_a_wiped_socket_is_made_again_and_the_open_stream_goes_on(node, agent):
    agent.socket.unlink()
    agent.wait_event("serving", 2)
    assert agent.socket.is_socket()
    assert node.run_pod(pod("a", 8)).phase == "Running"
    assert node.registry.registrations == [RESOURCE], "never register while a stream is open"
    assert node.registry.stream_ends == []
    node.restart()
    node.wait_allocatable(RESOURCE, 48, PATIENCE)
    assert node.run_pod(pod("b", 8)).phase == "Running"


def wipe(path):
    """Removes a directory with all that is in it at one moment. A removal file by file fails where the agent makes
    something anew meanwhile.
    """
    shutil.rmtree(path.rename(path.with_name("wiped")))


@pytest.mark.parametrize("when", ["beside a kubelet", "between two kubelets"])
def test_a_wiped_directory_is_served_again(node, agent, when):
    """With everything in it: the kubelet's socket and checkpoint, our socket and its lock file."""
    running = node.run_pod(pod("a", 8))
    if when == "between two kubelets":
        node.stop()
        wipe(node.plugin_directory)
        agent.wait_event("waiting for the kubelet")
        node.start()
    else:
        wipe(node.plugin_directory)
        node.plugin_directory.mkdir()
        agent.wait_event("serving", 2)
        assert agent.socket.is_socket() and node.registry.stream_ends == []
        node.restart()
    node.wait_allocatable(RESOURCE, 48, PATIENCE)
    assert running.container("c0").running and not running.container("c0").restarts
    assert node.run_pod(pod("b", 8)).phase == "Running"
    assert len(node.registry.registrations) == 1


def test_a_stream_that_is_lost_is_replaced(node, agent):
    """The kubelet drops the client; after a quiet time the agent registers again by itself."""
    with node.registry.lock:
        channel = node.registry.clients.pop(RESOURCE)
    channel.close()
    wait_until(lambda: len(node.registry.registrations) == 2, "a second registration")
    node.wait_allocatable(RESOURCE, 48, PATIENCE)


def test_health_reaches_the_kubelet(node, agent):
    agent.inventory.write_text(inventory_text().replace("numa: 1}", "numa: 1, healthy: false}"))
    node.wait_allocatable(RESOURCE, 24, PATIENCE)
    assert node.capacity()[RESOURCE] == 48
    agent.inventory.write_text("half written")
    agent.wait_event("scan failed; using the last inventory")
    agent.inventory.write_text(inventory_text())
    node.wait_allocatable(RESOURCE, 48, PATIENCE)


def test_a_gpu_that_disappears_stays_as_an_unhealthy_one(node, agent):
    agent.inventory.write_text(inventory_text(1))
    node.wait_allocatable(RESOURCE, 24, PATIENCE)
    assert node.capacity()[RESOURCE] == 48


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_leaves_nothing_but_what_containers_need(node, agent, number):
    running = node.run_pod(pod("a", 8))
    assert agent._end(number) == 0
    assert not agent.socket.exists()
    assert [path.name for path in agent.socket.parent.iterdir() if path.is_socket()] == ["kubelet.sock"]
    assert running.container("c0").running
    for mount in running.container("c0").started.mounts:
        assert Path(mount.source).exists()
    assert agent.events("stopped")
    agent.start()
    wait_back(node, agent)
    assert agent.status()[0]["limit_bytes"] == 8 * GIB


def test_restarts_of_the_agent_one_after_the_other(node, agent):
    for kill in (agent.kill, agent.terminate, agent.kill, agent.kill):
        kill()
        agent.start()
        wait_back(node, agent)
        assert node.run_pod(pod(f"p{agent.process.pid}", 2)).phase == "Running"
    hidden = [path.name for path in agent.socket.parent.iterdir() if path.name.startswith(".gs-")]
    assert hidden == [], "sockets of killed agents are cleared away"


def test_a_second_agent_is_told_who_is_there(node, agent, directory):
    code, lines = agent.run()
    assert (code, len(lines)) == (1, 1)
    assert f"process {agent.process.pid}" in lines[0]
    code, lines = agent.run(state_dir=directory / "other")
    assert (code, len(lines)) == (1, 1)
    assert f"the resource {RESOURCE} is served by process {agent.process.pid}" in lines[0]
    assert node.registry.registrations == [RESOURCE]
    assert node.run_pod(pod("a", 8)).phase == "Running"


def test_two_resources_live_beside_each_other(node, agent, directory):
    code_file = directory / "second.log"
    second = type(agent)(directory, node.plugin_directory, node.pod_resources_socket)
    second.output = code_file
    second.start(state_dir=directory / "second", resource="example.com/memory", slice="8GiB")
    try:
        node.wait_allocatable("example.com/memory", 6, PATIENCE)
        node.wait_allocatable(RESOURCE, 48, PATIENCE)
    finally:
        assert second.terminate() == 0


@pytest.mark.parametrize("kind", ["file", "directory", "served"])
def test_a_socket_path_that_is_not_ours(kubelet, agent, kind):
    kubelet.start()
    other = socket.socket(socket.AF_UNIX)
    if kind == "file":
        agent.socket.write_text("important")
    elif kind == "directory":
        agent.socket.mkdir()
    else:
        other.bind(str(agent.socket))
        other.listen()
    with other:
        code, lines = agent.run()
    assert (code, len(lines)) == (1, 1)
    assert str(agent.socket) in lines[0]
    assert agent.socket.exists()


def test_a_kubelet_socket_that_is_none_is_waited_for(kubelet, agent):
    kubelet.plugin_directory.mkdir(parents=True)
    kubelet.kubelet_socket.write_text("not a socket")
    agent.start()
    agent.wait_event("waiting for the kubelet")
    assert agent.process.poll() is None
    kubelet.kubelet_socket.unlink()
    kubelet.start()
    kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)


def test_a_kubelet_that_refuses_is_asked_again(kubelet, agent):
    """A server listens on kubelet.sock and answers nothing useful; later the kubelet is there."""
    kubelet.plugin_directory.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(kubelet.kubelet_socket))
    agent.start()
    agent.wait_event("registration failed")
    kubelet.start()
    kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)
