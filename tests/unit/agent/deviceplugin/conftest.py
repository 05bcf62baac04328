# SPDX-License-Identifier: Apache-2.0
"""The calls of a kubelet with an API server: a provider behind a front, and pods that the test puts in."""

import asyncio

import pytest

from agent.allocation.start_wait import StartTimes
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from gigaslice.core.deviceplugin.lifetime import ListedPod
from tests.fakes.cluster import MemoryCluster
from tests.fakes.served import gpu_memory, served


class Pods:
    """The kubelet's list: every pod of the cluster, each without devices until the test says otherwise."""

    def __init__(self, cluster):
        self.cluster, self.hidden, self.holding = cluster, [], {}
        self.settled = self.informed = True

    async def pods(self):
        names = [(pod.namespace, pod.name) for pod in self.cluster.pods.values()] + self.hidden
        return tuple(
            ListedPod(
                *name, self.holding.get(name, frozenset()), frozenset({"c0"}) - self.holding.get(name, set())
            )
            for name in names
        )


@pytest.fixture
def cluster():
    return MemoryCluster()


@pytest.fixture
def kubelet(cluster):
    return Pods(cluster)


@pytest.fixture
def world(store, allocator, kubelet):
    return store, allocator, kubelet


@pytest.fixture
def kept():
    """What the kubelet's checkpoint holds of our answers; [None] is one that cannot be read."""
    return [None]


@pytest.fixture
def times():
    """How long starts are waited for, where a call says nothing else."""
    return StartTimes()


@pytest.fixture
def call(world, gpus, short_dir, cluster, kept, *, times):
    store, allocator, kubelet = world

    def run(story, times=times):
        async def main():
            parts = gpu_memory(
                store, allocator, gpus, kubelet=kubelet, cluster=cluster,
                kept_responses=lambda: None if kept == [None] else kept, times=times,
            )  # fmt: skip
            async with served(parts.servicer, short_dir) as channel:
                await asyncio.wait_for(story(rpc.DevicePluginStub(channel)), 60)

        asyncio.run(main())

    return run
