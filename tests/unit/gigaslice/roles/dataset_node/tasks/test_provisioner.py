# SPDX-License-Identifier: Apache-2.0
"""The way of a dataset into the cache: who must have listed it, who fetches, and what is left when it fails."""

import asyncio
import dataclasses
import gc
import os
import threading

import pytest

from gigaslice.core.dataset.errors import (
    CacheFullError,
    ListingError,
    LostWritesError,
    QuotaError,
    SourceError,
)
from gigaslice.core.dataset.listing import Listing
from gigaslice.core.dataset.request import Check
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.store import DiskSpace, digest_of
from gigaslice.roles.dataset_node.tasks import shared_plans
from gigaslice.roles.dataset_node.tasks.dataset_status import DatasetStatus, Stage
from gigaslice.roles.dataset_node.tasks.protocols import ResolvedDataset
from tests.fakes.dataset_storage import DENIED, Bucket
from tests.fakes.eventually import until
from tests.fakes.losing_disk import losing_sync
from tests.unit.gigaslice.roles.dataset_node.tasks.conftest import KEY

COCO = SourceSpec.parse("s3://coco/train")
SIZE = 300 + 15000


def ensure(world, name="p", found=None, secret=KEY, namespace="team", *, status=None):
    provisioner = world.service.tasks._dependencies.provisioner
    volume = world.volume(name, namespace)
    return provisioner.ensure(volume, found or ResolvedDataset(COCO), secret, status or DatasetStatus("coco"))


def pinned(metadata, *, trusted):
    return ResolvedDataset(COCO, Check.PINNED, metadata.listing, trusted)


def closed(world):
    """Every source that was opened is closed, and nothing waits for a dataset any more."""
    return all(one.opened == one.closed for one in world.storage.buckets.values())


def waiting(world):
    return sum(one.waiting for one in world.service.store.stored())


def listings_alive(besides=()):
    """Listings that anything has still, without waiting for the collector of circles; BESIDES those of other tests."""
    known = {id(one) for one in besides}
    return [one for one in gc.get_objects() if type(one) is Listing and id(one) not in known]


async def refused(work, kind=SourceError):
    with pytest.raises(kind) as caught:
        await work
    return str(caught.value)


@pytest.fixture
def planned(monkeypatch):
    """The numbers of files of the images that have been laid out."""
    made, real = [], shared_plans.plan
    monkeypatch.setattr(shared_plans, "plan", lambda listing: (made.append(listing.files), real(listing))[1])
    return made


def test_eight_tasks_of_one_secret_list_lay_out_and_fetch_once(world, play, planned):
    async def story():
        bucket, counters = world.storage.buckets["coco"], world.service.counters
        abouts = await asyncio.gather(*(ensure(world, f"p{number}") for number in range(8)))
        assert len({one.key for one in abouts}) == 1
        assert (bucket.listings, len(planned), bucket.read_bytes) == (1, 1, SIZE)
        assert (counters.misses, counters.hits + counters.joins) == (1, 7)
        assert closed(world) and bucket.proofs == 2, "it shows that it may read what is not empty"
        await ensure(world, "later")
        assert (bucket.listings, len(planned), bucket.read_bytes) == (2, 1, SIZE)

    play(story)


def test_eight_tasks_one_of_which_lists_already_take_two_listings(world, play, planned):
    async def story():
        bucket = world.storage.buckets["coco"]
        bucket.list_hold = asyncio.Event()
        bucket.hold.clear()
        others = listings_alive()
        works = [asyncio.ensure_future(ensure(world))]
        await until(lambda: bucket.listings)
        works += [asyncio.ensure_future(ensure(world, f"p{number}")) for number in range(7)]
        await asyncio.sleep(0.02)
        bucket.list_hold.set()
        await until(lambda: world.service.counters.joins == 7)
        assert len(listings_alive(others)) == 1, "equal ones are in memory once"
        bucket.hold.set()
        await asyncio.gather(*works)
        assert (bucket.listings, len(planned), bucket.read_bytes) == (2, 1, SIZE)
        assert closed(world) and not len(world.service.tasks._dependencies.provisioner._plans)
        works.clear()
        assert not listings_alive(others), "and not after that"

    play(story)


def test_eight_tasks_of_eight_secrets_list_each_for_itself_and_fetch_once(world, play, planned):
    async def story():
        bucket, counters = world.storage.buckets["coco"], world.service.counters
        bucket.others = {f"k{number}" for number in range(8)}
        await asyncio.gather(*(ensure(world, f"p{n}", secret={"key": f"k{n}"}) for n in range(8)))
        assert (bucket.listings, len(planned), bucket.read_bytes) == (8, 1, SIZE)
        assert (counters.misses, counters.hits + counters.joins) == (1, 7)
        assert closed(world) and bucket.proofs == 8 * 2, "each shows that it may read what is not empty"

    play(story)


def test_who_shares_a_listing_and_is_deleted_takes_nothing_from_the_others(world, play):
    async def story():
        bucket = world.storage.buckets["coco"]
        bucket.hold.clear()
        first, second = (asyncio.ensure_future(ensure(world, name)) for name in "pq")
        await until(world.service.flights.keys)
        first.cancel()
        await asyncio.wait([first])
        bucket.hold.set()
        assert (await second).source == COCO.canonical
        assert bucket.opened == 1 and closed(world) and waiting(world) == 1

    play(story)


def test_who_may_list_and_not_read_gets_the_same_refusal_whether_it_is_cached_fetched_or_not(world, play):
    async def story():
        bucket, store = world.storage.buckets["coco"], world.service.store
        bucket.others, bucket.unreadable = {"lists"}, {"lists"}
        seen = [await refused(ensure(world, "x", secret={"key": "lists"}, namespace="other"))]
        assert store.stored() == (), "no room is made for what it cannot fetch"
        bucket.hold.clear()
        fetch = asyncio.ensure_future(ensure(world))
        await until(world.service.flights.keys)
        seen.append(await refused(ensure(world, "x", secret={"key": "lists"}, namespace="other")))
        bucket.hold.set()
        await fetch
        seen.append(await refused(ensure(world, "x", secret={"key": "lists"}, namespace="other")))
        assert seen == [f"a/1: {DENIED}"] * 3
        assert world.service.counters.hits == world.service.counters.joins == 0
        assert closed(world) and waiting(world) == 1

    play(story)


@pytest.mark.parametrize("secret", [{}, {"key": "k2"}])
def test_who_may_not_list_touches_nothing_of_the_cache_whether_it_is_there_or_not(
    world, play, secret, monkeypatch
):
    """The same text, the same requests to the storage, and no step into the store that could take its time."""

    async def story():
        bucket, store = world.storage.buckets["coco"], world.service.store
        touched, traces = [], []
        for name in ("ready", "stored", "pin", "begin_fetch"):
            real = getattr(store, name)
            monkeypatch.setattr(
                store, name, lambda *given, real=real, name=name: (touched.append(name), real(*given))[1]
            )
        for cached in (False, True):
            if cached:
                metadata = await ensure(world)
            touched.clear()
            before = (bucket.opened, bucket.listings, bucket.reads)
            text = await refused(ensure(world, "x", secret=secret, namespace="other"))
            after = (bucket.opened, bucket.listings, bucket.reads)
            traces.append((text, [b - a for a, b in zip(before, after, strict=True)], list(touched)))
        assert traces[0] == traces[1] == (DENIED, [0, 0, 0], [])
        touched.clear()
        for found in (pinned(metadata, trusted=False), ResolvedDataset(COCO, Check.NEVER)):
            assert await refused(ensure(world, "x", found, secret, "other")) == DENIED
        assert touched == []

    play(story)


def test_a_pinned_version_is_given_only_to_who_lists_it(world, play):
    async def story():
        bucket = world.storage.buckets["coco"]
        metadata = await ensure(world)
        again = await ensure(world, "q", pinned(metadata, trusted=False))
        assert (again.key, bucket.listings) == (metadata.key, 2)
        bucket.files["new"] = b"x"
        text = await refused(ensure(world, "r", pinned(metadata, trusted=False)))
        assert "has other contents than the version that the Dataset pins" in text
        assert bucket.read_bytes == SIZE, "nothing of another version is fetched for it"
        assert closed(world)

    play(story)


def test_a_pinned_version_is_fetched_where_the_node_lacks_it(world, play):
    async def story():
        bucket = world.storage.buckets["coco"]
        metadata = await ensure(world)
        world.service.store.remove(world.volume("p").id, world.volume("p").target)
        assert not world.service.store.evict([metadata.key])
        for number, trusted in enumerate((False, True)):
            again = await ensure(world, f"q{number}", pinned(metadata, trusted=trusted))
            assert again.key == metadata.key
        assert (bucket.listings, bucket.read_bytes) == (2, 2 * SIZE), "the trusted one needs no listing then"

    play(story)


def test_where_the_data_are_may_stand_in_the_secret_of_a_pinned_dataset(world, play):
    async def story():
        secret = {**KEY, "endpoint": "http://minio"}
        metadata = await ensure(world, secret=secret)
        assert metadata.source == "s3://coco/train?endpoint=http://minio"
        for number, trusted in enumerate((False, True)):
            again = await ensure(world, f"q{number}", pinned(metadata, trusted=trusted), secret)
            assert again.key == metadata.key
        assert world.service.counters.misses == 1

    play(story)


def test_an_administrators_pinned_dataset_needs_no_right_to_list(world, play):
    async def story():
        bucket = world.storage.buckets["coco"]
        metadata = await ensure(world)
        bucket.files["new"] = b"x"
        status = DatasetStatus("coco")
        again = await ensure(world, "q", pinned(metadata, trusted=True), {}, status=status)
        assert (again.key, bucket.listings, status.stage) == (metadata.key, 1, Stage.READY)
        assert world.service.counters.hits == 1
        assert waiting(world) == 2, "it is kept from eviction"
        other = ResolvedDataset(COCO, Check.PINNED, "ab" * 32, trusted=True)
        assert await refused(ensure(world, "r", other, {})) == DENIED, (
            "what is not there is listed and fetched"
        )

    play(story)


def test_an_administrators_dataset_of_any_version_is_the_newest_complete_one(world, play):
    async def story():
        bucket, never = world.storage.buckets["coco"], ResolvedDataset(COCO, Check.NEVER, trusted=True)
        assert await refused(ensure(world, "p", never, {})) == DENIED
        first = await ensure(world, "p", never)
        bucket.files["new"] = b"x"
        second = await ensure(world, "q")
        assert second.created > first.created
        third = await ensure(world, "r", never, {})
        assert (third.key, bucket.listings) == (second.key, 2)
        elsewhere = ResolvedDataset(SourceSpec.parse("s3://coco/other"), Check.NEVER, trusted=True)
        assert await refused(ensure(world, "s", elsewhere, {})) == DENIED

    play(story)


def test_a_source_that_changes_while_it_is_fetched_is_listed_again(world, play):
    async def story():
        bucket = world.storage.buckets["coco"]
        bucket.fails = [SourceError("file a was changed", changed=True)] * 4
        await ensure(world)
        assert bucket.listings == 5
        bucket.fails = [SourceError("file a was changed", changed=True)] * 5
        assert await refused(ensure(world, "q")) == "file a was changed"
        assert closed(world)

    play(story)


def test_the_next_one_goes_on_with_its_own_access_where_the_first_ones_fails(world, play):
    async def story():
        bucket = world.storage.buckets["coco"]
        bucket.hold.clear()
        bucket.others = {"k2"}
        first = asyncio.ensure_future(ensure(world))
        await until(world.service.flights.keys)
        second = asyncio.ensure_future(ensure(world, "q", secret={"key": "k2"}))
        await until(lambda: bucket.listings == 2 and world.service.counters.joins == 1)
        bucket.unreadable = {"k1"}  # what the first one was given has expired
        bucket.hold.set()
        assert (await refused(first)).endswith(DENIED)
        assert (await second).source == COCO.canonical
        assert closed(world) and waiting(world) == 1

    play(story)


@pytest.mark.parametrize("cached", [False, True], ids=["not here", "here"])
def test_who_is_cancelled_while_the_dataset_is_pinned_keeps_nothing(world, play, monkeypatch, cached):
    """One of several datasets of a volume, of which another has failed."""

    async def story():
        store, pinning, go = world.service.store, threading.Event(), threading.Event()
        if cached:
            await ensure(world, "before")
        real = store.pin

        def pin(volume, metadata):
            pinning.set()
            assert go.wait(60)
            real(volume, metadata)

        monkeypatch.setattr(store, "pin", pin)
        task = asyncio.ensure_future(ensure(world))
        await until(pinning.is_set)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        await asyncio.wait([task])
        assert task.cancelled() and store._pins.of(world.volume("p").id) == ()

    play(story)


def test_a_waiter_who_leaves_is_no_loss_to_the_others_and_the_last_one_ends_the_fetch(world, play):
    async def story():
        bucket, flights = world.storage.buckets["coco"], world.service.flights
        bucket.hold.clear()
        first = asyncio.ensure_future(ensure(world))
        await until(flights.keys)
        second = asyncio.ensure_future(ensure(world, "q"))
        await until(lambda: world.service.counters.joins and waiting(world) == 2)
        first.cancel()
        await asyncio.wait([first])
        assert flights.keys() and waiting(world) == 1
        second.cancel()
        await asyncio.wait([second])
        bucket.hold.set()
        await until(lambda: not flights.keys())
        await until(lambda: closed(world))
        assert waiting(world) == 0
        metadata = await ensure(world, "r")
        assert metadata.key and world.service.counters.fetches == 1

    play(story)


def test_what_does_not_fit_leaves_nothing_behind(world, play):
    world.disk = lambda: DiskSpace(1 << 20, 1 << 12)

    async def story():
        text = await refused(ensure(world), CacheFullError)
        assert text.startswith("no room for s3://coco/train: ")
        assert waiting(world) == 0 and closed(world)
        assert not world.service.store.stored()

    play(story)


def test_a_quota_is_said_before_anything_is_fetched(world, play):
    world.settings = dataclasses.replace(world.settings, quotas={"team": 1024})

    async def story():
        text = await refused(ensure(world), QuotaError)
        assert text.startswith("namespace team may use 1 KiB of datasets on a node")
        assert world.storage.buckets["coco"].reads == 0 and closed(world)
        await ensure(world, "p", namespace="other")
        await refused(ensure(world), QuotaError)

    play(story)


def test_a_damaged_copy_is_fetched_again(world, play):
    async def story():
        metadata = await ensure(world)
        world.service.store.remove(world.volume("p").id, world.volume("p").target)
        image = world.root / "s" / "objects" / f"{metadata.key}.img"
        image.write_bytes(bytes(len(image.read_bytes())))
        again = await ensure(world, "q")
        assert (again.key, again.digest) == (metadata.key, metadata.digest)
        assert world.storage.buckets["coco"].read_bytes == 2 * SIZE

    play(story)


def test_two_servers_with_a_bucket_of_one_name_share_nothing(world, play):
    async def story():
        ours = await ensure(world)
        theirs = await ensure(world, "q", secret={**KEY, "endpoint": "http://evil"})
        assert ours.key != theirs.key
        assert world.service.counters.misses == 2

    play(story)


def test_equal_listings_of_two_sources_are_two_datasets(world, play):
    async def story():
        world.storage.buckets["copy"] = Bucket(dict(world.storage.buckets["coco"].files))
        one = await ensure(world)
        other = await ensure(world, "q", ResolvedDataset(SourceSpec.parse("s3://copy/train")))
        assert one.listing == other.listing and one.key != other.key

    play(story)


def test_the_status_says_where_it_is(world, play):
    async def story():
        bucket, status = world.storage.buckets["coco"], DatasetStatus("coco")
        bucket.hold.clear()
        bucket.list_hold = asyncio.Event()
        assert status.text() == "dataset coco: waiting"
        work = asyncio.ensure_future(ensure(world, status=status))
        await until(lambda: bucket.listings)
        assert status.text() == "dataset coco: listing its source"
        bucket.list_hold.set()
        await until(lambda: status.progress is not None)
        assert status.text().startswith("dataset coco: fetching 0 % of ")
        assert status.fraction == 0.0
        bucket.hold.set()
        await work
        assert (status.stage, status.fraction, status.progress) == (Stage.READY, 1.0, None)

    play(story)


@pytest.mark.parametrize("call", ["fsync", "fdatasync"])
def test_what_the_disk_has_lost_is_fetched_again_as_a_whole(world, play, monkeypatch, call):
    async def story():
        bucket, store = world.storage.buckets["coco"], world.service.store
        clean = await ensure(world)
        store.remove(world.volume("p").id, world.volume("p").target)
        assert not store.evict([clean.key])
        bucket.read_bytes, lost = 0, []
        monkeypatch.setattr(os, call, losing_sync(getattr(os, call), ".img", lost))
        text = await refused(ensure(world), LostWritesError)
        assert "disk has lost writes (Input/output error)" in text and len(lost) == 1
        assert not lost[0].exists(), "other blocks are taken next time"
        again = await ensure(world)
        image = world.root / f"s/objects/{again.key}.img"
        assert (again.digest, digest_of(image)) == (clean.digest, clean.digest)
        assert bucket.read_bytes == 2 * SIZE

    play(story)


def test_listings_take_a_bounded_memory_all_together_and_equal_ones_take_it_once(world, play):
    async def story():
        bucket, memory = (
            world.storage.buckets["coco"],
            world.service.tasks._dependencies.provisioner._listings._memory,
        )
        memory.most = 100 << 20
        bucket.weight = 200_000
        bucket.hold.clear()
        works = [asyncio.ensure_future(ensure(world, "p0"))]
        await until(lambda: world.service.flights.keys() and memory.held)
        kept = memory.held
        for number in range(1, 4):
            works.append(asyncio.ensure_future(ensure(world, f"p{number}")))
            await until(lambda number=number: world.service.counters.joins == number)
        assert memory.held == kept, "the others wait for the flight without listings of their own"
        world.storage.buckets["other"] = Bucket({"a": b"x"}, weight=250_000)
        text = await refused(ensure(world, "x", ResolvedDataset(SourceSpec.parse("s3://other/a"))))
        assert "it is tried again" in text
        bucket.hold.set()
        await asyncio.gather(*works)
        await until(lambda: memory.held == 0)
        bucket.weight = 400_000
        text = await refused(ensure(world, "y"), ListingError)
        assert "more than 400000 entries, for which the service's memory" in text
        assert memory.held == 0 and closed(world)

    play(story)


def test_a_fetch_whose_pod_goes_before_it_begins_is_begun_by_another_with_its_own_source(world, play):
    """The second pod waits for the fetch already, so that it is not stopped with the first one."""

    async def story():
        bucket, flights = world.storage.buckets["coco"], world.service.flights
        bucket.others = {"k2"}
        join, joined = flights.join, []

        async def join_and_lose_the_first(key, start):
            joined.append(start)
            work = asyncio.ensure_future(join(key, start))
            if len(joined) == 2:
                first.cancel()
            return await work

        async def hold_until_both_have_planned(flight, start=None):
            await until(lambda: len(joined) == 2)
            await asyncio.wait([first])
            return await begin_first(flight)

        async def join_first(key, start):
            nonlocal begin_first
            begin_first = start
            flights.join = join_and_lose_the_first
            return await join_and_lose_the_first(key, hold_until_both_have_planned)

        begin_first = None
        flights.join = join_first
        first = asyncio.ensure_future(ensure(world))
        await until(lambda: joined)
        second = asyncio.ensure_future(ensure(world, "q", secret={"key": "k2"}))
        assert (await second).source == COCO.canonical
        assert first.cancelled() and closed(world) and waiting(world) == 1
        assert bucket.read_bytes == SIZE

    play(story)


def test_each_status_has_a_text_and_only_those_that_may_hang_report_no_progress():
    texts = {stage: DatasetStatus("coco", stage).text() for stage in Stage}
    assert texts[Stage.FETCHING] == "dataset coco: waiting for a place among the fetches of this node"
    assert len(set(texts.values())) == len(Stage)
    silent = {stage for stage in Stage if stage.reports_no_progress}
    assert silent == {Stage.LISTING, Stage.PLANNING, Stage.MOUNTING}
