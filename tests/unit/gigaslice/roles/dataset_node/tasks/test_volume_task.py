# SPDX-License-Identifier: Apache-2.0
"""One volume's task: what it may name, how often it tries, and what it tells."""

import asyncio
from dataclasses import replace

import pytest

from gigaslice.core.dataset.errors import CacheFullError, DatasetError, RequestError, SourceError
from gigaslice.core.dataset.objects import DatasetUse
from gigaslice.core.dataset.request import parse_attributes
from gigaslice.roles.dataset_node.tasks import volume_task as task_module
from gigaslice.roles.dataset_node.tasks.dataset_status import DatasetStatus, Stage
from gigaslice.roles.dataset_node.tasks.volume_task import TaskTimes, VolumeTask
from tests.fakes.dataset_storage import DENIED, Bucket
from tests.fakes.eventually import until
from tests.unit.gigaslice.roles.dataset_node.tasks.conftest import KEY


def task_of(world, name="p", secret=KEY, namespace="team", times=TaskTimes(), **attributes):  # noqa: B008  (frozen)
    given = {key.replace("__", "."): value for key, value in attributes.items()} or {
        "source": "s3://coco/train"
    }
    dependencies = replace(world.service.tasks._dependencies, times=times)
    return VolumeTask(dependencies, world.volume(name, namespace), parse_attributes(given), secret)


async def ended(task):
    """The failure of one attempt; None where it has published."""
    task.begin()
    assert await task.wait(20)
    failure = task.take_failure()
    assert task.done is (failure is None)
    return failure


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("error", [Panic("request must be valid"), RuntimeError("x")])
def test_no_exception_leaves_a_pod_without_an_answer(world, play, error):
    async def story():
        world.storage.buckets["coco"].fails.append(error)
        failure = await ended(task_of(world))
        assert str(failure) == f"internal error of the dataset service: {type(error).__name__}; see its log"
        assert await ended(task_of(world, "q")) is None

    play(story)


@pytest.mark.parametrize("check", [{}, {"check": "listing"}])
@pytest.mark.parametrize("mode", ["cache", "local"])
@pytest.mark.parametrize(
    "spec",
    [{"source": "file:///etc"}, {"source": "nfs://server/export"}, {"source": "/etc", "check": "never"}],
)
def test_a_dataset_object_may_name_no_other_sources_than_a_pod(world, play, spec, mode, check):
    async def story():
        world.api.put("admin", "coco", **spec, allowedNamespaces=["*"])
        failure = await ended(task_of(world, dataset="admin/coco", mode=mode, **check))
        assert isinstance(failure, RequestError)
        assert "is not allowed on this node; an administrator can allow" in str(failure)
        assert not world.mounts.mounts

    world.storage.buckets["server"] = world.storage.buckets[""] = Bucket({"shadow": b"root"})
    play(story)


def test_what_pins_a_version_is_not_read_from_storage_that_nothing_compares(world, play):
    """Neither on request nor because the node has no room."""

    async def story():
        parts = world.service.tasks._dependencies
        world.service.tasks._dependencies = replace(parts, admit=lambda spec: None)
        world.api.put("team", "coco", source="nfs://coco/train", check="pinned", digest="ab" * 32)
        failure = await ended(task_of(world, dataset="coco", mode="local"))
        assert isinstance(failure, RequestError)
        assert "write check: listing in volumeAttributes" in str(failure)
        assert not world.mounts.mounts
        assert await ended(task_of(world, dataset="coco", mode="local", check="listing")) is None

        async def full(*_):
            raise CacheFullError("no room")

        parts.provisioner.ensure = full
        assert str(await ended(task_of(world, "q", dataset="coco"))) == "no room"
        assert await ended(task_of(world, "q", dataset="coco", check="listing")) is None
        assert world.metric("gigaslice_dataset_local_fallbacks_total") == 1

    play(story)


def test_any_version_is_refused_to_a_tenants_dataset_with_what_to_write(world, play):
    async def story():
        assert await ended(task_of(world)) is None
        world.api.put("evil", "coco", source="s3://coco/train", check="never")
        failure = await ended(task_of(world, "x", {}, "evil", dataset="coco"))
        assert isinstance(failure, RequestError)
        assert str(failure) == (
            "Dataset coco says check: never, which only Datasets in the administrator's namespaces may "
            "(--trusted-namespaces); write check: listing"
        )
        listed = await ended(task_of(world, "y", {}, "evil", dataset="coco", check="listing"))
        assert str(listed) == DENIED, "with a listing its own credentials decide"
        assert not world.shown_at(world.volume("x", "evil")) and not world.shown_at(world.volume("y", "evil"))

    play(story)


def test_a_guessed_version_of_a_tenants_dataset_is_given_to_no_one_without_a_listing(world, play):
    """The right digest, a wrong one, and a source that is not there are told apart by nothing."""

    async def story():
        task = task_of(world)
        assert await ended(task) is None
        right, texts = task.statuses[0].metadata.listing, []
        for source, digest in (("coco", right), ("coco", "ab" * 32), ("none", right)):
            world.api.put("evil", "guess", source=f"s3://{source}/train", check="pinned", digest=digest)
            texts.append(str(await ended(task_of(world, "x", {}, "evil", dataset="guess"))))
        assert texts == [DENIED] * 3
        key = task.statuses[0].metadata.key
        assert world.service.uses.shown((), {key}) == {}, "its status tells nothing either"
        world.api.put("evil", "guess", source="s3://coco/train", check="pinned", digest=right)
        assert await ended(task_of(world, "y", KEY, "evil", dataset="guess")) is None
        assert world.storage.buckets["coco"].listings == 2
        assert world.service.uses.shown((), {key}) == {key: (DatasetUse("evil/guess"),)}

    play(story)


def test_an_administrators_dataset_gives_the_copy_of_the_node_to_pods_without_credentials(world, play):
    async def story():
        assert await ended(task_of(world)) is None
        world.api.put("admin", "coco", source="s3://coco/train", check="never", allowedNamespaces=["team"])
        assert await ended(task_of(world, "x", {}, dataset="admin/coco")) is None
        assert world.shown_at(world.volume("x")) == world.shown_at(world.volume("p"))
        failure = await ended(task_of(world, "y", {}, "evil", dataset="admin/coco"))
        assert str(failure).startswith("there is no Dataset admin/coco that pods of namespace evil may name")

    play(story)


def test_what_the_volume_says_must_be_what_the_object_says_or_a_listing(world, play):
    async def story():
        world.api.put("team", "coco", source="s3://coco/train")
        failure = await ended(task_of(world, dataset="coco", check="never"))
        assert str(failure) == (
            "check is never, and Dataset coco says listing; leave it out of volumeAttributes"
        )
        world.api.put("team", "coco", source="s3://coco/train", check="pinned", digest="ab" * 32)
        failure = await ended(task_of(world, dataset="coco", check="pinned"))
        assert "has other contents than the version that the Dataset pins" in str(failure)
        assert await ended(task_of(world, dataset="coco", check="listing")) is None

    play(story)


def test_a_dataset_that_is_changed_or_made_anew_is_what_it_is_when_it_is_asked_for(world, play):
    async def story():
        world.storage.buckets["open"] = Bucket({"x": b"y"})
        world.api.put("team", "coco", source="s3://open/1")
        bucket = world.storage.buckets["coco"]
        first = task_of(world, dataset="coco")
        world.storage.buckets["open"].list_hold = asyncio.Event()
        first.begin()
        await until(lambda: world.storage.buckets["open"].listings)
        world.api.put("team", "coco", source="s3://coco/train")
        world.storage.buckets["open"].list_hold.set()
        assert await first.wait(20) and first.done
        assert first.statuses[0].metadata.source == "s3://open/1", "an attempt uses one state of the object"
        world.api.delete("team", "coco")
        second = task_of(world, "q", dataset="coco")
        assert "there is no Dataset team/coco" in str(await ended(second))
        world.api.put("team", "coco", source="s3://coco/train")
        assert await ended(second) is None
        assert (second.statuses[0].metadata.source, bucket.listings) == ("s3://coco/train", 1)

    play(story)


def test_a_failure_is_told_once_and_the_next_call_tries_again(world, play):
    async def story():
        task = task_of(world, secret={})
        assert str(await ended(task)) == DENIED
        assert task.take_failure() is None
        assert ("DatasetNotReady", DENIED) in [(reason, text) for _, _, reason, text in world.said]
        world.storage.buckets["coco"].key = ""
        assert await ended(task) is None
        task.begin()
        assert not task.running, "what is done is not done again"

    play(story)


def test_a_held_task_that_failed_keeps_nothing_from_eviction(world, play):
    async def story():
        world.storage.buckets["open"] = Bucket({"x": b"y"})
        coco = world.storage.buckets["coco"]
        coco.key, coco.unreadable, coco.list_hold = "", {""}, asyncio.Event()
        task = task_of(world, source__a="s3://open", source__b="s3://coco/train", secret={})
        task.begin()
        await until(lambda: task.statuses[0].stage is Stage.READY and coco.listings)
        assert [one.waiting for one in world.service.store.stored()] == [1]
        coco.list_hold.set()
        assert DENIED in str(await ended(task))
        assert not [one for one in world.service.store.stored() if one.waiting]

    play(story)


def test_an_early_task_goes_on_trying_with_longer_pauses(world, play, monkeypatch):
    pauses = []

    async def rest(renewed, seconds):
        pauses.append(seconds)
        await asyncio.sleep(0.01)
        return renewed.is_set()

    async def story():
        bucket = world.storage.buckets["coco"]
        bucket.fails = [SourceError("busy", retry=True)] * 3
        monkeypatch.setattr(task_module, "set_within", rest)
        task = task_of(world, times=TaskTimes(retry=0.01))
        task.early = True
        task.begin()
        assert await task.wait(20) and task.done
        assert pauses == [0.01, 0.02, 0.04]
        assert (bucket.listings, task.failure) == (4, None)
        assert world.said[-1][2] == "DatasetReady"

    play(story)


def test_a_mistake_of_the_program_is_one_line_without_what_was_in_it(world, play):
    async def story():
        world.storage.buckets["coco"].fails = [ValueError("secret k1")]
        failure = await ended(task_of(world))
        assert str(failure) == "internal error of the dataset service: ValueError; see its log"
        assert not [one for one in world.said if "k1" in one[3]]

    play(story)


def test_stopping_it_ends_its_part_of_the_fetch(world, play):
    async def story():
        bucket = world.storage.buckets["coco"]
        bucket.hold.clear()
        task = task_of(world)
        task.begin()
        await until(world.service.flights.keys)
        await task.stop()
        assert not task.running
        bucket.hold.set()
        await until(lambda: not world.service.flights.keys() and bucket.opened == bucket.closed)
        assert not [one for one in world.service.store.stored() if one.waiting]

    play(story)


def test_several_datasets_are_fetched_at_a_time_and_told_as_one(world, play):
    async def story():
        other = world.storage.buckets["open"] = Bucket({"x": b"y" * 5000})
        coco = world.storage.buckets["coco"]
        coco.hold.clear(), other.hold.clear()
        attributes = {"source__a": "s3://open", "source__b": "s3://coco/train"}
        task = task_of(world, times=TaskTimes(watch=0.01), **attributes)
        task.begin()
        await until(lambda: all(one.progress is not None for one in task.statuses))
        assert task.text().count("fetching 0 %") == 2
        await until(lambda: world.said)
        await asyncio.sleep(0.05)  # five looks
        assert len(world.said) == 1, "each quarter is told once"
        other.hold.set()
        await until(lambda: task.statuses[0].stage is Stage.READY)
        assert task.text().startswith("dataset b: fetching")
        coco.hold.set()
        assert await task.wait(20) and task.done
        reasons = [reason for _, _, reason, _ in world.said]
        assert reasons[-1] == "DatasetReady" and set(reasons[:-1]) == {"DatasetFetching"}
        # Of 0, 25, 50 and 75 % of all; that of one dataset may be the same at two of them.
        assert len(reasons) <= 5, "each quarter is told once"

    play(story)


def test_that_the_pod_reads_the_storage_itself_is_said_when_it_does(world, play):
    """Where the disk is full, nothing can be published either."""

    async def story():
        parts = world.service.tasks._dependencies
        world.service.tasks._dependencies = replace(parts, admit=lambda spec: None)
        world.api.put("team", "coco", source="nfs://coco/train")

        async def full(*_):
            raise CacheFullError("no room")

        def unwritten(*_):
            raise DatasetError("a record cannot be written: No space left on device")

        publish, parts.store.publish = parts.store.publish, unwritten
        parts.provisioner.ensure = full
        failure = await ended(task_of(world, dataset="coco"))
        assert "No space left" in str(failure)
        assert not [one for one in world.said if "reads the storage" in one[3]]
        assert world.service.counters.fallbacks == 0
        parts.store.publish = publish
        assert await ended(task_of(world, dataset="coco")) is None
        assert [one[3] for one in world.said if one[2] == "DatasetNotCached"] == [
            "no room; the pod reads the storage itself (mode: local)"
        ]
        assert world.metric("gigaslice_dataset_local_fallbacks_total") == 1

    play(story)


QUICK = TaskTimes(watch=0.01, quiet=0.05)


def told(world, text):
    return [one[3] for one in world.said if one[2] == "DatasetFetching" and text in one[3]]


def test_a_long_listing_is_told_to_the_pod_and_ever_more_rarely(world, play):
    async def story():
        world.storage.buckets["coco"].list_hold = asyncio.Event()
        task = task_of(world, times=QUICK)
        task.begin()
        await until(lambda: len(told(world, "listing its source, for ")) == 2)
        world.storage.buckets["coco"].list_hold.set()
        assert await ended(task) is None

    play(story)


def test_storage_that_hangs_in_a_file_is_told_to_the_pod(world, play):
    async def story():
        world.storage.buckets["coco"].hold.clear()
        task = task_of(world, times=QUICK)
        task.begin()
        await until(lambda: told(world, "and no byte has come for "))
        world.storage.buckets["coco"].hold.set()
        assert await ended(task) is None

    play(story)


def test_nothing_is_told_of_what_moves_or_waits_its_turn():
    stalls = task_module._StallDetector(10.0)
    statuses = [DatasetStatus("coco", Stage.LISTING), DatasetStatus("more", Stage.READY)]
    assert [stalls.look(statuses, now) for now in (0.0, 9.9)] == ["", ""]
    assert stalls.look(statuses, 10.0) == "dataset coco: listing its source, for 10 s now"
    assert [stalls.look(statuses, now) for now in (11.0, 19.9)] == ["", ""]
    assert stalls.look(statuses, 20.0).endswith("for 20 s now")
    statuses[0].stage = Stage.PLANNING
    assert [stalls.look(statuses, now) for now in (41.0, 50.9)] == ["", ""]
    assert stalls.look(statuses, 51.0) == "dataset coco: planning its image, for 10 s now"
    statuses[0].stage = Stage.FETCHING  # which waits for a place among the fetches
    assert [stalls.look(statuses, now) for now in (60.0, 99.0)] == ["", ""]
