# SPDX-License-Identifier: Apache-2.0
"""The door of the tasks: one record per volume, held and early calls, restarts, deletions, and who is told what."""

import asyncio
import dataclasses
import json
import threading
from pathlib import Path

import pytest

from gigaslice.core.dataset.errors import RequestError, SourceError
from gigaslice.core.dataset.objects import parse_dataset, parse_dataset_node
from gigaslice.core.model import DATASET_DRIVER, CsiVolume, Pod, PodContainer
from gigaslice.roles.controller.dataset_statuses import _parse, dataset_status
from gigaslice.roles.dataset_node.publishing import node_document
from gigaslice.roles.dataset_node.tasks.dataset_status import Stage
from gigaslice.roles.dataset_node.tasks.volume_tasks import StillFetching, volume_name
from gigaslice.roles.scheduler.datasets import DatasetIndex
from tests.fakes.dataset_node import GPU
from tests.fakes.dataset_storage import DENIED
from tests.fakes.eventually import until
from tests.unit.gigaslice.roles.dataset_node.tasks.conftest import KEY

COCO = {"source": "s3://coco/train"}


def publish(world, name="p", secret=KEY, namespace="team", *, attributes=COCO, seconds=20.0, hold=False):
    tasks, volume = world.service.tasks, world.volume(name, namespace)
    return tasks.publish(volume, attributes, secret, seconds, hold=hold)


async def refused(work, kind=SourceError):
    with pytest.raises(kind) as caught:
        await work
    return str(caught.value)


@pytest.fixture
def early(world):
    """A GPU agent is connected, and every pod's container asks for its GPUs."""
    mounted_by = ["main"]

    class Pods:
        async def pod(self, volume):
            container = PodContainer("main", requests={GPU: 8})
            mounts = CsiVolume(volume_name(volume), DATASET_DRIVER, dict(COCO), mounted_by=tuple(mounted_by))
            return Pod(
                volume.namespace, volume.pod, volume.pod_uid, containers=(container,), volumes=(mounts,)
            )

    make = world.make

    def made():
        service = make()
        service.tasks._pods = Pods()
        service.tasks._early = dataclasses.replace(
            service.tasks._early, resources=lambda: (GPU,), keeps_secrets=world.memory
        )
        return service

    world.make = made
    return mounted_by


def test_a_volume_is_one_task_however_often_it_is_asked_for(world, play):
    async def story():
        bucket, tasks = world.storage.buckets["coco"], world.service.tasks
        bucket.hold.clear()
        calls = [asyncio.ensure_future(publish(world)) for _ in range(5)]
        await until(world.service.flights.keys)
        (task,) = tasks.tasks
        for number in range(3):
            text = await refused(publish(world, seconds=0.01), StillFetching)
            assert text.startswith("dataset s3://coco/train: "), number
        bucket.hold.set()
        await asyncio.gather(*calls)
        assert tasks.tasks == () and task.done
        assert (bucket.listings, bucket.opened, bucket.closed) == (1, 1, 1)
        (record,) = world.service.store.records().values()
        assert record.volume == world.volume("p")
        assert world.shown_at(record.volume)[0].endswith(".img")

    play(story)


def test_what_is_published_is_answered_without_a_listing_a_secret_or_a_right_attribute(world, play):
    async def story():
        await publish(world)
        before = list(world.mounts.mounts)
        await publish(world, secret={}, attributes={"source": "nonsense"})
        assert world.mounts.mounts == before
        assert world.storage.buckets["coco"].listings == 1
        assert await refused(publish(world, "q", {})) == DENIED, "another pod's volume proves nothing"

    play(story)


def test_a_call_that_is_held_ends_with_how_far_it_is_and_the_next_one_finds_the_same_task(world, play):
    async def story():
        bucket = world.storage.buckets["coco"]
        bucket.hold.clear()
        assert "s3://coco/train" in await refused(publish(world, seconds=0.6), StillFetching)
        (task,) = world.service.tasks.tasks
        bucket.hold.set()
        assert await task.wait(20)
        await publish(world, seconds=0.6)
        assert (bucket.listings, world.service.tasks.tasks) == (1, ())

    play(story)


def test_a_failure_is_the_answer_of_one_call_and_the_next_one_tries_again(world, play):
    async def story():
        bucket = world.storage.buckets["coco"]
        bucket.fails = [SourceError("busy", retry=True)]
        assert await refused(publish(world)) == "busy"
        await publish(world)
        assert bucket.listings == 2

    play(story)


def test_early_the_call_returns_at_once_and_the_data_are_mounted_later(world, play, early):
    async def story():
        bucket, tasks, volume = world.storage.buckets["coco"], world.service.tasks, world.volume("p")
        bucket.hold.clear()
        word = world.root / "r" / "gate" / "published-early"
        await publish(world)
        assert world.shown_at(volume) == ["gigaslice-dataset"] and word.exists()
        (task,) = tasks.tasks
        assert task.early
        assert "fetching" in await tasks.blocker(volume.pod_uid, ["data"])
        await publish(world)
        assert bucket.listings == 1
        bucket.hold.set()
        await until(lambda: not tasks.tasks)
        assert world.shown_at(volume)[-1].endswith(".img")
        assert await tasks.blocker(volume.pod_uid, ["data"]) is None
        assert not list((world.root / "r" / "early").iterdir())

    play(story)


def test_early_is_not_for_containers_that_do_not_wait_nor_where_a_placeholder_is_of_no_use(
    world, play, early
):
    async def story():
        world.storage.buckets["coco"].hold.clear()
        await refused(publish(world, hold=True, seconds=0.8), StillFetching)
        early.append("sidecar")  # asks for no GPU
        await refused(publish(world, "q", seconds=0.8), StillFetching)
        early.clear()  # no container mounts it
        await refused(publish(world, "r", seconds=0.8), StillFetching)
        assert not any(world.shown_at(world.volume(name)) for name in "pqr")

    play(story)


def test_credentials_of_an_early_volume_are_kept_in_memory_only_and_for_root_only(world, play, early):
    async def story():
        world.storage.buckets["coco"].hold.clear()
        await publish(world)
        (kept,) = (world.root / "r" / "early").iterdir()
        assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert json.loads(kept.read_text())["credentials"] == KEY
        await world.service.tasks.unpublish(world.volume("p").id, world.volume("p").target)
        assert not kept.exists()

    play(story)


def test_credentials_that_a_later_call_brings_are_those_of_the_next_attempt_and_are_kept(world, play, early):
    """As when the Secret was wrong, and the kubelet has started anew and published every volume again."""

    async def story():
        tasks, bucket, volume = world.service.tasks, world.storage.buckets["coco"], world.volume("p")
        bucket.others, bucket.list_hold = {"old"}, asyncio.Event()
        await publish(world, secret={"key": "old"})
        (task,) = tasks.tasks
        bucket.others = set()
        bucket.fails.append(SourceError(f"{DENIED}", denied=True))
        bucket.list_hold.set()
        await until(lambda: task.failure)
        advice = f"{DENIED}; then delete the pod: a Secret is read when its volume is mounted"
        assert ("p", "Warning", "DatasetNotReady", advice) in world.said
        assert advice in await tasks.blocker(volume.pod_uid, ["data"])
        bucket.hold.clear()
        await publish(world)
        (kept,) = (world.root / "r" / "early").iterdir()
        assert json.loads(kept.read_text())["credentials"] == KEY
        bucket.hold.set()
        await until(lambda: not tasks.tasks)
        assert world.shown_at(volume)[-1].endswith(".img")

    play(story)


def test_where_nothing_is_kept_in_memory_a_volume_with_credentials_is_held(world, play, early):
    async def story():
        world.storage.buckets["coco"].hold.clear()
        await refused(publish(world, seconds=0.8), StillFetching)
        assert not (world.root / "r" / "early").exists()
        world.storage.buckets["coco"].key = ""
        await publish(world, "q", {}, seconds=0.8)
        assert world.shown_at(world.volume("q")) == ["gigaslice-dataset"]

    world.memory = False
    play(story)


def test_an_early_volume_goes_on_after_a_restart_and_its_source_must_still_be_allowed(world, play, early):
    world.fetch_patience = 0.1

    async def first():
        world.storage.buckets["coco"].hold.clear()
        await publish(world)
        await publish(world, "gone")
        gone = Path(world.volume("gone").target)
        gone.rmdir()
        gone.parent.rmdir()

    async def second():
        tasks = world.service.tasks
        tasks._dependencies = dataclasses.replace(tasks._dependencies, admit=_nothing)
        await tasks.restore()
        (task,) = tasks.tasks
        assert task.volume == world.volume("p"), "no task for a pod that is gone"
        await until(lambda: task.failure)
        assert str(task.failure) == "not allowed any more"
        assert world.storage.buckets["coco"].listings == 2

    async def third():
        tasks = world.service.tasks
        await tasks.restore()
        await until(lambda: not tasks.tasks)
        assert world.shown_at(world.volume("p"))[-1].endswith(".img")
        await tasks.restore()
        assert tasks.tasks == ()

    play(first, second, third)


def _nothing(spec):
    raise RequestError("not allowed any more")


def test_after_a_reboot_the_pod_gets_what_it_had_and_no_other_pod_does(world, play):
    async def story():
        await publish(world)
        shown = world.shown_at(world.volume("p"))
        world.mounts.reboot()
        world.storage.buckets["coco"].key = "changed"
        await publish(world)
        assert world.shown_at(world.volume("p")) == shown
        assert world.storage.buckets["coco"].listings == 1
        world.mounts.reboot()
        other = dataclasses.replace(world.volume("p"), namespace="evil")
        with pytest.raises(SourceError, match=DENIED):
            await world.service.tasks.publish(other, COCO, KEY, 20.0)

    play(story)


def test_unpublish_ends_the_fetch_that_no_other_volume_waits_for(world, play):
    async def story():
        bucket, tasks, volume = world.storage.buckets["coco"], world.service.tasks, world.volume("p")
        bucket.hold.clear()
        call = asyncio.ensure_future(publish(world))
        await until(world.service.flights.keys)
        call.cancel()
        await tasks.unpublish(volume.id, volume.target)
        bucket.hold.set()
        await until(lambda: not world.service.flights.keys() and bucket.opened == bucket.closed)
        assert (tasks.tasks, dict(world.service.store.records()), tasks._locks) == ((), {}, {})
        await tasks.unpublish(volume.id, volume.target)

    play(story)


def test_calls_of_one_volume_never_overlap_so_nothing_is_mounted_after_its_end(world, play, early):
    """Ended, published and ended again, each call coming while the one before is under way."""
    removing, go_on = threading.Event(), threading.Event()

    async def story():
        tasks, store, volume = world.service.tasks, world.service.store, world.volume("p")
        world.storage.buckets["coco"].hold.clear()
        looked_up, answer = asyncio.Event(), asyncio.Event()
        real_pod, real_remove = tasks._pods.pod, store.remove

        async def pod(volume):
            looked_up.set()
            await answer.wait()
            return await real_pod(volume)

        def remove(*args):
            removing.set()
            go_on.wait(10)
            real_remove(*args)

        tasks._pods.pod, store.remove = pod, remove
        ending = asyncio.ensure_future(tasks.unpublish(volume.id, volume.target))
        await until(removing.is_set)
        publishing = asyncio.ensure_future(publish(world))
        await asyncio.sleep(0.05)
        go_on.set()
        await ending
        await looked_up.wait()
        ending = asyncio.ensure_future(tasks.unpublish(volume.id, volume.target))
        await asyncio.sleep(0.3)
        answer.set()
        await asyncio.gather(publishing, ending, return_exceptions=True)
        assert (tasks.tasks, dict(store.records()), tasks._locks) == ((), {}, {})
        assert not world.shown_at(volume) and not list((world.root / "r" / "early").iterdir())

    play(story)


def test_a_task_whose_pod_is_gone_without_a_call_is_dropped(world, play):
    async def story():
        bucket, tasks, volume = world.storage.buckets["coco"], world.service.tasks, world.volume("p")
        bucket.hold.clear()
        await refused(publish(world, seconds=0.6), StillFetching)
        await tasks.sweep()
        assert tasks.tasks
        Path(volume.target).parent.rmdir()
        await tasks.sweep()
        assert tasks.tasks == ()

    play(story)


def test_a_task_that_no_call_comes_for_is_dropped_unless_it_is_early(world, play, early, monkeypatch):
    async def story():
        tasks = world.service.tasks
        world.storage.buckets["coco"].hold.clear()
        await refused(publish(world, seconds=0.6, hold=True), StillFetching)
        await publish(world, "q")
        for task in tasks.tasks:
            task.called -= 901
        await tasks.sweep()
        assert [one.volume.pod for one in tasks.tasks] == ["q"]

    play(story)


@pytest.mark.parametrize("ended", [False, True])
def test_a_volume_that_was_answered_as_published_is_never_unmounted_by_a_sweep(world, play, ended):
    """A call finds all mounted before the task has noticed, and no call follows."""
    mounted, go_on = threading.Event(), threading.Event()

    async def story():
        tasks, store, volume = world.service.tasks, world.service.store, world.volume("p")
        real = store.publish

        def slow(*args):
            real(*args)
            mounted.set()
            go_on.wait(10)

        store.publish = slow
        call = asyncio.ensure_future(publish(world, hold=True))
        await until(mounted.is_set)
        call.cancel()
        await publish(world)
        (task,) = tasks.tasks
        if ended:
            go_on.set()
            await until(lambda: task.done)
        task.called -= 901
        await tasks.sweep()
        assert world.shown_at(volume)[-1].endswith(".img") and volume.id in store.records()
        go_on.set()
        await until(lambda: task.done)
        await tasks.sweep()
        assert tasks.tasks == () and world.shown_at(volume)[-1].endswith(".img")

    play(story)


def test_storage_that_a_task_is_about_to_show_is_not_unmounted_when_another_pod_ends(world, play):
    at_publish, go_on = threading.Event(), threading.Event()

    async def story():
        tasks, store = world.service.tasks, world.service.store
        volume, other = world.volume("p"), world.volume("q")
        tasks._dependencies = dataclasses.replace(tasks._dependencies, admit=lambda spec: None)
        await publish(world, "q")
        real = store.publish

        def slow(*args):
            at_publish.set()
            go_on.wait(10)
            real(*args)

        store.publish = slow
        local = {"source": "nfs://server/export", "mode": "local"}
        call = asyncio.ensure_future(publish(world, attributes=local, secret={}))
        await until(at_publish.is_set)
        await tasks.unpublish(other.id, other.target)
        go_on.set()
        await call
        assert world.shown_at(volume) == ["export"]
        mounts = len(world.mounts.mounts)
        await tasks.unpublish(volume.id, volume.target)
        assert len(world.mounts.mounts) == mounts - 2, "the volume, and the storage that it showed"

    play(story)


def test_a_storage_server_that_is_gone_holds_up_its_own_volumes_only(world, play):
    """Opening a directory of it blocks, as long as the kernel asks the server; nothing else of the node may wait."""
    gone = threading.Event()
    binding = []

    async def story():
        service = world.service
        tasks, real = service.tasks, world.mounts.bind
        tasks._dependencies = dataclasses.replace(tasks._dependencies, admit=lambda spec: None)

        def bind(source, where):
            if "/local/" in str(source):
                binding.append(where)
                gone.wait(20)
            real(source, where)

        world.mounts.bind = bind
        local = {"source": "nfs://dead/export", "mode": "local"}
        names = [f"dead-{number}" for number in range(12)]
        held = [asyncio.ensure_future(publish(world, one, attributes=local, secret={})) for one in names]
        try:
            await until(lambda: len(binding) == 12)
            assert len(service.store.records()) == 12
            await asyncio.wait_for(publish(world), 5)
            assert await asyncio.wait_for(tasks.blocker(world.volume("p").pod_uid, ["data"]), 5) is None
            await asyncio.wait_for(tasks.unpublish(world.volume("p").id, world.volume("p").target), 5)
        finally:
            gone.set()
            await asyncio.gather(*held)
        assert all(world.shown_at(world.volume(one)) == ["export"] for one in names)

    play(story)


@pytest.mark.parametrize("check", ["listing", "pinned"])
def test_what_a_secret_says_about_the_place_hides_no_copy_from_its_dataset_or_the_scheduler(
    world, play, check
):
    """The Secret names the endpoint, which is a part of what the copy is; Datasets and pods have the bucket alone."""

    async def story():
        service = world.service
        world.api.put("team", "coco", source=COCO["source"])
        secret = {**KEY, "endpoint": "http://minio.storage:9000"}
        await publish(world, secret=secret, attributes={"dataset": "coco"})
        (there,) = service.store.stored()
        assert there.metadata.source == "s3://coco/train?endpoint=http://minio.storage:9000"
        records = service.store.records().values()
        uses = service.uses.shown(records, {there.metadata.key})
        node = parse_dataset_node(
            node_document("a", [there], 10**9, {}, uses, texts=service.uses.texts).document()
        )
        pinned = {"check": "pinned", "digest": there.metadata.listing} if check == "pinned" else {}
        document = {
            "metadata": {"name": "coco", "namespace": "team", "uid": "u", "resourceVersion": "1"},
            "spec": {"source": COCO["source"], **pinned},
        }
        status = dataset_status(_parse(document), [node])
        assert (status["phase"], status["nodeNames"], status["holders"]) == ("Ready", ["a"], ["team/p"])
        index = DatasetIndex()
        index.put_node(node)
        index.put_object(parse_dataset(document))
        for attributes in (COCO, {"dataset": "coco"}):
            volumes = (CsiVolume("data", DATASET_DRIVER, attributes),)
            requested = index.requested(Pod("team", "q", "u", volumes=volumes))
            assert index.shares(requested, 0.0) == {"a": 1.0}
        index.drop_node(node)
        assert not index._where and not index._versions

    play(story)


def test_a_container_waits_for_every_volume_that_it_mounts(world, play):
    async def story():
        tasks, volume = world.service.tasks, world.volume("p")
        assert await tasks.blocker(volume.pod_uid, ["data"]) == (
            "waiting for volume data has not been published yet"
        )
        assert await tasks.blocker(volume.pod_uid, None) is None, "a pod without volumes"
        await publish(world)
        assert await tasks.blocker(volume.pod_uid, ["data"]) is None
        assert await tasks.blocker("another-uid", ["data"]) is not None
        world.mounts.reboot()
        assert "is not mounted, which the kubelet mends" in await tasks.blocker(volume.pod_uid, None)

    play(story)


def test_a_pod_without_rights_is_told_the_same_in_the_same_way_whether_it_is_cached_fetched_or_not_there(
    world, play, early
):
    """Text, events, progress, mounts, records: nothing differs between the three states, nor from no bucket at all."""

    async def attempt(number, source="s3://coco/train", secret=None):
        tasks, volume = world.service.tasks, world.volume(f"x{number}", "evil")
        world.said.clear()
        text = await refused(
            tasks.publish(volume, {"source": source}, {"key": "guess"} if secret is None else secret, 20.0)
        )
        (task,) = (one for one in tasks.tasks if one.volume == volume)
        told = [(reason, said) for pod, _, reason, said in world.said if pod == volume.pod]
        return (
            text,
            told,
            task.early,
            [(one.stage, one.metadata, one.progress) for one in task.statuses],
            world.shown_at(volume),
            volume.id in world.service.store.records(),
        )

    async def story():
        bucket = world.storage.buckets["coco"]
        seen = [await attempt(0), await attempt(1, secret={}), await attempt(2, "s3://none/train")]
        bucket.hold.clear()
        await publish(world)
        await until(world.service.flights.keys)
        seen += [await attempt(3), await attempt(4, secret={})]
        bucket.hold.set()
        await until(lambda: world.shown_at(world.volume("p"))[-1].endswith(".img"))
        seen += [await attempt(5), await attempt(6, secret={})]
        assert seen == [seen[0]] * 7
        stages = [(Stage.LISTING, None, None)]
        assert seen[0] == (DENIED, [("DatasetNotReady", DENIED)], False, stages, [], False)
        assert world.service.counters.hits == world.service.counters.joins == 0

    play(story)


def test_no_secret_is_in_anything_that_is_shown_or_written(world, play, early, capsys):
    secret = {"key": "k1", "password": "TopSecret77"}

    async def story():
        bucket = world.storage.buckets["coco"]
        bucket.hold.clear()
        await publish(world, secret=secret)
        (task,) = world.service.tasks.tasks
        await refused(publish(world, "q", {"key": "TopSecret77"}))
        shown = [await world.service.control._ps(), task.text(), repr(task), repr(task.statuses), world.said]
        bucket.hold.set()
        await until(lambda: not any(one.early for one in world.service.tasks.tasks))
        shown += [await world.service.control._ps(), world.service.store.stored(), capsys.readouterr()]
        assert "s3://coco/train" in str(shown) and "TopSecret77" not in str(shown)
        written = [one for one in world.root.rglob("*") if one.is_file()]
        assert len(written) > 3
        assert not [one for one in written if b"TopSecret77" in one.read_bytes()]

    play(story)
