# SPDX-License-Identifier: Apache-2.0
"""What is being fetched stays, whichever pod waits for it; and what no fetch has any more may go."""

import asyncio
import os
import threading

import pytest

from gigaslice.core.dataset.errors import CacheFullError, DatasetError, SourceError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.fetching.progress import ProgressMeter
from gigaslice.roles.dataset_node.fetching.single_flight import SingleFlight
from gigaslice.roles.dataset_node.store import VolumeSource, digest_of
from gigaslice.roles.dataset_node.tasks.dataset_status import DatasetStatus
from gigaslice.roles.dataset_node.tasks.dataset_uses import DatasetUses
from gigaslice.roles.dataset_node.tasks.protocols import ResolvedDataset
from gigaslice.roles.dataset_node.tasks.provisioner import DatasetCounters, DatasetProvisioner
from gigaslice.roles.dataset_node.tasks.threads import Threads
from tests.fakes.dataset_storage import Bucket, MemoryStorage
from tests.fakes.eventually import until
from tests.unit.gigaslice.roles.dataset_node.store.conftest import KEYS


def keys(world):
    return {one.metadata.key for one in world.store.stored()}


def test_what_is_being_fetched_is_neither_evicted_nor_idle(world):
    part = world.store.begin_fetch(world.metadata(1, 600))
    assert world.store.idle() == ()
    assert world.store.evict([part.key]) == {part.key: "in use: it is being fetched"}
    with pytest.raises(CacheFullError):
        world.store.begin_fetch(world.metadata(2, 600))
    assert [(one.complete, one.waiting) for one in world.store.stored()] == [(False, 0)], "no task waits"
    part.image.write_bytes(b"x" * 600)
    world.store.complete(part, digest_of(part.image))
    world.now += 1
    assert world.store.idle() == (part.key,)
    assert world.store.evict([part.key]) == {}


@pytest.mark.parametrize("end", ["end_fetch", "discard", "again"])
def test_a_fetch_that_ended_keeps_nothing(world, end):
    part = world.store.begin_fetch(world.metadata(1, 600))
    if end == "again":
        world.again()
    else:
        getattr(world.store, end)(part.key)
    assert keys(world) == (set() if end == "discard" else {part.key})
    world.now += 1
    world.store.begin_fetch(world.metadata(2, 600))
    assert keys(world) == {KEYS[2]}


def test_a_fetch_that_is_resumed_after_a_kill_keeps_its_dataset_again(world):
    world.store.begin_fetch(world.metadata(1, 600))
    world.again()
    assert world.store.begin_fetch(world.metadata(1, 600)).resumed
    with pytest.raises(CacheFullError):
        world.store.begin_fetch(world.metadata(2, 600))


def test_what_was_removed_cannot_become_complete(world):
    part = world.store.begin_fetch(world.metadata(1))
    world.store.discard(part.key)
    with pytest.raises(DatasetError, match="what was fetched of it has been removed meanwhile"):
        world.store.complete(part, "d")
    assert keys(world) == set()


def test_a_partial_whose_file_was_removed_by_hand_is_begun_anew(world):
    part = world.store.begin_fetch(world.metadata(1))
    part.bits.write_bytes(b"1")
    part.image.unlink()
    part = world.store.begin_fetch(world.metadata(1))
    assert not part.resumed and part.image.stat().st_size == 100 and not part.bits.exists()


class Site:
    """A supply over a store, with fetches that the test ends."""

    def __init__(self, world):
        self.store = world.store
        self.counters, self.flights, self.threads = DatasetCounters(), SingleFlight(), Threads()
        self.world, self.go, self.failure, self.begun = world, asyncio.Event(), None, 0
        storage = MemoryStorage(one=Bucket({"f": b"1" * 5000}), two=Bucket({"f": b"2" * 5000}))
        self.provisioner = DatasetProvisioner(
            self.store,
            self.flights,
            storage,
            self.fetch,
            threads=self.threads,
            counters=self.counters,
            uses=DatasetUses(),
        )

    async def fetch(self, plan, listing, source, part, *, task, started):
        meter = ProgressMeter(100)
        started(meter)
        meter.arrived(80)
        self.begun += 1
        await self.go.wait()
        if self.failure is not None:
            raise self.failure
        return digest_of(part.image)

    def ensure(self, pod, bucket):
        found = ResolvedDataset(SourceSpec.parse(f"s3://{bucket}/x"))
        return asyncio.create_task(
            self.provisioner.ensure(self.world.volume(pod), found, {}, DatasetStatus("data")), name=pod
        )


def play(world, story):
    world.size = 30_000  # for one image, and not for two

    async def main():
        site = Site(world)
        await asyncio.wait_for(story(site), 20)
        site.threads.close()

    asyncio.run(main())


def test_a_flight_whose_last_waiter_has_gone_keeps_its_place_until_it_is_complete(world):
    async def story(site):
        one = site.ensure("one", "one")
        await until(lambda: site.begun)
        one.cancel()
        await asyncio.wait([one])
        (key,) = site.flights.keys()
        assert site.store.evict([key]) == {key: "in use: it is being fetched"}
        with pytest.raises(CacheFullError):
            await site.ensure("two", "two")
        site.go.set()
        await until(lambda: not site.flights.keys())
        assert site.store.ready(key) is not None
        world.now += 1
        await site.ensure("two", "two")
        assert site.store.ready(key) is None, "it made room once it was complete and of no use"

    play(world, story)


@pytest.mark.parametrize("how", ["fails", "is stopped"])
def test_a_flight_that_ends_without_a_dataset_gives_its_place_up(world, how):
    async def story(site):
        one = site.ensure("one", "one")
        await until(lambda: site.begun)
        (key,) = site.flights.keys()
        if how == "fails":
            site.failure = SourceError("the storage does not answer", retry=True)
            site.go.set()
            with pytest.raises(SourceError):
                await one
        else:
            await site.flights.close()
            await asyncio.wait([one])
        assert keys(world) == {key}, "what has arrived is kept"
        site.failure = None
        site.go.set()
        world.now += 1
        two = await site.ensure("two", "two")
        assert keys(world) == {two.key}

    play(world, story)


def test_a_large_image_that_is_synced_holds_up_no_one(world, monkeypatch):
    world.fetch(1)
    part = world.store.begin_fetch(world.metadata(2))
    syncing, go, real = threading.Event(), threading.Event(), os.fsync

    def slow(fd):
        if threading.current_thread() is completing and not syncing.is_set():
            syncing.set()
            assert go.wait(20)
        real(fd)

    monkeypatch.setattr(os, "fsync", slow)
    completing = threading.Thread(target=world.store.complete, args=(part, "d"))
    completing.start()
    assert syncing.wait(20)
    world.store.publish(world.volume("a"), [VolumeSource(key=KEYS[1])])
    assert world.store.evict([part.key]) == {part.key: "in use: it is being fetched"}
    go.set()
    completing.join()
    assert world.store.ready(part.key) is not None
