# SPDX-License-Identifier: Apache-2.0
"""Pods as a kubelet makes them: what they get, what the node believes, and what holds them back."""

import random
import time
from pathlib import Path

import pytest

from tests.fakes.kubelet import FakeKubelet, PodSpec, Runtime
from tests.fakes.nodes import GIB, uuid
from tests.integration.agent.conftest import (
    PATIENCE,
    QUICK,
    RESOURCE,
    AgentProcess,
    allocation_dir,
    asking,
    gpu_limits,
    gpu_of,
    inventory_text,
    pod,
    until_there,
    wait_until,
)


def limits_of(container):
    return {gpu.uuid: gpu.memory_bytes for gpu in gpu_limits(container)}


def held(rows):
    """Slices by GPU, of every container of ROWS (of `gigaslice status`) that has not ended."""
    found = {}
    for row in rows:
        if row["state"] != "ended":
            found[row["gpu"]] = found.get(row["gpu"], 0) + row["slices"]
    return found


def test_a_pod_gets_what_it_asked_for(node, agent):
    running = node.run_pod(pod("a", 8))
    container = running.container("c0")
    assert limits_of(container) == {gpu_of(container): 8 * GIB}
    by_target = {mount.target: mount for mount in container.started.mounts}
    assert {target: mount.read_only for target, mount in by_target.items()} == {
        "/etc/ld.so.preload": True,
        "/usr/local/lib/vcuda": True,
        "/etc/vcuda/limits": True,
        "/etc/vcuda/ledger": False,
    }
    library = Path(Path(by_target["/etc/ld.so.preload"].source).read_text().strip())
    assert str(library.parent) == "/usr/local/lib/vcuda"
    assert (Path(by_target["/usr/local/lib/vcuda"].source) / library.name).exists()


def test_the_kubelets_allocation_table_and_ours_name_the_same_gpus(node, agent):
    for number, count in enumerate((8, 4, 12, 10, 14)):
        running = node.run_pod(pod(f"p{number}", count))
        assert running.phase == "Running"
        assert {device_id.rpartition("/")[0] for device_id in node.device_ids(running, RESOURCE)} == {
            gpu_of(running.container("c0"))
        }
    assert node.run_pod(pod("late", 1)).reason == "Unschedulable"
    assert held(agent.status()) == {uuid(0): 24, uuid(1): 24}


def test_names_are_learned(node, agent):
    node.run_pod(pod("a", 8, 4, namespace="team"))
    rows = wait_until(lambda: all(row["pod"] for row in agent.status()) and agent.status(), "names")
    assert sorted((row["namespace"], row["pod"], row["container"]) for row in rows) == [
        ("team", "a", "c0"),
        ("team", "a", "c1"),
    ]


def test_a_deleted_pods_slices_and_directory_go_back(node, agent):
    running = node.run_pod(pod("a", 20))
    kept = node.run_pod(pod("b", 20))
    wait_until(lambda: all(row["pod"] for row in agent.status()), "names")
    directory = allocation_dir(running.container("c0"))
    node.delete_pod(running)
    wait_until(lambda: not directory.exists(), "the directory's removal")
    assert [row["pod"] for row in agent.status()] == ["b"]
    assert kept.container("c0").running


def test_a_successor_does_not_have_to_wait_for_the_allocation_table(node, agent):
    first, _second = node.run_pod(pod("a", 24)), node.run_pod(pod("b", 20))
    node.delete_pod(first)
    third = node.run_pod(pod("c", 24))
    assert third.phase == "Running"
    assert gpu_of(third.container("c0")) == gpu_of(first.container("c0"))


def test_init_containers_lend_and_the_pod_is_not_counted_twice(node, agent):
    spec = PodSpec(
        "p",
        init_containers=(
            asking(4, "i0", command=("true",)),
            asking(2, "i1", command=("true",)),
            asking(3, "side", sidecar=True),
        ),
        containers=(asking(3, "a"), asking(2, "b")),
    )
    running = node.create_pod(spec)
    wait_until(lambda: running.container("b").running, "the pod")
    gpus = {gpu_of(container) for container in running.all_containers}
    assert len(gpus) == 1
    assert running.container("a").runs == 1
    rest = node.run_pod(pod("rest", 16))
    assert rest.phase == "Running"
    assert {gpu_of(rest.container("c0"))} == gpus, "8 slices are held, so 16 fit beside them"


def test_an_init_container_with_all_the_slices(node, agent):
    spec = PodSpec("p", init_containers=(asking(24, "i0", command=("true",)),), containers=(asking(24, "a"),))
    running = node.create_pod(spec)
    wait_until(lambda: running.container("a").running, "the pod")
    other = node.run_pod(pod("other", 24))
    assert other.phase == "Running"
    node.delete_pod(running)
    wait_until(
        lambda: [row["pod"] for row in agent.status()] == ["other"],
        "everything of the first pod to be given up",
    )


def test_an_init_container_of_a_waiting_pod_keeps_its_directory(node, agent, directory):
    """It is never listed, and looks unused for as long as an image takes to arrive."""
    go_on = directory / "go on"
    spec = PodSpec(
        "p", init_containers=(asking(4, "i0", command=until_there(go_on)),), containers=(asking(2, "a"),)
    )
    running = node.create_pod(spec)
    wait_until(lambda: running.container("i0").running, "the init container")
    sources = [mount.source for mount in running.container("i0").started.mounts]
    time.sleep(2.0)  # several polls
    go_on.touch()
    wait_until(lambda: running.container("a").running, "the container")
    assert all(Path(source).exists() for source in sources)


def test_a_crashing_container_gets_the_same_again_without_being_allocated(node, agent):
    running = node.create_pod(PodSpec("p", (asking(8, command=("false",)),)))
    wait_until(lambda: running.container().restarts >= 3, "restarts")
    assert len(agent.events("allocated")) == 1


def test_more_than_a_gpu_is_spread(node, agent):
    running = node.run_pod(pod("a", 30))
    assert set(gpu_of(running.container("c0")).split(",")) == {uuid(0), uuid(1)}
    assert sorted(limits_of(running.container("c0")).values()) == [15 * GIB, 15 * GIB]


def test_what_no_gpu_has_room_for_now_is_admitted_and_held_back(node, agent):
    first, second = node.run_pod(pod("a", 18)), node.run_pod(pod("b", 18))
    assert gpu_of(first.container("c0")) != gpu_of(second.container("c0"))
    third = node.run_pod(pod("c", 8))
    assert third.phase == "Pending", "12 are free in all, 6 on each GPU"
    (event, *_) = [event for event in third.events if event.kind == "Warning"]
    assert "waiting for 2 GiB of GPU-" in event.message
    assert "default/" in event.message
    for gone in (first, second):
        node.delete_pod(gone)
        if wait_until(lambda: third.container("c0").running, "the third pod"):
            break


@pytest.mark.parametrize("policy", ["none", "best-effort"])
@pytest.mark.parametrize("seed", [1, 2])
def test_any_mix_of_pods_is_counted_right(directory, policy, seed):
    """Pods come and go; at every rest the node's allocation tables and the kubelet's hold the same devices."""
    rng = random.Random(seed)
    kubelet = FakeKubelet(
        directory / "kubelet", seed=seed, policy=policy, settings=QUICK, runtime=Runtime("plain")
    )
    agent = AgentProcess(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
    agent.inventory.write_text(inventory_text(4, 8))
    try:
        kubelet.start()
        agent.start()
        kubelet.wait_allocatable(RESOURCE, 32, PATIENCE)
        alive = []
        for number in range(25):
            if alive and rng.random() < 0.4:
                kubelet.delete_pod(alive.pop(rng.randrange(len(alive))))
                continue
            counts = [rng.randint(1, 6) for _ in range(rng.randint(1, 2))]
            made = kubelet.run_pod(pod(f"p{number}", *counts), timeout_s=PATIENCE)
            if made.reason == "Unschedulable":
                kubelet.delete_pod(made)
                continue
            assert made.phase in ("Running", "Pending"), (made, made.message)
            alive.append(made)
        # A pod that came and went between two polls of the kubelet's list stays counted, nameless, until the kubelet
        # shows its devices as free; every running pod is known, and no other by name.
        alive_names = {one.name for one in alive}
        wait_until(
            lambda: {row["pod"] for row in agent.status()} - {None} == alive_names,
            "the allocation table to agree",
        )
        for one in alive:
            for container in one.containers:
                if container.launch:
                    assert sum(limits_of(container).values()) == container.spec.resources[RESOURCE] * GIB
        rows = agent.status()  # once: a pod may end, and another start, between two of them
        waiting = {row["gpu"] for row in rows if row["state"] == "waiting"}
        assert all(count <= 8 or gpu in waiting for gpu, count in held(rows).items()), rows
    finally:
        if agent.process is not None:
            agent.kill()
        kubelet.close()
