# SPDX-License-Identifier: Apache-2.0
"""Several resources of one agent: whole GPUs and RDMA adapters beside slices, and a provider of one's own."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.fakes.kubelet import ContainerSpec, PodSpec
from tests.fakes.nodes import uuid
from tests.integration.agent.conftest import (
    PATIENCE,
    RESOURCE,
    ROOT,
    allocation_dir,
    gpu_of,
    inventory_text,
    pod,
    until_there,
    wait_until,
)
from tests.unit.agent.providers.test_rdma import add, write

WHOLE = "gigaslice.io/gpu"
RDMA = "gigaslice.io/rdma"


def gpus(name, count, **more):
    return PodSpec(name, (ContainerSpec("c0", {WHOLE: count}),), **more)


def nodes_of(node, running):
    (answer,) = node.manager.responses(running, running.spec.containers[0])
    return [device.host_path for device in answer.devices]


def wait_both(node, slices, whole):
    wait_until(
        lambda: (node.allocatable().get(RESOURCE), node.allocatable().get(WHOLE)) == (slices, whole),
        f"{slices} slices and {whole} GPUs",
    )


@pytest.fixture
def both(kubelet, agent):
    """48 slices on two GPUs, which can be had whole too."""
    agent.flags["--whole-gpus"] = WHOLE
    kubelet.start()
    agent.start()
    wait_both(kubelet, 48, 2)
    return kubelet


def test_a_whole_gpu_has_no_slices_left_and_gives_them_back(both, agent):
    running = both.run_pod(gpus("whole", 1))
    container = running.container("c0")
    assert (running.phase, container.started.mounts) == ("Running", ())
    assert both.device_ids(running, WHOLE) == {gpu_of(container)}
    wait_both(both, 24, 2)
    sliced = both.run_pod(pod("sliced", 24))
    assert gpu_of(sliced.container("c0")) != gpu_of(container)
    wait_both(both, 24, 1)
    second = both.run_pod(gpus("second", 1))
    assert second.reason == "Unschedulable"
    both.delete_pod(second)
    assert {row["state"] for row in agent.status()} == {"whole", "idle"}
    both.delete_pod(running)
    both.delete_pod(sliced)
    wait_both(both, 48, 2)
    wait_until(lambda: agent.status() == [], "everything to be given up")


def test_a_gpu_with_slices_in_use_cannot_be_had_whole(both):
    sliced = both.run_pod(pod("sliced", 1))
    wait_both(both, 48, 1)
    running = both.run_pod(gpus("whole", 1))
    assert gpu_of(running.container("c0")) != gpu_of(sliced.container("c0"))


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_restarted_agent_knows_whole_gpus(both, agent, how):
    running = both.run_pod(gpus("whole", 1))
    getattr(agent, how)()
    agent.start()
    agent.wait_registered(2)
    wait_both(both, 24, 2)
    assert running.container("c0").running
    sliced = both.run_pod(pod("sliced", 8))
    assert gpu_of(sliced.container("c0")) != gpu_of(running.container("c0"))


def test_whole_gpus_are_counted_after_the_loss_of_the_state(both, agent):
    running = both.run_pod(gpus("whole", 1))
    agent.kill()
    agent.state.rename(agent.state.with_name("lost"))
    agent.start()
    agent.wait_event("unrecorded container restored")
    wait_both(both, 24, 2)
    assert both.device_ids(running, WHOLE) == {row["gpu"] for row in agent.status() if row["pod"] == "whole"}


def test_slices_that_the_kubelet_hands_out_before_it_knows_wait(both, agent):
    """A race between the two lists: the kubelet takes a GPU's slices that were healthy at its last poll."""
    whole = both.run_pod(gpus("whole", 2))
    wait_both(both, 0, 2)
    slices = {f"{uuid(n)}/{k}" for n in range(2) for k in range(24)}
    with both.manager.lock:
        both.manager.healthy[RESOURCE] = set(slices)
    late = both.create_pod(replace(pod("late", 8), bind=True))
    wait_until(
        lambda: any("waiting for" in event["detail"] for event in agent.events("start delayed")),
        "the start decision",
    )
    assert late.phase == "Pending"
    both.delete_pod(whole)
    wait_until(lambda: late.phase == "Running", "the start")


def test_a_gpu_that_the_kubelet_hands_out_before_it_knows_waits(both, agent):
    first, second = (both.run_pod(pod(name, 24)) for name in ("first", "second"))
    wait_both(both, 48, 0)
    with both.manager.lock:
        both.manager.healthy[WHOLE] = {uuid(0), uuid(1)}
    late = both.create_pod(replace(gpus("late", 1), bind=True))
    agent.wait_event("start delayed")
    assert late.phase == "Pending"
    both.delete_pod(first)
    both.delete_pod(second)
    wait_until(lambda: late.phase == "Running", "the start")


def test_init_containers_lend_whole_gpus_to_later_ones(both, agent):
    spec = PodSpec(
        "p",
        (ContainerSpec("c0", {WHOLE: 1}),),
        (ContainerSpec("init", {WHOLE: 1}, command=("true",)),),
    )
    running = both.create_pod(spec)
    wait_until(lambda: running.container("c0").running, "the pod")
    wait_both(both, 24, 2)
    both.delete_pod(running)
    wait_both(both, 48, 2)
    wait_until(lambda: agent.status() == [], "everything of the pod to be given up")


def test_an_init_container_with_slices_keeps_them_beside_a_whole_gpu(both, agent, directory):
    """Allocations of the two kinds say nothing about each other."""
    spec = PodSpec(
        "p",
        (ContainerSpec("c0", {WHOLE: 1}),),
        (ContainerSpec("init", {RESOURCE: 4}, command=until_there(directory / "go on")),),
    )
    running = both.create_pod(spec)
    wait_until(lambda: running.container("init").running, "the init container")
    wait_until(lambda: any(row["pod"] for row in agent.status()), "names")
    assert running.container("init").running
    (directory / "go on").touch()
    wait_until(lambda: running.container("c0").running, "the pod")
    assert allocation_dir(running.container("init")).exists()


def test_an_unhealthy_gpu_is_unhealthy_in_both_lists(both, agent):
    agent.inventory.write_text(inventory_text().replace("numa: 1}", "numa: 1, healthy: false}"))
    wait_both(both, 24, 1)


def test_rdma_adapters_come_with_their_device_nodes(kubelet, agent, directory):
    for number in range(2):
        add(directory / "sys", f"mlx5_{number}", number, numa=number, node=("null", "zero")[number])
    write(directory / "sys/class/misc/rdma_cm/uevent", "DEVNAME=full")  # nodes that are on every machine
    agent.flags |= {"--rdma": RDMA, "--rdma-share": 2, "--sysfs": directory / "sys"}
    kubelet.start()
    agent.start()
    kubelet.wait_allocatable(RDMA, 4, PATIENCE)
    running = kubelet.run_pod(PodSpec("p", (ContainerSpec("c0", {RDMA: 2}),)))
    assert running.phase == "Running"
    assert nodes_of(kubelet, running) == ["/dev/null", "/dev/full", "/dev/zero"]
    assert running.container("c0").started.env["GIGASLICE_RDMA_DEVICES"] == "mlx5_0,mlx5_1"
    write(directory / "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    kubelet.wait_allocatable(RDMA, 2, PATIENCE)


def test_a_provider_that_cannot_be_served_leaves_the_others_alone(kubelet, agent):
    blocked = kubelet.plugin_directory / "gigaslice.io_rdma.sock"
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("not a socket")
    agent.flags |= {"--rdma": RDMA, "--whole-gpus": WHOLE}
    kubelet.start()
    agent.start()
    wait_both(kubelet, 48, 2)
    assert RDMA in agent.wait_event("provider failed; retrying")["resource"]
    if blocked.exists():  # a kubelet that starts clears its directory
        blocked.unlink()
    wait_until(lambda: RDMA in kubelet.registry.registrations, "registration once the way is free")
    assert agent.terminate() == 0
    assert [path.name for path in blocked.parent.iterdir() if path.is_socket()] == ["kubelet.sock"]


def test_the_example_of_the_page_runs(kubelet, directory):
    """The program of docs/providers.md as it stands, as a process of its own."""
    (text,) = re.findall(r"(?ms)^```python\n(.*?)^```$", (ROOT / "docs/providers.md").read_text())
    program, device = directory / "fuse.py", directory / "fuse"
    program.write_text(text)
    device.touch()
    kubelet.start()
    command = [sys.executable, program, device, kubelet.plugin_directory]
    with subprocess.Popen(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE) as plugin:
        try:
            kubelet.wait_allocatable("example.com/fuse", 8, PATIENCE)
            running = kubelet.run_pod(PodSpec("p", (ContainerSpec("c0", {"example.com/fuse": 1}),)))
            assert (running.phase, nodes_of(kubelet, running)) == ("Running", [str(device)])
            device.unlink()
            kubelet.wait_allocatable("example.com/fuse", 0, PATIENCE)
            device.touch()
            kubelet.wait_allocatable("example.com/fuse", 8, PATIENCE)
        finally:
            plugin.terminate()
        assert plugin.wait(PATIENCE) == 0
        assert b"Traceback" not in plugin.stderr.read()
