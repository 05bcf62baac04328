"""The five calls where the API server is known: whom they are for, what is said on pods, what the gate waits for."""

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import grpc
import pytest

from agent.kube.decode import parse_pod
from agent.kubelet import plugin as plugin_module
from agent.kubelet.admission import Admissions
from agent.kubelet.allocator import Allocator
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from agent.kubelet.plugin import DevicePlugin
from agent.kubelet.whose import ListedPod
from tests.fakes.cluster import MemoryCluster
from tests.fakes.kubeapi import pod_document
from tests.fakes.nodes import all_tokens, inventory, tokens, uuid

GPU = "gigaslice.io/vgpu-memory"


class Pods:
    """The kubelet's list: every pod of the cluster, each without devices until the test says otherwise."""

    def __init__(self, cluster):
        self.cluster, self.hidden, self.holding = cluster, [], {}

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
def call(store, allocator, short_dir, cluster, kubelet):
    def run(story):
        async def main():
            admissions = Admissions(store, kubelet, cluster, GPU)
            plugin = DevicePlugin(
                store, allocator, "env", lambda: None, lambda: None, admissions=admissions, cluster=cluster
            )
            server = grpc.aio.server()
            rpc.add_DevicePluginServicer_to_server(plugin, server)
            server.add_insecure_port(f"unix:{short_dir}/p.sock")
            await server.start()
            try:
                async with grpc.aio.insecure_channel(f"unix:{short_dir}/p.sock") as channel:
                    await asyncio.wait_for(story(rpc.DevicePluginStub(channel)), 60)
            finally:
                await plugin.close()
                await server.stop(grace=1)

        asyncio.run(main())

    return run


def pod(name, count, controlled=False, **annotations):
    full = {"gigaslice.io/" + key.replace("_", "-"): text for key, text in annotations.items()}
    return parse_pod(
        pod_document(name, {GPU: count}, annotations=full, controlled=controlled, uid=f"uid-{name}")
    )


def allocate(wanted):
    return api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=sorted(wanted))])


def pre_start(wanted):
    return api.PreStartContainerRequest(devices_ids=sorted(wanted))


async def prefer(stub, size):
    request = api.PreferredAllocationRequest(
        container_requests=[
            api.ContainerPreferredAllocationRequest(
                available_deviceIDs=all_tokens(inventory()), allocation_size=size
            )
        ]
    )
    (answer,) = (await stub.GetPreferredAllocation(request)).container_responses
    return list(answer.deviceIDs)


async def refusal(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value.details()


def test_a_pods_annotations_reach_preference_and_allocation_and_it_is_told(call, cluster, store):
    cluster.put(pod("a", 8, gpus="2"))

    async def story(stub):
        wanted = await prefer(stub, 8)
        assert {token.rpartition("/")[0] for token in wanted} == {uuid(0), uuid(1)}
        (answer,) = (await stub.Allocate(allocate(wanted))).container_responses
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == f"{uuid(0)},{uuid(1)}"
        await stub.PreStartContainer(pre_start(wanted))

    call(story)
    (text,) = cluster.said("GigasliceAllocated")
    assert f"4 GiB of {uuid(0)}, 4 GiB of {uuid(1)}" in text
    assert store.book.grants[0].owner.uid == "uid-a"


def test_a_request_that_can_never_fit_is_said_on_the_pod_too(call, cluster):
    cluster.put(pod("a", 2, gpu_type="H100"))

    async def story(stub):
        assert "no GPU of type H100" in await refusal(stub.Allocate(allocate(tokens(0, 1, 2))))

    call(story)
    assert "no GPU of type H100" in cluster.said("GigasliceImpossible")[0]


def test_a_mistake_is_said_at_once_and_the_start_waits_for_its_correction(call, cluster, monkeypatch):
    monkeypatch.setattr(plugin_module, "_GATE_PATIENCE", 0.2)
    cluster.put(pod("a", 2, cores="lots"))

    async def story(stub):
        wanted = await prefer(stub, 2)
        await stub.Allocate(allocate(wanted))
        (text,) = cluster.said("GigasliceAnnotation")
        assert 'gigaslice.io/cores: "lots" must be a whole number from 0 to 100' in text
        assert text == await refusal(stub.PreStartContainer(pre_start(wanted)))
        assert cluster.said("GigasliceWaiting") == [text]
        cluster.put(pod("a", 2, cores="20"))
        await stub.PreStartContainer(pre_start(wanted))

    call(story)


def test_an_annotation_that_is_nearly_one_is_mentioned(call, cluster):
    cluster.put(pod("a", 2, exklusive="true"))

    async def story(stub):
        wanted = await prefer(stub, 2)
        await stub.Allocate(allocate(wanted))
        await stub.PreStartContainer(pre_start(wanted))

    call(story)
    assert 'did you mean "gigaslice.io/exclusive"?' in cluster.said("GigasliceAnnotation")[0]


def test_a_pod_that_the_watch_shows_too_late_starts_with_what_it_wanted(call, cluster, kubelet, store):
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        wanted = await prefer(stub, 2)
        await stub.Allocate(allocate(wanted))
        assert store.book.grants[0].undecided
        starting = asyncio.ensure_future(stub.PreStartContainer(pre_start(wanted)))
        await asyncio.sleep(0.3)
        assert not starting.done()
        cluster.put(pod("late", 2, exclusive="true", cores="30"))
        await starting

    call(story)
    grant = store.book.grants[0]
    assert (grant.policy.exclusive, grant.policy.cores, grant.owner.pod) == (True, 30, "late")


def test_one_that_must_be_made_anew_is_evicted_if_something_makes_it_anew(
    call, cluster, kubelet, monkeypatch
):
    monkeypatch.setattr(plugin_module, "_GATE_PATIENCE", 0.3)
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        wanted = await prefer(stub, 2)
        await stub.Allocate(allocate(wanted))
        cluster.put(pod("late", 2, gpus="2"))
        assert "delete the pod" in await refusal(stub.PreStartContainer(pre_start(wanted)))
        assert cluster.evicted == [], "nothing would bring a bare pod back"
        cluster.put(pod("late", 2, gpus="2", controlled=True))
        for _ in range(2):
            assert "delete the pod" in await refusal(stub.PreStartContainer(pre_start(wanted)))
        assert len(cluster.evicted) == 1
        assert cluster.said("GigasliceEvicting")

    call(story)


def test_an_eviction_that_is_refused_is_asked_for_again(call, cluster, kubelet, monkeypatch):
    """By a disruption budget, say: the pod would wait for ever behind the gate."""
    monkeypatch.setattr(plugin_module, "_GATE_PATIENCE", 0.3)
    kubelet.hidden = [("default", "late")]
    refusals = ["a PodDisruptionBudget does not allow it now"]
    asked = []

    async def evict(found, **_):
        asked.append(found)
        if refusals:
            return refusals.pop()
        cluster.put(replace(found, ending=True))
        return None

    cluster.evict = evict

    async def story(stub):
        wanted = await prefer(stub, 2)
        await stub.Allocate(allocate(wanted))
        cluster.put(pod("late", 2, gpus="2", controlled=True))
        assert "delete the pod" in await refusal(stub.PreStartContainer(pre_start(wanted)))
        assert len(asked) == 1, "not ten times a second"
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 61.0, thread_time=time.thread_time)
        monkeypatch.setattr(plugin_module, "time", later)
        for _ in range(2):
            assert "delete the pod" in await refusal(stub.PreStartContainer(pre_start(wanted)))
        assert len(asked) == 2, "again, and not for one that is ending"

    call(story)


def test_annotations_that_stay_unknown_are_waited_for_a_while_only(
    call, cluster, kubelet, store, monkeypatch
):
    monkeypatch.setattr(plugin_module, "_GATE_PATIENCE", 0.2)
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        wanted = await prefer(stub, 2)
        await stub.Allocate(allocate(wanted))
        assert "annotations" in await refusal(stub.PreStartContainer(pre_start(wanted)))
        monkeypatch.setattr(Allocator, "age", lambda self, grant: 61.0)
        await stub.PreStartContainer(pre_start(wanted))

    call(story)
    assert not store.book.grants[0].undecided


def test_an_api_server_that_refuses_us_holds_nobody_back(call, cluster, kubelet, store):
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        wanted = await prefer(stub, 2)
        await stub.Allocate(allocate(wanted))
        cluster.expected = False
        await stub.PreStartContainer(pre_start(wanted))
        await stub.Allocate(allocate(tokens(1, 5)))
        assert not store.book.grants[-1].undecided

    call(story)


def test_the_start_gate_says_on_the_pod_what_it_waits_for(call, cluster, kubelet, monkeypatch):
    monkeypatch.setattr(plugin_module, "_GATE_PATIENCE", 0.2)

    async def story(stub):
        for name, size, wanted in (
            ("a", 18, tokens(0, *range(18))),
            ("b", 18, tokens(1, *range(18))),
            ("late", 8, tokens(0, 18, 19, 20, 21) | tokens(1, 18, 19, 20, 21)),
        ):
            cluster.put(pod(name, size))
            await stub.Allocate(allocate(wanted))
            kubelet.holding["default", name] = frozenset({"c0"})
        text = await refusal(stub.PreStartContainer(pre_start(wanted)))
        assert text.startswith("waiting for 2 GiB of GPU-") and "default/a/c0 (18 GiB)" in text
        assert cluster.said("GigasliceWaiting") == [text]

    call(story)
