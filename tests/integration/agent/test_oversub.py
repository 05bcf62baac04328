# SPDX-License-Identifier: Apache-2.0
"""A node that lends host memory: three jobs of 8 GiB on a GPU of 16, as a kubelet and programs see it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import vcuda
from tests.bench.time_slices import PROGRAM
from tests.fakedriver.env import driver_env, write_machine
from tests.fakes.kubeapi import NODE, ApiServer
from tests.fakes.kubelet import FakeKubelet, Runtime
from tests.fakes.nodes import GIB
from tests.integration.agent.conftest import (
    PATIENCE,
    QUICK,
    RESOURCE,
    AgentProcess,
    allocation_dir,
    gpu_limits,
    gpu_of,
    pod,
    wait_back,
    wait_until,
)
from tests.native.running import LIBRARY, OUT_OF_MEMORY, SUCCESS, Client
from vcuda import contract

OVERSUBSCRIBED = {"gigaslice.io/oversubscribe": "true"}


@pytest.fixture
def node(directory):
    """One GPU of 16 GiB with 8 GiB of host memory, in slices of 8 GiB."""
    yield from begin(directory, "16GiB", {"--slice": "8GiB", "--host-memory": "8GiB"}, 3)


@pytest.fixture
def small_node(directory):
    """One GPU of 4 GiB with as much of host memory, in slices of 1 GiB; pages take time to move."""
    yield from begin(directory, "4GiB", {"--host-memory": "4GiB"}, 8)


def begin(directory, memory, flags, slices):
    machine = write_machine(directory, f"gpu 0:\n  memory: {memory}", paging="5us", context_memory="100MiB")
    driver = driver_env(machine, directory / "machine")
    with ApiServer(NODE) as api:
        kubelet = FakeKubelet(
            directory / "kubelet", 7, "none", settings=QUICK, runtime=Runtime("plain"), api=api
        )
        agent = AgentProcess(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
        agent.driver = driver
        agent.flags |= {
            "--inventory": "nvml",
            **flags,
            "--kubeconfig": api.kubeconfig(directory),
            "--node-name": "node-a",
        }
        kubelet.start()
        agent.start()
        agent.wait_event("watching")
        kubelet.wait_allocatable(RESOURCE, slices, PATIENCE)
        yield kubelet, agent, driver
        if agent.process is not None:
            assert agent.terminate() == 0
        kubelet.close()
        assert "Traceback" not in agent.output.read_text()


def program(driver, container):
    quota = {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(allocation_dir(container))}
    return Client({**driver, **quota, "CUDA_VISIBLE_DEVICES": gpu_of(container)}).ready()


def started(kubelet, name, count=1, **more):
    made = kubelet.run_pod(pod(name, count, **more), PATIENCE)
    assert made.phase == "Running"
    return made.containers[0]


def test_three_jobs_of_8_gib_run_on_a_gpu_of_16(node):
    kubelet, agent, driver = node
    containers = [started(kubelet, f"job{n}", annotations=OVERSUBSCRIBED) for n in range(3)]
    programs = [program(driver, container) for container in containers]
    try:
        for one in programs:
            assert one.do("total a", 0).first == 8 * GIB
            for name in "abcdefg":
                assert one.do(f"alloc {name}", GIB).code == SUCCESS
            assert one.do("alloc h", GIB).code == OUT_OF_MEMORY
        for container in containers:
            limits = gpu_limits(container)
            usage = vcuda.read_ledger(allocation_dir(container) / contract.LEDGER_FILE)
            (uuid,) = usage.gpu_uuids
            assert limits[0].physical_bytes == 4 * GIB
            assert usage.managed(uuid) == 4 * GIB
            assert usage.used(uuid) - usage.managed(uuid) <= 4 * GIB
        agent.kill()
        agent.start()
        wait_back(kubelet, agent, 3)
        assert len(agent.status()) == 3, "the allocations are found again"
        for container in containers:
            assert gpu_limits(container)[0].physical_bytes == 4 * GIB
    finally:
        for one in programs:
            one.kill()


def test_without_the_annotation_a_pod_waits_for_the_gpus_own_memory(node):
    kubelet, agent, driver = node
    plain = [started(kubelet, f"plain{n}") for n in range(2)]
    kubelet.create_pod(pod("third", 1))
    agent.wait_event("start delayed")
    waiting = [one["state"] for one in agent.status()]
    assert waiting.count("waiting") == 1
    with program(driver, plain[0]) as one:
        assert one.do("alloc a", 7 * GIB).code == SUCCESS
        assert one.do("alloc b", GIB).code == OUT_OF_MEMORY
    assert gpu_limits(plain[0])[0].physical_bytes == 0


def test_the_agent_gives_time_slices_and_no_program_misses_it(small_node):
    """Two containers of 4 GiB on a GPU of 4: the agent gives time slices, is killed in the middle, and comes back.

    When time slices are worth it is tested without a clock, in tests/unit/gigaslice/core/limits/test_time_slicing.py.
    """
    kubelet, agent, driver = small_node
    containers = [started(kubelet, f"job{n}", 4, annotations=OVERSUBSCRIBED) for n in range(2)]
    jobs = []
    try:
        for container in containers:
            quota = {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(allocation_dir(container))}
            command = [sys.executable, "-c", PROGRAM, str(10**9), "2ms", "1e9", "6"]
            jobs.append(
                subprocess.Popen(
                    command, env={**driver, **quota}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            assert jobs[-1].stdout.readline() == "ready\n"
        for job in jobs:
            job.stdin.write("\n")
            job.stdin.flush()
        agent.wait_event("time slicing started")
        agent.kill()
        uuid = gpu_of(containers[0])
        ledgers = [allocation_dir(container) / contract.LEDGER_FILE for container in containers]
        before = [vcuda.read_time_slices(ledger, [uuid])[uuid].progress for ledger in ledgers]
        wait_until(
            lambda: all(
                vcuda.read_time_slices(ledger, [uuid])[uuid].progress > seen + 5
                for ledger, seen in zip(ledgers, before, strict=True)
            ),
            "both go on",
        )
        known = len(agent.events("time slicing started"))
        agent.start()
        agent.wait_event("time slicing started", known + 1)
        assert all(job.poll() is None for job in jobs)
    finally:
        for job in jobs:
            job.kill()
            job.communicate()
