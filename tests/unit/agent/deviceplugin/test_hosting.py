# SPDX-License-Identifier: Apache-2.0
"""Providers beside each other: what one does wrong costs its own resource alone."""

import asyncio

import pytest

from agent.deviceplugin.hosting import host, run_beside
from agent.link import Link
from agent.providers.container_edits import ContainerEdits
from agent.providers.resource import Device, DevicePluginResource


class Odd(DevicePluginResource):
    """Fails at once, as often as it is told to."""

    resource = "example.com/odd"

    def __init__(self, failures):
        self.failures = failures
        self.runs = 0
        self.settled = asyncio.Event()

    def devices(self):
        return [Device("a")]

    def answer(self, devices):
        return ContainerEdits(env={"ODD": ",".join(devices)})

    async def watch(self, changed):
        self.runs += 1
        if self.runs <= self.failures:
            raise RuntimeError("a mistake in the provider")
        self.settled.set()
        await super().watch(changed)


def test_a_provider_that_lacks_what_every_one_has_cannot_be_made():
    with pytest.raises(TypeError, match="neither answer nor allocate"):

        class Mute(DevicePluginResource):
            def devices(self):
                return []

    class Empty(DevicePluginResource):
        def answer(self, devices):
            return ContainerEdits()

    with pytest.raises(TypeError, match="devices"):
        Empty()


def test_a_provider_with_a_mistake_is_tried_again_and_ends_when_asked_to(tmp_path):
    async def story():
        stop, odd, link = asyncio.Event(), Odd(failures=2), Link.open()
        async with link.attached():
            task = asyncio.create_task(host(odd, tmp_path / "none", stop, link, pause=0.001))
            await asyncio.wait_for(odd.settled.wait(), 60)
            stop.set()
            await asyncio.wait_for(task, 60)
        await asyncio.to_thread(link.close)
        assert odd.runs == 3

    asyncio.run(story())


def test_those_beside_the_lead_may_finish_after_it():
    done = []

    async def slow(name):
        await asyncio.sleep(0.01)
        done.append(name)

    async def lead():
        done.append("lead")

    asyncio.run(run_beside(lead(), [slow("a"), slow("b")]))
    assert done == ["lead", "a", "b"]


def test_a_lead_that_fails_ends_those_beside_it():
    async def lead():
        await asyncio.sleep(0)
        raise OSError("no")

    async def story():
        forever = asyncio.Event()
        await asyncio.wait_for(run_beside(lead(), [forever.wait()]), 60)

    with pytest.raises(OSError, match="no"):
        asyncio.run(story())


def test_a_plain_provider_answers_container_by_container():
    async def story():
        odd = Odd(0)
        assert [one.env["ODD"] for one in await odd.allocate([["a"], ["a", "b"]])] == ["a", "a,b"]
        assert await odd.prefer(["a"], [], 1) == ()
        assert await odd.start(["a"], None) is None

    asyncio.run(story())
