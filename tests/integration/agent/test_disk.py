# SPDX-License-Identifier: Apache-2.0
"""The state directory on a file system that fills up, or becomes read-only, under a running agent."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.agent.conftest import PATIENCE, RESOURCE, allocation_dir, pod, wait_back, wait_until
from tests.integration.agent.test_crash import rpc_answers


def mount(*words):
    return subprocess.run(["mount", *words], capture_output=True, text=True, check=False)


@pytest.fixture
def disk(agent, kubelet):
    """16 MiB for the state directory, and nothing else in it."""
    agent.state.mkdir()
    done = mount("-t", "tmpfs", "-o", "size=16m", "none", str(agent.state))
    if done.returncode:
        pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")
    try:
        kubelet.start()
        agent.start()
        kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)
        yield agent.state
    finally:
        if agent.process is not None:
            agent.kill()
        while (
            subprocess.run(["umount", "-l", str(agent.state)], capture_output=True, check=False).returncode
            == 0
        ):
            pass


def fill(directory: Path) -> Path:
    """Until not a byte is free."""
    filler = directory / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    assert shutil.disk_usage(directory).free == 0
    return filler


@pytest.fixture
def quota(agent, kubelet, directory):
    """A file: while it exists the agent's disk quota is used up, which no file system says of itself."""
    library, gone = directory / "quota.so", directory / "gone"
    source = Path(__file__).with_name("quota.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    steering = {"LD_PRELOAD": str(library), "QUOTA_GONE": str(gone), "QUOTA_BELOW": str(agent.state)}
    agent.driver = {**agent.environment(), **steering}
    kubelet.start()
    agent.start()
    kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)
    return gone


def test_a_write_that_fails_takes_the_slices_until_writes_succeed(quota, kubelet, agent):
    running = kubelet.run_pod(pod("a", 8))
    wait_until(lambda: all(row["pod"] for row in agent.status()), "the name")
    quota.touch()
    first = kubelet.run_pod(pod("first", 4))  # the one that finds out, or already too late for that
    kubelet.wait_allocatable(RESOURCE, 0, PATIENCE)
    assert "quota" in agent.wait_event("state directory unusable; no new allocations")["detail"]
    assert first.reason in ("UnexpectedAdmissionError", "Unschedulable")
    assert kubelet.run_pod(pod("late", 4)).reason == "Unschedulable", "not failed for good"
    assert running.container("c0").running
    quota.unlink()
    kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)
    wait_until(lambda: kubelet.pods[-1].phase == "Running", "the pod that had to wait")
    agent.wait_event("state directory usable again")


needs_mounts = pytest.mark.namespaces


@needs_mounts
def test_a_full_disk_takes_nothing_from_anybody(disk, kubelet, agent):
    running = [kubelet.run_pod(pod(f"p{number}", 8)) for number in range(3)]
    wait_until(lambda: all(row["pod"] for row in agent.status()), "names")
    filler = fill(disk)
    kubelet.wait_allocatable(RESOURCE, 0, PATIENCE)
    agent.wait_event("state directory unusable; no new allocations")
    assert kubelet.run_pod(pod("late", 4)).reason == "Unschedulable", "not failed for good"
    agent.kill()
    agent.start()
    wait_until(lambda: rpc_answers(agent), "a start on a full disk")
    wait_until(lambda: {row["pod"] for row in agent.status()} == {"p0", "p1", "p2"}, "the allocation table")
    ended = allocation_dir(running[0].container("c0"))
    kubelet.delete_pod(running[0])
    wait_until(lambda: not ended.exists(), "room to be made on the full disk")
    assert kubelet.pods[-1].reason == "Unschedulable", "slices that came back are not to be had either"
    filler.unlink()
    kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)
    wait_until(lambda: kubelet.pods[-1].phase == "Running", "the pod that had to wait")
    assert all(one.container("c0").running and not one.container("c0").restarts for one in running[1:])


@needs_mounts
def test_a_disk_that_becomes_read_only(disk, kubelet, agent):
    running = kubelet.run_pod(pod("a", 8))
    wait_until(lambda: all(row["pod"] for row in agent.status()), "the name")
    # Over itself: what has files open for writing cannot be made read-only, other than by a failing disk.
    assert mount("--bind", str(disk), str(disk)).returncode == 0
    assert mount("-o", "remount,bind,ro", str(disk)).returncode == 0
    kubelet.wait_allocatable(RESOURCE, 0, PATIENCE)
    kubelet.delete_pod(running)
    assert kubelet.run_pod(pod("late", 4)).reason == "Unschedulable"
    assert allocation_dir(running.container("c0")).exists()
    agent.kill()
    code, lines = agent.run()
    assert (code, len(lines)) == (1, 1)
    assert "Read-only file system" in lines[0] and "must be writable" in lines[0]
    assert mount("-o", "remount,bind,rw", str(disk)).returncode == 0
    agent.start()
    wait_back(kubelet, agent)
    wait_until(lambda: kubelet.pods[-1].phase == "Running", "the pod that had to wait")
    wait_until(lambda: [row["pod"] for row in agent.status()] == ["late"], "the allocation table")
