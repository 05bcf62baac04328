# SPDX-License-Identifier: Apache-2.0
"""When a controller counts as unready, and how many pods it tells at once: by a clock of the test's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gigaslice.core.cluster.state import NodeFacts
from gigaslice.core.model import Pod, PodContainer
from gigaslice.role_settings import load
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.controller.parts import ControllerParts
from tests.fakes.clusters import inventory_gpu, node_inventory


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def parts(clock: Clock) -> ControllerParts:
    """A controller that has seen everything, and whose API server is never asked."""
    client: Any = object()
    found = ControllerParts(client, load(ControllerConfig, {"metrics-address": "off"}, {}), "a", clock=clock)
    for one in found.feed.informers.values():
        one.synced.set()
    return found


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(300.0, None), (400.0, None), (430.0, "no watch of pods"), (1e9, "no watch of pods")],
)
def test_a_controller_that_has_had_no_watch_for_long_is_unready(monkeypatch, seconds, reason):
    async def story() -> None:
        one = parts(Clock())
        monkeypatch.setattr(one.feed, "silent_seconds", lambda: {"nodes": 0.0, "pods": seconds})
        assert one.unready() == reason

    asyncio.run(story())


def test_what_waits_for_a_pass_is_shown():
    async def story() -> None:
        one = parts(Clock())
        for name in ("n1", "n2", "n1"):
            one.reconciler.nodes.add(name)
        one.reconciler.classes.add("nvidia.h100")
        lengths = one.collect().series["gigaslice_controller_queue_length"]
        assert lengths == {("gpus",): 2, ("classes",): 1, ("templates",): 0}

    asyncio.run(story())


def test_a_page_of_many_nodes_is_made_in_pieces():
    async def story() -> None:
        one = parts(Clock())
        text = node_inventory(inventory_gpu("n", index) for index in range(8)).encode()
        for number in range(400):
            one.state.put_node(NodeFacts(f"n{number:03}", text))
        work, others = asyncio.create_task(one._render({"q": "n39"})), 0
        while not work.done():
            await asyncio.sleep(0)
            others += 1
            if others == 2:  # in the middle of it
                one.state.drop_node("n399")
        assert others > 2
        page = work.result()()
        assert "n398" in page and "n399" not in page

    asyncio.run(story())


def test_thousands_of_mistaken_pods_are_told_a_few_at_a_time_and_none_is_left_out():
    async def story() -> None:
        clock = Clock()
        one = parts(clock)
        for number in range(300):
            container = PodContainer("c", requests={"gpuclass.gigaslice.io/none": 1})
            one.waiting.put(Pod("ns", f"p{number}", f"u{number}", {}, (container,), "Pending"), clock.now)

        def told() -> int:
            one._tell_pods(clock.now)
            return sum(one.counters.events.values())

        assert told() == told() == 100
        clock.now = 10.0
        assert told() == told() == 150
        for _ in range(30):
            clock.now += 2.0
            told()
        assert told() == 300

    asyncio.run(story())
