# SPDX-License-Identifier: Apache-2.0
"""The driver as a kubelet finds it: over its sockets, with a store and fetches of its own."""

import asyncio
import json

import grpc
import pytest

from gigaslice.core.dataset.errors import SourceError
from gigaslice.roles.dataset_node.csi.pb import csi_v1_pb2 as csi
from gigaslice.roles.dataset_node.csi.pb import csi_v1_pb2_grpc as csi_rpc
from gigaslice.roles.dataset_node.store import DiskSpace
from tests.fakes.dataset_node import GPU, NodeWorld
from tests.fakes.dataset_storage import DENIED, Bucket
from tests.fakes.eventually import until
from tests.fakes.kubelet.csi import CsiPod, CsiVolumeOfPod, volume_handle

FILES = {"a/1": b"one" * 100, "a/2": b"two" * 5000, "b": b""}


def pod(name="p", *, secret=(), namespace="default", **attributes):
    given = {key.replace("__", "."): value for key, value in attributes.items()} or {
        "source": "s3://coco/train"
    }
    return CsiPod(name, [CsiVolumeOfPod("data", given, None if secret is None else dict(secret))], namespace)


@pytest.fixture
def world(short_dir):
    made = NodeWorld(short_dir)
    made.storage.buckets["coco"] = Bucket(dict(FILES))
    return made


def play(world, *stories, seconds=40):
    """Each story is one life of the service, and of the kubelet."""

    async def life(story):
        async with world.served():
            await world.kubelet.start()
            try:
                await asyncio.wait_for(world.kubelet.registered.wait(), 10)
                await asyncio.wait_for(story(), seconds)
            finally:
                if story is stories[-1]:
                    for bucket in world.storage.buckets.values():
                        bucket.hold.set()
                await world.kubelet.stop()
                for writer in world.agents:
                    writer.close()
                    await writer.wait_closed()
                world.agents.clear()

    async def main():
        for story in stories:
            await life(story)

    asyncio.run(main())


async def agent(world, resources=(GPU,)):
    """A GPU agent that waits for the service; returns its connection."""
    reader, writer = await asyncio.open_unix_connection(str(world.root / "r" / "gate" / "gate.sock"))
    writer.write(json.dumps({"gatekeeper": {"resources": resources}}).encode() + b"\n")
    world.agents.append(writer)
    await until(lambda: world.service.gate.resources)
    return reader, writer


async def ask(connection, uid, volumes=("data",)):
    reader, writer = connection
    writer.write(json.dumps({"id": 7, "ready": uid, "volumes": list(volumes)}).encode() + b"\n")
    return json.loads(await reader.readline())


def test_it_registers_and_says_who_it_is(world):
    async def story():
        kubelet = world.kubelet
        assert (kubelet.driver, kubelet.node_id) == ("dataset.gigaslice.io", "lab-node")
        assert [one["rpc"] for one in kubelet.calls] == [
            "pluginregistration.Registration/GetInfo",
            "csi.v1.Node/NodeGetInfo",
            "pluginregistration.Registration/NotifyRegistrationStatus",
        ]
        assert world.service.unready() is None
        assert world.metric("gigaslice_dataset_registered") == 1
        async with grpc.aio.insecure_channel(f"unix:{kubelet.endpoint}") as channel:
            identity, node = csi_rpc.IdentityStub(channel), csi_rpc.NodeStub(channel)
            info = await identity.GetPluginInfo(csi.GetPluginInfoRequest())
            assert (info.name, info.vendor_version) == ("dataset.gigaslice.io", "test")
            assert (await identity.Probe(csi.ProbeRequest())).ready.value is True
            assert not (await identity.GetPluginCapabilities(csi.GetPluginCapabilitiesRequest())).capabilities
            assert not (await node.NodeGetCapabilities(csi.NodeGetCapabilitiesRequest())).capabilities
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await node.NodeStageVolume(csi.NodeStageVolumeRequest())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    play(world, story)


def test_a_dataset_is_fetched_once_and_mounted_for_each_pod(world):
    async def story():
        bucket = world.storage.buckets["coco"]
        pods = [world.kubelet.run(pod(f"p{number}")) for number in range(8)]
        await asyncio.gather(*(one.ready.wait() for one in pods))
        (image,) = {name for one in pods for name in world.shown(one)}
        assert image.endswith(".img")
        assert bucket.read_bytes == sum(map(len, FILES.values()))
        # one that is given up may have opened the source and not listed it
        assert 1 <= bucket.listings <= bucket.opened == bucket.closed <= 8
        counters = world.service.counters
        assert (counters.misses, counters.hits + counters.joins, counters.fetches) == (1, 7, 1)
        for one in pods:
            world.kubelet.delete(one)
        await until(lambda: not world.kubelet.pods)
        assert not [one for one in world.mounts.mounts if "/pods/" in one.point]
        assert not world.service.store.records()

    play(world, story)


def test_a_held_call_is_told_how_far_it_is_and_the_work_goes_on(world):
    async def story():
        bucket = world.storage.buckets["coco"]
        bucket.hold.clear()
        world.service.csi._node._hold = 0.6
        one = world.kubelet.run(pod())
        await until(lambda: len(one.events) >= 2)
        assert all(
            "rpc error: code = Aborted desc = dataset s3://coco/train: " in text for text in one.events
        )
        assert "fetching 0 %" in one.events[-1] or "waiting" in one.events[-1]
        bucket.hold.set()
        await one.ready.wait()
        assert bucket.listings == 1, "a task lists once, however often it is asked for"

    play(world, story)


def test_publishing_again_is_instant_and_changes_nothing(world):
    async def story():
        one = world.kubelet.run(pod())
        await one.ready.wait()
        before = list(world.mounts.mounts)
        for _ in range(3):
            assert await world.kubelet._publish(one, one.volumes[0])
        assert world.mounts.mounts == before
        assert world.storage.buckets["coco"].listings == 1

    play(world, story)


def test_a_kubelet_that_restarts_publishes_everything_again(world):
    async def story():
        one = world.kubelet.run(pod())
        await one.ready.wait()
        await world.kubelet.stop()
        before, calls = list(world.mounts.mounts), len(world.kubelet.rpcs("NodePublishVolume"))
        await world.kubelet.start()
        await until(lambda: len(world.kubelet.rpcs("NodePublishVolume")) > calls)
        await until(lambda: "reply" in world.kubelet.rpcs("NodePublishVolume")[-1])
        assert world.mounts.mounts == before
        assert len(world.kubelet.rpcs("GetInfo")) == 2

    play(world, story)


def test_after_a_reboot_the_pod_has_the_version_that_it_had(world):
    async def story():
        bucket = world.storage.buckets["coco"]
        one = world.kubelet.run(pod())
        await one.ready.wait()
        (image,) = world.shown(one)
        bucket.files["a/1"] = b"changed"
        world.mounts.reboot()
        assert await world.kubelet._publish(one, one.volumes[0])
        assert world.shown(one) == [image]
        other = world.kubelet.run(pod("q"))
        await other.ready.wait()
        assert world.shown(other) != [image], "a new pod gets the new version"

    play(world, story)


def test_unpublish_of_what_is_not_there(world):
    async def story():
        one = pod()
        target = world.kubelet.target(one, "data")
        target.parent.mkdir(parents=True)
        async with grpc.aio.insecure_channel(f"unix:{world.kubelet.endpoint}") as channel:
            node = csi_rpc.NodeStub(channel)
            request = csi.NodeUnpublishVolumeRequest(volume_id="csi-1", target_path=str(target))
            await node.NodeUnpublishVolume(request)
            target.mkdir()
            await node.NodeUnpublishVolume(request)
            assert not target.exists()

    play(world, story)


@pytest.mark.parametrize(
    ("attributes", "code", "said"),
    [
        ({"sorce": "s3://coco"}, "InvalidArgument", 'no "sorce"; did you mean source?'),
        ({"source": "s3://coco", "mode": "local"}, "InvalidArgument", "write mode: cache"),
        ({"source": "s3://missing"}, "PermissionDenied", DENIED),
        ({"source": "file:///etc"}, "InvalidArgument", "file:///etc is not allowed on this node"),
        ({"source": "nfs://server/export"}, "InvalidArgument", "nfs://server with --allow"),
        ({"dataset": "coco"}, "InvalidArgument", "this service reads no Dataset objects"),
    ],
)
def test_what_cannot_be_served_is_one_sentence_in_the_pods_event(world, attributes, code, said):
    async def story():
        one = world.kubelet.run(pod(**attributes))
        await until(lambda: len(one.events) >= 2)
        assert all(f"rpc error: code = {code} desc = " in text and said in text for text in one.events)
        assert not world.kubelet.target(one, "data").exists()

    play(world, story)


def test_without_the_right_to_list_nothing_shows_whether_it_is_cached(world):
    """Another namespace names the same source: no hit, no bytes, no other text than for what there is not."""

    async def story():
        world.storage.buckets["coco"].key = "k1"
        first = world.kubelet.run(pod("first", secret={"key": "k1"}))
        await first.ready.wait()
        told = []
        for source, secret in (
            ("s3://coco/train", {"key": "k2"}),
            ("s3://coco/train", {}),
            ("s3://none/x", {}),
        ):
            one = world.kubelet.run(pod(f"p{len(told)}", secret=secret, namespace="other", source=source))
            await until(lambda one=one: one.events)
            told.append(one.events[0])
            assert not world.shown(one)
            world.kubelet.delete(one)
        assert len(set(told)) == 1
        second = world.kubelet.run(pod("second", secret={"key": "k1"}, namespace="other"))
        await second.ready.wait()
        assert world.service.counters.misses == 1
        assert "k1" not in json.dumps([str(one) for one in world.said])

    play(world, story)


def test_a_missing_secret_is_no_call(world):
    async def story():
        one = world.kubelet.run(pod(secret=None))
        await until(lambda: len(one.events) >= 2)
        assert "fetching NodePublishSecretRef default/missing failed" in one.events[0]
        assert not world.kubelet.rpcs("NodePublishVolume")

    play(world, story)


def test_several_datasets_are_directories_of_one_volume(world):
    async def story():
        world.storage.buckets["other"] = Bucket({"x": b"y"})
        one = world.kubelet.run(pod(source__coco="s3://coco/train", source__other="s3://other"))
        await one.ready.wait()
        names = [world.shown(one, directory=name)[0] for name in ("coco", "other")]
        assert len(set(names)) == 2
        world.kubelet.delete(one)
        await until(lambda: not world.kubelet.pods)
        assert not [one for one in world.mounts.mounts if "/pods/" in one.point]

    play(world, story)


def test_no_room_is_said_and_what_the_kernel_can_mount_is_read_from_the_storage(short_dir):
    world = NodeWorld(short_dir, allow="s3,nfs")
    world.storage.buckets.update(coco=Bucket({"big": bytes(1 << 20)}), server=Bucket({"big": bytes(1 << 20)}))
    world.disk = lambda: DiskSpace(1 << 20, 1 << 19)

    async def story():
        one = world.kubelet.run(pod("one"))
        await until(lambda: one.events)
        assert "code = ResourceExhausted desc = no room for s3://coco/train" in one.events[0]
        two = world.kubelet.run(pod("two", source="nfs://server/export"))
        await two.ready.wait()
        assert world.mounts.at(world.kubelet.target(two, "data")) == ["server:/export"]
        assert "DatasetNotCached" in world.reasons(two)
        assert world.service.counters.fallbacks == 1
        world.kubelet.delete(two)
        await until(lambda: not [one for one in world.mounts.mounts if one.source == "server:/export"])

    play(world, story)


def test_local_mode_mounts_the_storage_itself(short_dir):
    world = NodeWorld(short_dir, allow=f"nfs://server/export,{short_dir}/data")
    (short_dir / "data" / "train").mkdir(parents=True)
    (short_dir / "data" / "link").symlink_to("/etc")

    async def story():
        one = world.kubelet.run(pod("one", source="nfs://server/export/a", mode="local"))
        two = world.kubelet.run(pod("two", source=f"{short_dir}/data/train", mode="local"))
        refused = world.kubelet.run(pod("three", source=f"{short_dir}/data2", mode="local"))
        linked = world.kubelet.run(pod("four", source=f"{short_dir}/data/link", mode="local"))
        await asyncio.gather(one.ready.wait(), two.ready.wait())
        await until(lambda: linked.events)
        assert "a part of the path is a symbolic link" in linked.events[0]
        assert world.mounts.at(world.kubelet.target(one, "data")) == ["server:/export/a"]
        assert world.mounts.at(world.kubelet.target(two, "data")) == ["/dev/sda1"]
        await until(lambda: refused.events)
        assert "is not allowed on this node" in refused.events[0]

    play(world, story)


@pytest.mark.parametrize("change", ["read_only", "target", "volume_id", "pod", "block"])
def test_a_call_that_no_kubelet_makes_is_refused(world, change):
    async def story():
        one = pod()
        target = world.kubelet.target(one, "data")
        target.parent.mkdir(parents=True)
        request = csi.NodePublishVolumeRequest(
            volume_id="csi-1",
            target_path=str(target),
            readonly=True,
            volume_context={
                "source": "s3://coco",
                **{f"csi.storage.k8s.io/pod.{key}": value for key, value in
                   (("uid", one.uid), ("name", "p"), ("namespace", "default"))},
            },
        )  # fmt: skip
        if change == "read_only":
            request.readonly = False
        elif change == "target":
            request.target_path = "/etc"
        elif change == "volume_id":
            request.volume_id = "../x"
        elif change == "pod":
            del request.volume_context["csi.storage.k8s.io/pod.uid"]
        else:
            request.volume_capability.block.SetInParent()
        async with grpc.aio.insecure_channel(f"unix:{world.kubelet.endpoint}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await csi_rpc.NodeStub(channel).NodePublishVolume(request, timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not [one for one in world.mounts.mounts if "/pods/" in one.point]

    play(world, story)


def test_early_a_placeholder_is_published_and_the_data_are_mounted_over_it(world):
    async def story():
        assert world.metric("gigaslice_dataset_agents") == 0
        connection = await agent(world)
        assert world.metric("gigaslice_dataset_agents") == 1
        bucket = world.storage.buckets["coco"]
        bucket.hold.clear()
        one = pod()
        world.asking.add(one.uid)
        world.kubelet.run(one)
        await one.ready.wait()
        assert world.shown(one) == ["gigaslice-dataset"]
        assert world.metric("gigaslice_dataset_volumes", "pending") == 1
        answer = await ask(connection, one.uid)
        assert answer["ready"] is False
        assert answer["detail"].startswith("waiting for dataset s3://coco/train: ")
        bucket.hold.set()
        while not (await ask(connection, one.uid))["ready"]:
            await asyncio.sleep(0.02)
        assert len(world.shown(one)) == 2
        assert world.shown(one)[-1].endswith(".img")
        assert "DatasetReady" in world.reasons(one)
        await until(lambda: not list((world.root / "r" / "early").iterdir()))
        assert world.metric("gigaslice_dataset_gate_waits_total") == 1
        assert world.metric("gigaslice_dataset_gate_wait_seconds_total") > 0
        assert world.metric("gigaslice_dataset_volumes", "pending") == 0
        world.kubelet.delete(one)
        await until(lambda: not world.kubelet.pods)
        assert not [one for one in world.mounts.mounts if "/pods/" in one.point]

    play(world, story)


@pytest.mark.parametrize("lacks", ["agent", "gpu", "memory", "specification"])
def test_where_a_start_would_not_wait_the_call_is_held(world, lacks):
    async def story():
        if lacks != "agent":
            await agent(world)
        world.storage.buckets["coco"].hold.clear()
        world.service.csi._node._hold = 1.0
        one = pod(secret={"key": "x"})
        if lacks != "gpu":
            world.asking.add(one.uid)
        if lacks == "specification":
            world.pod = _no_pod
            world.service.tasks._pods = world
        world.kubelet.run(one)
        await until(lambda: one.events)
        assert "code = Aborted" in one.events[0]
        assert not world.shown(one)

    world.memory = lacks != "memory"
    play(world, story)


async def _no_pod(volume):
    return None


def test_an_early_volume_goes_on_after_the_service_has_ended(world):
    async def first():
        await agent(world)
        world.storage.buckets["coco"].key = "k1"
        world.storage.buckets["coco"].hold.clear()
        one = world.kubelet.run(pod(secret={"key": "k1"}))
        world.asking.add(one.uid)
        await one.ready.wait()
        (kept,) = (world.root / "r" / "early").iterdir()
        assert kept.stat().st_mode & 0o777 == 0o600

    async def second():
        world.storage.buckets["coco"].hold.set()
        (one,) = world.kubelet.pods.values()
        connection = await agent(world)
        while not (await ask(connection, one.uid))["ready"]:
            await asyncio.sleep(0.02)
        assert world.shown(one)[-1].endswith(".img")
        await until(lambda: not list((world.root / "r" / "early").iterdir()))

    world.fetch_patience = 0.1
    play(world, first, second)


def test_the_gate_says_no_of_what_it_does_not_know(world):
    async def story():
        connection = await agent(world)
        answer = await ask(connection, "some-uid", ["data", "more"])
        assert answer == {
            "id": 7,
            "ready": False,
            "detail": "waiting for volume data has not been published yet; volume more has not been published yet",
        }
        connection[1].write(b'{"id": 8, "ready": "some-uid"}\n')
        assert json.loads(await connection[0].readline())["ready"] is True, "a pod without volumes"

    play(world, story)


def test_a_source_that_fails_for_a_while(world):
    async def story():
        world.storage.buckets["coco"].fails = [SourceError("the storage does not answer", retry=True)] * 2
        one = world.kubelet.run(pod())
        await one.ready.wait()
        assert [text.partition("desc = ")[0][-19:] for text in one.events] == ["code = Unavailable "] * 2
        assert "DatasetNotReady" in world.reasons(one)

    play(world, story)


def test_sockets_that_are_removed_are_made_anew(world):
    async def story():
        world.service.csi._check = 0.05
        world.kubelet.registered.clear()
        (world.kubelet.registry / "dataset.gigaslice.io-reg.sock").unlink()
        await asyncio.wait_for(world.kubelet.registered.wait(), 20)
        one = world.kubelet.run(pod())
        await one.ready.wait()

    play(world, story)


def test_a_pod_that_is_deleted_while_its_data_are_fetched(world):
    async def story():
        bucket = world.storage.buckets["coco"]
        bucket.hold.clear()
        world.service.csi._node._hold = 0.6
        one = world.kubelet.run(pod())
        await until(lambda: one.events)
        world.kubelet.delete(one)
        await asyncio.sleep(0.3)
        bucket.hold.set()
        await until(lambda: not world.kubelet.pods)
        await until(lambda: not world.service.flights.keys())
        assert not world.service.tasks.tasks
        assert bucket.opened == bucket.closed
        assert not [one for one in world.mounts.mounts if "/pods/" in one.point]
        assert volume_handle(one.uid, "data") not in world.service.store.records()

    play(world, story)
