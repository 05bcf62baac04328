# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest

from tests.fakes.dataset_node import NodeWorld
from tests.fakes.dataset_objects import DatasetApi
from tests.fakes.dataset_storage import Bucket

KEY = {"key": "k1"}
"""The Secret with which bucket "coco" can be listed and read."""


@pytest.fixture
def world(short_dir):
    """A node of a cluster with Dataset objects, of which those in namespace "admin" are trusted."""
    made = NodeWorld(short_dir, trusted_namespaces="admin")
    made.api = DatasetApi()
    made.storage.buckets["coco"] = Bucket({"a/1": b"one" * 100, "a/2": b"two" * 5000, "b": b""}, key="k1")
    return made


@pytest.fixture
def play(world):
    """Runs a story in one life of the service's parts, without its sockets."""

    def run(*stories, seconds=30):
        async def main():
            for story in stories:
                async with world.opened():
                    await asyncio.wait_for(story(), seconds)

        asyncio.run(main())

    return run
