# SPDX-License-Identifier: Apache-2.0
"""What lives is never given away: kubelets that lose their checkpoint, answer with empty lists, or replay mounts whose
sources are gone. In each of these a container could run without its quota, or a GPU be promised twice.
"""

import dataclasses
import shutil
import time

import pytest

import vcuda
from agent.roles.records import CODEC
from tests.fakes.kubeapi import NODE, ApiServer
from tests.fakes.nodes import GIB
from tests.integration.agent.conftest import (
    PATIENCE,
    QUICK,
    RESOURCE,
    allocation_dir,
    gpu_limits,
    gpu_of,
    pod,
    wait_back,
    wait_until,
)
from vcuda import contract

CHECKPOINT = "kubelet_internal_checkpoint"


def promised(*pods):
    """Bytes of each GPU that the limits pages of these pods allow, all together."""
    total = {}
    for one in pods:
        for container in one.containers:
            for gpu in gpu_limits(container):
                total[gpu.uuid] = total.get(gpu.uuid, 0) + gpu.memory_bytes
    return total


def named(agent):
    return wait_until(lambda: (rows := agent.status()) and all(row["pod"] for row in rows) and rows, "names")


def forget(node):
    """The kubelet is stopped, loses its checkpoint, and is started again: a common remedy."""
    node.stop()
    (node.plugin_directory / CHECKPOINT).unlink()
    node.start()
    node.wait_allocatable(RESOURCE, 48, PATIENCE)


@pytest.fixture
def node(directory, kubelet, agent):
    """Kubelet and agent, registered, with an API server that both know the pods from."""
    with ApiServer(NODE) as api:
        kubelet.api = api
        agent.flags |= {"--kubeconfig": api.kubeconfig(directory), "--node-name": "node-a"}
        kubelet.start()
        agent.start()
        agent.wait_event("watching")
        kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)
        yield kubelet
        kubelet.close()


def test_a_lost_kubelet_checkpoint_promises_nothing_twice(node, agent):
    old = node.run_pod(pod("old", 18))
    named(agent)
    forget(node)
    assert node.device_ids(old, RESOURCE) == set(), "the kubelet has forgotten them"
    new = [node.run_pod(pod(f"new{number}", 6)) for number in range(5)]
    assert [one.phase for one in new] == ["Running"] * 5
    assert max(promised(old, *new).values()) <= 24 * GIB
    time.sleep(2.0)  # several polls
    assert (allocation_dir(old.container("c0")) / contract.LIMITS_FILE).exists()
    assert {row["pod"] for row in agent.status()} == {"old", *(one.name for one in new)}


def test_what_does_not_fit_beside_it_waits_until_it_has_ended(node, agent):
    """A pod that no scheduler has seen: the kubelet has room by its own count."""
    old = node.run_pod(pod("old", 24))
    other = node.run_pod(pod("other", 12))
    named(agent)
    forget(node)
    new = node.create_pod(pod("new", 24, bind=True))
    new.wait_for(lambda one: one.container("c0").waiting == "CreateContainerConfigError", PATIENCE)
    assert max(promised(old, other).values()) <= 24 * GIB
    node.delete_pod(other)  # the GPU where least is missing
    new.wait("Running", PATIENCE)
    assert max(promised(old, new).values()) <= 24 * GIB
    (event,) = wait_until(  # said at a poll, and posted beside everything else
        lambda: [
            one for one in node.api.events("AllocationForgotten") if one["involvedObject"]["name"] == "old"
        ],
        "the event",
    )
    assert "delete the pod" in event["message"]


@pytest.fixture
def slow_node(directory, agent, kubelet):
    """A node whose kubelet lists no pod for the first two seconds after a start."""
    kubelet.settings = dataclasses.replace(QUICK, readmit_after_s=2.5)
    kubelet.start()
    agent.start()
    kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)
    return kubelet


def test_empty_lists_after_a_kubelet_restart_count_for_nothing(slow_node, agent):
    running = slow_node.run_pod(pod("a", 8))
    directory = allocation_dir(running.container("c0"))
    (before,) = named(agent)
    slow_node.restart()
    slow_node.wait_allocatable(RESOURCE, 48, PATIENCE)
    (after,) = named(agent)
    assert after["allocation"] == before["allocation"] == directory.name
    running.container("c0").process.kill()
    wait_until(lambda: running.container("c0").restarts and running.container("c0").running, "the restart")
    assert (directory / contract.LIMITS_FILE).is_file()


@pytest.mark.parametrize("polled", [False, True])
def test_a_lost_state_directory_comes_back_at_the_paths_that_the_kubelet_replays(node, agent, polled):
    running = node.run_pod(pod("a", 8))
    directory, gpu = allocation_dir(running.container("c0")), gpu_of(running.container("c0"))
    named(agent)
    agent.kill()
    shutil.rmtree(agent.state)
    agent.start()
    wait_back(node, agent)
    if polled:
        named(agent)
    running.container("c0").process.kill()
    wait_until(lambda: running.container("c0").restarts and running.container("c0").running, "the restart")
    assert allocation_dir(running.container("c0")) == directory
    page = vcuda.read_limits(directory / contract.LIMITS_FILE)
    assert page.allocation_id.hex() == directory.name
    assert {one.uuid: one.memory_bytes for one in page.gpus} == {gpu: 8 * GIB}
    assert (directory / contract.PRELOAD_FILE).is_file()
    (row,) = named(agent)
    assert (row["allocation"], row["pod"]) == (directory.name, "a")


@pytest.mark.parametrize("polled", [False, True])
def test_without_the_kubelets_checkpoint_such_a_start_is_refused(node, agent, polled):
    running = node.run_pod(pod("a", 8))
    named(agent)
    agent.kill()
    shutil.rmtree(agent.state)
    agent.flags["--log-level"] = "info"
    checkpoint = node.plugin_directory / CHECKPOINT
    with node.manager.lock:
        node.manager.checkpoint = checkpoint.with_name("elsewhere")
    checkpoint.unlink()
    agent.start()
    wait_back(node, agent)
    if polled:
        named(agent)
    running.container("c0").process.kill()
    refused = lambda: [one for one in running.events if "delete the pod" in one.message]  # noqa: E731
    wait_until(refused, "the refusal")
    assert running.container("c0").runs == 1


def test_a_library_that_was_removed_is_installed_again(node, agent):
    """What an old pod's preload line names is ignored by the loader when it is not there: CUDA without limits."""
    running = node.run_pod(pod("a", 8))
    directory = allocation_dir(running.container("c0"))
    agent.kill()
    line = (directory / contract.PRELOAD_FILE).read_text()
    name = line.strip().rpartition("/")[2]
    allocations = (directory / "allocation.json", agent.state / "checkpoint.json")
    assert all(name in path.read_text() for path in allocations)
    old = "libvcuda-0.0.1.so"
    (directory / contract.PRELOAD_FILE).write_text(line.replace(name, old))
    _relabel(agent.state, directory, name, old)
    agent.start()
    wait_back(node, agent)
    running.container("c0").process.kill()
    wait_until(lambda: running.container("c0").restarts and running.container("c0").running, "the restart")
    said = (directory / contract.PRELOAD_FILE).read_text().strip().rpartition("/")[2]
    assert (agent.state / "lib" / said).is_file()


def _relabel(state, directory, name, old):

    for path, decode, encode in (
        (directory / "allocation.json", CODEC.decode_allocation, CODEC.encode_allocation),
        (state / "checkpoint.json", CODEC.decode_table, CODEC.encode_table),
    ):
        found = decode(path.read_bytes())
        allocations = getattr(found, "allocations", (found,))
        changed = tuple(dataclasses.replace(one, library=old) for one in allocations)
        found = (
            dataclasses.replace(found, allocations=changed) if hasattr(found, "allocations") else changed[0]
        )
        path.write_bytes(encode(found))
    assert name != old
