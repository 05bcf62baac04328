# SPDX-License-Identifier: Apache-2.0
"""Limits of running containers, with real programs on the simulated driver and an agent that may be killed."""

import random
import subprocess
import sys
import threading
import time

import pytest

from agent.control import client
from agent.persistence.store import read_only
from agent.roles.records import CODEC
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.errors import ControlError, GigasliceError, MissingError
from tests.fakes.kubeapi import NODE
from tests.integration.agent.conftest import (
    PATIENCE,
    RESOURCE,
    ROOT,
    gpu_limits,
    gpu_of,
    pod,
    wait_back,
    wait_until,
)
from tests.integration.agent.test_crash import rpc_answers
from tests.native.running import GIB, MIB, OUT_OF_MEMORY, SUCCESS

ELASTIC = {"gigaslice.io/elastic": "true"}


def resize(agent, *arguments):
    command = [sys.executable, "-m", "gigaslice_cli", "resize", *arguments, "--state-dir", str(agent.state)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=agent.environment(),
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def control_answers(agent):
    try:
        client.resize(agent.state, pod="none", cores=1)
    except ControlError:
        return True
    except MissingError:
        return False


def limit(container):
    (gpu,) = gpu_limits(container)
    return gpu.memory_bytes


def known(agent, name):
    return wait_until(lambda: [row for row in agent.status() if row["pod"] == name], "the name")


def test_a_running_program_may_use_more_at_once_and_the_scheduler_sees_less(gpu_node, agent, program):
    total = gpu_node.allocatable()[RESOURCE]
    container = gpu_node.run_pod(pod("a", 8)).container("c0")
    cuda = program(container)
    known(agent, "a")
    assert cuda.do("alloc a", 10 * GIB).code == OUT_OF_MEMORY
    code, text = resize(agent, "a", "--memory", "12GiB")
    assert code == 0, text
    assert cuda.do("alloc a", 10 * GIB).code == SUCCESS
    gpu_node.wait_allocatable(RESOURCE, total - 4, PATIENCE)
    assert gpu_node.run_pod(pod("b", total - 8)).reason == "Unschedulable"
    assert known(agent, "a")[0]["limit_bytes"] == 12 * GIB
    assert resize(agent, "a", "--memory", "8GiB")[0] == 0
    gpu_node.wait_allocatable(RESOURCE, total, PATIENCE)


def test_shrinking_below_use_ends_no_program_and_refuses_more(gpu_node, agent, program):
    cuda = program(gpu_node.run_pod(pod("a", 8)).container("c0"))
    known(agent, "a")
    assert cuda.do("alloc a", 4 * GIB).code == cuda.do("alloc b", 2 * GIB).code == SUCCESS
    code, text = resize(agent, "a", "--memory", "5GiB")
    assert code == 0 and "nothing is ended" in text
    assert cuda.do("alloc c", MIB).code == OUT_OF_MEMORY
    assert cuda.do("free b").code == SUCCESS
    assert cuda.do("alloc c", MIB).code == SUCCESS


def test_a_new_limit_outlives_the_agent_and_the_container(gpu_node, agent):
    running = gpu_node.run_pod(pod("a", 8))
    known(agent, "a")
    assert resize(agent, "a", "--memory", "12GiB")[0] == 0
    slices = (
        gpu_node.capacity()[RESOURCE] - 4
    )  # those of a GPU that are promised to no device ID are not given out
    agent.kill()
    agent.start()
    wait_back(gpu_node, agent, slices)
    running.container("c0").process.kill()
    wait_until(
        lambda: running.container("c0").restarts >= 1 and running.container("c0").running, "the restart"
    )
    assert limit(running.container("c0")) == 12 * GIB
    gpu_node.delete_pod(running)
    gpu_node.wait_allocatable(RESOURCE, slices + 4, PATIENCE)
    other = gpu_node.run_pod(pod("b", 8))
    assert limit(other.container("c0")) == 8 * GIB


@pytest.fixture
def elastic_node(api, kubelet, agent, driver, directory):
    """A node whose API server is asked for annotations."""
    kubelet.api = api
    agent.driver = driver
    agent.flags |= {"--inventory": "nvml", "--kubeconfig": api.kubeconfig(directory), "--node-name": NODE}
    agent.flags["--annotation-rights"] = "checked"
    kubelet.start()
    agent.start()
    wait_until(lambda: kubelet.allocatable().get(RESOURCE), "slices")
    wait_until(lambda: agent.events("watching"), "the watch")
    return kubelet


def test_an_elastic_program_gives_way_and_its_neighbour_starts_when_memory_is_free(
    elastic_node, agent, program
):
    half = elastic_node.allocatable()[RESOURCE] // 2
    elastic_node.run_pod(pod("filler", half))
    first = elastic_node.run_pod(pod("a", 4, annotations=ELASTIC))
    container = first.container("c0")
    wait_until(lambda: limit(container) == half * GIB, "the whole GPU")
    cuda = program(container)
    assert cuda.do("alloc a", 3 * GIB).code == cuda.do("alloc b", (half - 5) * GIB).code == SUCCESS
    second = elastic_node.run_pod(pod("b", half - 4))
    assert limit(container) == 4 * GIB
    assert cuda.do("alloc c", MIB).code == OUT_OF_MEMORY
    assert second.phase == "Pending"
    assert "default/a/c0" in next(event for event in second.events if event.kind == "Warning").message
    assert cuda.do("free b").code == SUCCESS
    wait_until(lambda: second.container("c0").running, "the neighbour")
    assert gpu_of(second.container("c0")) == gpu_of(container)
    elastic_node.delete_pod(second)
    wait_until(lambda: limit(container) == half * GIB, "the whole GPU again")
    assert cuda.do("alloc b", (half - 5) * GIB).code == SUCCESS


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_instant_of_a_change(node, agent, seed):
    """Every change that was answered is found again; allocation table, page and GPUs agree after each start."""
    wait_until(lambda: control_answers(agent), "the control socket")
    rng = random.Random(seed)
    pods = {name: node.run_pod(pod(name, 6)).container("c0") for name in "abcd"}
    for name in pods:
        known(agent, name)
    answered = dict.fromkeys(pods, 6 * GIB)
    asked = {name: set() for name in pods}  # since the last answer
    count = 0

    def work():
        nonlocal count
        while True:
            name, size = rng.choice(sorted(pods)), rng.randint(1, 20) * GIB
            asked[name].add(size)
            try:
                client.resize(agent.state, namespace="default", pod=name, memory=size)
            except GigasliceError as error:
                if "free" in str(error):
                    asked[name].discard(size)
                    continue
                return
            answered[name], asked[name] = size, set()
            count += 1

    for number in range(4):
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        if number % 2:  # else it may be killed during its first answer
            enough = count + 6
            wait_until(lambda enough=enough: count >= enough, "answers")
        time.sleep(rng.random() * 0.2)
        agent.kill()
        worker.join(PATIENCE)
        assert not worker.is_alive()
        agent.start()
        wait_until(lambda: rpc_answers(agent), "the agent")
        table, _ = read_only(agent.state, CODEC)
        promised = {}
        for one in table.allocations:
            name = plugin(one).ref.pod
            ((gpu, size),) = one.quota().items()
            promised[gpu] = promised.get(gpu, 0) + size
            assert size == answered[name] or size in asked[name]
            assert limit(pods[name]) == size
            answered[name], asked[name] = size, set()
        assert len(table.allocations) == len(pods)
        assert all(size <= 24 * GIB for size in promised.values())
        wait_until(lambda: control_answers(agent), "the control socket")
    assert count >= 2 * 6


def test_an_edited_annotation_reaches_the_running_program(elastic_node, agent, program):
    container = elastic_node.run_pod(pod("a", 8)).container("c0")
    cuda = program(container)
    elastic_node.api.annotate("default", "a", **{"gigaslice.io/memory": "4GiB"})
    wait_until(lambda: limit(container) == 4 * GIB, "the new limit")
    wait_until(lambda: cuda.do("alloc a", 6 * GIB).code == OUT_OF_MEMORY, "the quota")
    elastic_node.api.annotate("default", "a", **{"gigaslice.io/memory": "8GiB"})
    wait_until(lambda: limit(container) == 8 * GIB, "the limit that was requested")
    assert cuda.do("alloc a", 6 * GIB).code == SUCCESS
    elastic_node.api.annotate("default", "a", **{"gigaslice.io/memory": "9GiB"})
    wait_until(lambda: elastic_node.api.events("InvalidAnnotation"), "the event")
    assert limit(container) == 8 * GIB
