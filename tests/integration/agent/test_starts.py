# SPDX-License-Identifier: Apache-2.0
"""Held starts: how long a container waits for memory that has become free, and what the waiting costs others."""

import asyncio
from dataclasses import replace

import grpc
import pytest

from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from tests.fakes.kubeapi import NODE
from tests.fakes.kubelet import FakeKubelet, Pace, Runtime
from tests.fakes.nodes import uuid
from tests.fakes.plugin_calls import allocate, pre_start
from tests.integration.agent.conftest import PATIENCE, QUICK, RESOURCE, AgentProcess, pod, wait_until

REAL = replace(QUICK, pace=Pace())
HELD = 64


@pytest.fixture
def waiting(directory, api):
    """A node on which two pods leave 6 GiB on each of two GPUs, and a third one waits for 8: kubelet, agent, pods."""
    kubelet = FakeKubelet(directory / "kubelet", 7, settings=REAL, runtime=Runtime("plain"), api=api)
    agent = AgentProcess(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
    agent.flags |= {"--kubeconfig": api.kubeconfig(directory), "--node-name": NODE}
    kubelet.start()
    try:
        agent.start()
        agent.wait_event("watching")
        kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)
        first, _ = (kubelet.run_pod(pod(name, 18)) for name in ("first", "second"))
        late = kubelet.create_pod(pod("late", 8))
        wait_until(lambda: api.events("WaitingForGPU"), "said")
        yield kubelet, first, late
        assert agent.terminate() == 0
    finally:
        if agent.process is not None:
            agent.kill()
        kubelet.close()


def test_memory_that_becomes_free_is_used_before_the_kubelet_would_ask_again(waiting):
    kubelet, first, late = waiting
    kubelet.delete_pod(first)
    late.wait_for(lambda one: one.phase != "Pending", PATIENCE)
    assert late.phase == "Running"
    assert not [event for event in late.events if event.reason == "Failed"], "the start was never refused"


def test_a_pod_that_is_deleted_while_its_start_is_held_ends_then(waiting):
    kubelet, _, late = waiting
    kubelet.delete_pod(late, timeout_s=15.0)  # of 25 that the call is held for
    assert late.ended.is_set() and late.phase == "Pending"


def test_held_starts_leave_the_kubelets_other_calls_alone(kubelet, agent):
    """They are held on the connection by which the kubelet admits the pods of the whole node."""
    gpus = "gpus:\n" + "".join(
        f"  - {{uuid: {uuid(n)}, model: NVIDIA L4, memory: {HELD}GiB, healthy: %s}}\n" for n in range(2)
    )
    agent.inventory.write_text(gpus % ("true", "true"))
    agent.flags["--poll-interval"] = "10m"  # no pod of the kubelet has these allocations
    kubelet.start()
    agent.start()
    kubelet.wait_allocatable(RESOURCE, 2 * HELD, PATIENCE)

    async def story():
        async with grpc.aio.insecure_channel(f"unix:{agent.socket}") as channel:
            stub = rpc.DevicePluginStub(channel)
            for number in range(HELD):
                await stub.Allocate(allocate([f"{uuid(0)}/{number}"]))
            agent.inventory.write_text(gpus % ("false", "true"))
            await asyncio.to_thread(kubelet.wait_allocatable, RESOURCE, HELD, PATIENCE)
            starts = [
                asyncio.ensure_future(stub.PreStartContainer(pre_start([f"{uuid(0)}/{number}"]), timeout=30))
                for number in range(HELD)
            ]
            await asyncio.wait(starts, timeout=0.5)
            (answer,) = (await stub.Allocate(allocate([f"{uuid(1)}/0"]))).container_responses
            assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == uuid(1)
            assert not all(one.done() for one in starts), "it did not wait for them"
            agent.inventory.write_text(gpus % ("true", "true"))
            for one in await asyncio.gather(*starts, return_exceptions=True):
                assert not isinstance(one, grpc.aio.AioRpcError) or one.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(story())
