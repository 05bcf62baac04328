# SPDX-License-Identifier: Apache-2.0
"""What the service itself adds to its parts: volumes of init containers, and what it says of its fetches."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.control import WAIT_PREFIX
from gigaslice.roles.dataset_node.store import VolumeSource
from gigaslice.roles.dataset_node.tasks.dataset_status import DatasetStatus
from gigaslice.roles.dataset_node.tasks.protocols import ResolvedDataset
from tests.fakes.dataset_node import NodeWorld
from tests.fakes.dataset_storage import Bucket
from tests.fakes.eventually import until

COCO = ResolvedDataset(SourceSpec.parse("s3://coco/train"))
SIZE = 5000


@pytest.fixture
def world(short_dir):
    made = NodeWorld(short_dir)
    made.storage.buckets["coco"] = Bucket({"a": b"x" * SIZE})
    return made


def play(world, story):
    async def main():
        async with world.opened() as service:
            await asyncio.wait_for(story(service), 30)

    asyncio.run(main())


def ensure(service, volume):
    return service.tasks._dependencies.provisioner.ensure(volume, COCO, {}, DatasetStatus("coco"))


def test_what_an_init_container_asked_for_is_unmounted_when_its_pod_is_gone(world):
    async def story(service):
        store = service.store
        volumes = []
        for name in ("gone", "there", "csi"):
            volume = world.volume(name)
            if name != "csi":
                target = world.root / "w" / name / "data"
                target.mkdir(parents=True)
                volume = dataclasses.replace(volume, id=f"{WAIT_PREFIX}{name}", target=str(target))
            metadata = await ensure(service, volume)
            store.publish(volume, (VolumeSource(key=metadata.key, name="coco"),))
            volumes.append(volume)
        gone, there, csi = volumes
        (world.root / "k/pods" / there.pod_uid).mkdir(parents=True, exist_ok=True)
        pod = world.root / "k/pods" / gone.pod_uid
        pod.rename(pod.with_name("elsewhere"))
        assert all(world.shown_at(one) for one in volumes)
        sweeping = asyncio.ensure_future(service._sweep_waits())
        await until(lambda: not Path(gone.target).parent.exists())
        sweeping.cancel()
        assert set(store.records()) == {there.id, csi.id}
        assert not world.shown_at(gone) and world.shown_at(there) and world.shown_at(csi)

    play(world, story)


def test_what_is_read_of_sources_is_counted_and_shown(world):
    async def story(service):
        bucket, counters = world.storage.buckets["coco"], service.counters
        bucket.hold.clear()
        work = asyncio.ensure_future(ensure(service, world.volume("p")))
        await until(service.fetched_bytes)
        assert list(service.fetched_bytes().values()) == [0]
        bucket.hold.set()
        await work
        assert service.fetched_bytes() == {}
        assert (counters.fetches, counters.fetched_files, counters.fetched_bytes) == (1, 1, SIZE)
        await ensure(service, world.volume("q"))
        assert counters.fetched_bytes == SIZE

    play(world, story)
