# SPDX-License-Identifier: Apache-2.0
"""Lists past the watch: who asks gets what was true after the question, and many get one."""

from __future__ import annotations

import asyncio

from agent.apiserver import PodLists
from tests.fakes.cluster import MemoryCluster


class SlowCluster(MemoryCluster):
    """A cluster whose lists show what there was when they began, after SECONDS. lists: how many were begun."""

    def __init__(self, seconds):
        super().__init__()
        self.lists, self.seconds, self.answer = 0, seconds, {}

    async def read(self, timeout):
        del timeout
        self.lists += 1
        answer = self.answer
        await asyncio.sleep(self.seconds)
        return answer


def test_who_asks_while_a_list_is_on_its_way_gets_one_that_was_begun_later():
    """And all of them together one."""
    cluster = SlowCluster(0.05)
    cluster.answer = before = {("default", "train"): object()}
    lists = PodLists(cluster)

    async def story():
        first = asyncio.create_task(lists.read())
        while not cluster.lists:
            await asyncio.sleep(0.001)
        cluster.answer = after = {}
        others = [asyncio.create_task(lists.read()) for _ in range(5)]
        assert await first is before
        assert all(answer is after for answer in await asyncio.gather(*others))

    asyncio.run(story())
    assert cluster.lists == 2


def test_who_asks_later_is_not_told_what_was():
    cluster = SlowCluster(0.0)
    lists = PodLists(cluster)

    async def story():
        assert await lists.read() == {}
        cluster.answer = None
        assert await lists.read() is None, "the API server does not answer"

    asyncio.run(story())
    assert cluster.lists == 2


def test_who_gives_up_leaves_the_others_their_list():
    cluster = SlowCluster(0.05)
    lists = PodLists(cluster)

    async def story():
        earlier, first, second = (asyncio.create_task(lists.read()) for _ in range(3))
        await asyncio.sleep(0)
        cluster.answer = after = {("default", "train"): object()}
        assert await earlier == {}
        while cluster.lists < 2:
            await asyncio.sleep(0.001)
        first.cancel()
        assert await second is after

    asyncio.run(story())
