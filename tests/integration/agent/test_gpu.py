# SPDX-License-Identifier: Apache-2.0
"""With CUDA programs on the simulated driver: discovery, usage, measured memory and the start decision."""

import pytest

import vcuda
from tests.integration.agent.conftest import (
    PATIENCE,
    RESOURCE,
    allocation_dir,
    gpu_of,
    pod,
    wait_back,
    wait_until,
)
from tests.native.running import GIB, MIB, OUT_OF_MEMORY, SUCCESS
from vcuda import contract


def rows_of(agent, name):
    return [row for row in agent.status() if row["pod"] == name]


def test_gpus_are_found_through_nvml(gpu_node, agent):
    events = agent.events("GPU found")
    assert len({event["gpu"] for event in events}) == 2
    assert [event["numa"] for event in events] == sorted(event["numa"] for event in events)
    assert sum(event["slices"] for event in events) == gpu_node.allocatable()[RESOURCE]


def test_what_a_program_holds_is_seen_and_ends_with_it(gpu_node, agent, program):
    container = gpu_node.run_pod(pod("a", 8)).container("c0")
    client = program(container)
    assert client.do("alloc a", 3 * GIB).code == SUCCESS
    assert client.do("alloc b", 5 * GIB).code == OUT_OF_MEMORY
    (row,) = wait_until(lambda: rows_of(agent, "a"), "the name")
    assert row["used_bytes"] >= 3 * GIB
    assert row["peak_bytes"] >= row["used_bytes"]
    assert row["pids"] == [client.process.pid]
    assert row["state"] == "running"
    client.kill()
    (row,) = rows_of(agent, "a")
    assert (row["used_bytes"], row["pids"], row["state"]) == (0, [], "idle")
    assert row["peak_bytes"] >= 3 * GIB


def test_memory_that_no_call_declares_is_measured_and_published(gpu_node, agent, program):
    """The context of a program is memory of its uuid; declared and measured together are what NVML sees."""
    container = gpu_node.run_pod(pod("a", 8)).container("c0")
    program(container).do("alloc a", 64 * MIB)
    limits = allocation_dir(container) / contract.LIMITS_FILE
    ledger = allocation_dir(container) / contract.LEDGER_FILE
    uuid = gpu_of(container)

    def total():
        (gpu,) = vcuda.read_limits(limits).gpus
        return vcuda.read_ledger(ledger).used(uuid) + gpu.undeclared_bytes

    from_outside = agent_view_of_nvml(agent, uuid)
    wait_until(lambda: total() == from_outside, f"declared and measured bytes to be {from_outside}")


def agent_view_of_nvml(agent, gpu):
    """Bytes that all processes hold of a GPU, asked in a process of its own under the simulated driver."""
    import subprocess
    import sys

    code = (
        "import sys, pynvml; pynvml.nvmlInit(); handle = pynvml.nvmlDeviceGetHandleByUUID(sys.argv[1]); "
        "print(sum(p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, gpu], env=agent.driver, capture_output=True, text=True, check=True
    )
    return int(answer.stdout)


def test_a_ledger_that_a_container_blew_up_is_cut_back(gpu_node, agent):
    container = gpu_node.run_pod(pod("a", 8)).container("c0")
    ledger = allocation_dir(container) / contract.LEDGER_FILE
    size = ledger.stat().st_size
    with ledger.open("r+b") as file:
        file.truncate(1 << 30)
    agent.wait_event("ledger truncated")
    assert ledger.stat().st_size == size


def test_a_ledger_of_garbage_harms_no_other_program(gpu_node, agent, program):
    bad = gpu_node.run_pod(pod("bad", 4)).container("c0")
    good = gpu_node.run_pod(pod("good", 4)).container("c0")
    (allocation_dir(bad) / contract.LEDGER_FILE).write_bytes(b"\xff" * 1000)
    agent.wait_event("allocation cannot be read")
    client = program(good)
    assert client.do("alloc a", GIB).code == SUCCESS
    assert gpu_node.run_pod(pod("more", 4)).phase == "Running"
    wait_until(lambda: rows_of(agent, "bad") and rows_of(agent, "good"), "names")
    assert [rows_of(agent, name)[0]["state"] for name in ("bad", "good")] == ["unreadable", "running"]


def test_after_a_forced_deletion_memory_of_the_old_processes_is_waited_for(gpu_node, agent, program):
    """The kubelet frees devices before the processes have ended; the next pod gets the same ones."""
    count = agent.events("GPU found")[0]["slices"]
    first = gpu_node.run_pod(pod("a", count))
    gpu_node.run_pod(pod("b", count))
    left_over = program(first.container("c0"))
    assert left_over.do("alloc a", 2 * GIB).code == SUCCESS
    wait_until(lambda: rows_of(agent, "a"), "the name")
    gpu_node.delete_pod(first, force=True)
    second = gpu_node.create_pod(pod("c", count))
    wait_until(
        lambda: any(
            "default/a/c0 (ended, its processes still hold 2" in e.message
            for e in second.events
            if e.kind == "Warning"
        ),
        "the refusal",
    )
    assert not second.container("c0").running
    left_over.kill()
    wait_until(lambda: second.container("c0").running, "the start", PATIENCE)
    assert gpu_of(second.container("c0")) == gpu_of(first.container("c0"))


def test_a_small_successor_need_not_wait_for_a_small_rest(gpu_node, agent, program):
    count = agent.events("GPU found")[0]["slices"]
    first = gpu_node.run_pod(pod("a", count))
    gpu_node.run_pod(pod("b", count))
    assert program(first.container("c0")).do("alloc a", 2 * GIB).code == SUCCESS
    wait_until(lambda: rows_of(agent, "a"), "the name")
    gpu_node.delete_pod(first, force=True)
    second = gpu_node.create_pod(pod("c", 8))
    second.wait_for(
        lambda one: one.phase == "Running", PATIENCE
    )  # the kubelet's list alone is not believed at once


def test_a_directory_is_kept_while_a_process_is_attached(gpu_node, agent, program):
    first = gpu_node.run_pod(pod("a", 8))
    client = program(first.container("c0"))
    client.do("alloc a", GIB)
    directory = allocation_dir(first.container("c0"))
    wait_until(lambda: rows_of(agent, "a"), "the name")
    gpu_node.delete_pod(first)
    other = gpu_node.run_pod(pod("b", 2))
    wait_until(lambda: rows_of(agent, "b"), "the name")
    polls = 20
    for _ in range(polls):
        agent.status()
    assert directory.exists()
    assert other.phase == "Running"
    client.kill()
    wait_until(lambda: not directory.exists(), "the removal")


def test_the_agent_may_die_while_programs_run(gpu_node, agent, program):
    container = gpu_node.run_pod(pod("a", 8)).container("c0")
    client = program(container)
    assert client.do("alloc a", 2 * GIB).code == SUCCESS
    agent.kill()
    assert client.do("alloc b", 2 * GIB).code == SUCCESS
    assert client.do("alloc c", 5 * GIB).code == OUT_OF_MEMORY
    agent.start()
    wait_back(gpu_node, agent, sum(event["slices"] for event in agent.wait_found()))
    (row,) = wait_until(lambda: rows_of(agent, "a"), "the name")
    assert row["used_bytes"] >= 4 * GIB
    assert client.do("free a").code == SUCCESS
    assert client.do("alloc c", 3 * GIB).code == SUCCESS


@pytest.mark.parametrize("broken", ["none", "error"])
def test_without_a_driver_it_says_so(agent, driver, directory, broken):
    agent.flags["--inventory"] = "nvml"
    if broken == "error":
        (directory / "machine.txt").write_text("this is no machine\n")
        agent.driver = {
            **driver,
            "FAKEDRIVER_MACHINE": str(directory / "machine.txt"),
            "FAKEDRIVER_STATE": str(directory / "other"),
        }
    else:
        agent.driver = {name: value for name, value in driver.items() if name != "LD_LIBRARY_PATH"}
        agent.driver["LD_LIBRARY_PATH"] = str(directory)
    code, lines = agent.run(without_gpus="exit")
    if broken == "none" and code == 0:
        pytest.skip("this machine has a driver of its own")
    assert (code, len(lines)) == (3, 1)
    assert "--inventory FILE" in lines[0]
