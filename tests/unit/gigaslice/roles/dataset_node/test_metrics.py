# SPDX-License-Identifier: Apache-2.0
"""What the service's metrics say while it works: what each one tells is brought about, and read at a scrape."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.metrics import METRICS
from gigaslice.roles.dataset_node.store import VolumeSource
from gigaslice.roles.dataset_node.tasks.dataset_status import DatasetStatus
from gigaslice.roles.dataset_node.tasks.protocols import ResolvedDataset
from tests.fakes.dataset_node import NodeWorld
from tests.fakes.dataset_storage import Bucket
from tests.fakes.eventually import until

CAPACITY = 1 << 20
FILES = {"a": b"x" * 5000, "b": b"y" * 3000}


@pytest.fixture
def world(short_dir):
    made = NodeWorld(short_dir, capacity=str(CAPACITY))
    made.storage.buckets["coco"] = Bucket(dict(FILES))
    made.storage.buckets["other"] = Bucket({"c": b"z" * 100})
    return made


def play(world, story):
    async def main():
        async with world.opened() as service:
            await asyncio.wait_for(story(service), 30)

    asyncio.run(main())


def ensure(world, name, bucket="coco"):
    """Has the bucket's dataset for the volume of a pod."""
    dataset = ResolvedDataset(SourceSpec.parse(f"s3://{bucket}/train"))
    provisioner = world.service.tasks._dependencies.provisioner
    return provisioner.ensure(world.volume(name), dataset, {}, DatasetStatus(bucket))


def test_every_metric_that_is_listed_is_shown(world):
    async def story(service):
        assert set(service.collect().series) == {row.name for row in METRICS}

    play(world, story)


def test_a_fetch_from_its_first_byte_to_a_second_reader(world):
    metric, bucket = world.metric, world.storage.buckets["coco"]

    async def story(service):
        assert metric("gigaslice_dataset_free_bytes") == CAPACITY
        bucket.hold.clear()
        first = asyncio.ensure_future(ensure(world, "p"))
        await until(lambda: metric("gigaslice_dataset_datasets", "partial") == 1)
        second = asyncio.ensure_future(ensure(world, "q"))
        await until(lambda: metric("gigaslice_dataset_joins_total") == 1)
        assert metric("gigaslice_dataset_misses_total") == 1
        assert metric("gigaslice_dataset_hits_total") == 0
        size = metric("gigaslice_dataset_cache_bytes", "partial")
        assert size >= sum(map(len, FILES.values()))
        assert metric("gigaslice_dataset_free_bytes") == CAPACITY - size
        assert metric("gigaslice_dataset_fetches_total", "complete") == 0
        bucket.hold.set()
        await asyncio.gather(first, second)
        assert metric("gigaslice_dataset_datasets", "partial") == 0
        assert metric("gigaslice_dataset_datasets", "ready") == 1
        assert metric("gigaslice_dataset_cache_bytes", "partial") == 0
        assert metric("gigaslice_dataset_cache_bytes", "ready") == size
        assert metric("gigaslice_dataset_fetches_total", "complete") == 1
        assert metric("gigaslice_dataset_fetch_bytes_total") == 8000
        assert metric("gigaslice_dataset_fetch_files_total") == 2
        assert 0 < metric("gigaslice_dataset_fetch_seconds_total") < 30
        await ensure(world, "r")
        assert metric("gigaslice_dataset_hits_total") == 1
        assert metric("gigaslice_dataset_misses_total") == 1
        assert metric("gigaslice_dataset_fetch_bytes_total") == 8000

    play(world, story)


def test_a_fetch_that_fails(world):
    bucket = world.storage.buckets["coco"]

    async def story(service):
        bucket.hold.clear()
        work = asyncio.ensure_future(ensure(world, "p"))
        await until(lambda: world.metric("gigaslice_dataset_misses_total") == 1)
        bucket.unreadable.add("")
        bucket.hold.set()
        with pytest.raises(SourceError, match="denied"):
            await work
        assert world.metric("gigaslice_dataset_fetches_total", "failed") == 1
        assert world.metric("gigaslice_dataset_fetches_total", "complete") == 0
        assert world.metric("gigaslice_dataset_fetch_seconds_total") == 0

    play(world, story)


def test_what_is_in_use_and_what_was_deleted(world, monkeypatch):
    metric, unlink = world.metric, Path.unlink

    def refused(path, missing_ok=False):
        if path.parent.name == "trash":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, missing_ok=missing_ok)

    async def story(service):
        volume, kept = world.volume("p"), await ensure(world, "p")
        other = await ensure(world, "q", "other")
        assert metric("gigaslice_dataset_in_use_bytes") == kept.size + other.size, "pods wait for them"
        service.store.publish(volume, (VolumeSource(key=kept.key, name="coco"),))
        service.store.unpin(volume.id, kept.key)
        service.store.unpin(world.volume("q").id, other.key)
        assert metric("gigaslice_dataset_in_use_bytes") == kept.size
        assert metric("gigaslice_dataset_volumes", "published") == 1
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", refused)
            service.store.evict([other.key])
            assert metric("gigaslice_dataset_evictions_total") == 1
            await until(lambda: metric("gigaslice_dataset_trash_failures_total") >= 1)
            assert metric("gigaslice_dataset_trash_bytes") == other.size
            assert metric("gigaslice_dataset_datasets", "ready") == 1
            assert metric("gigaslice_dataset_free_bytes") == CAPACITY - kept.size - other.size
        service.store.remove(volume.id, volume.target)
        assert metric("gigaslice_dataset_in_use_bytes") == 0
        assert metric("gigaslice_dataset_volumes", "published") == 0

    play(world, story)
