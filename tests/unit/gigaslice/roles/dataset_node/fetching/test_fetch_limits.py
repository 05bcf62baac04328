# SPDX-License-Identifier: Apache-2.0
"""Places go to the task that has fewest, bytes to every dataset alike."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits, Flow, RateLimiter
from gigaslice.roles.dataset_node.fetching.progress import ProgressMeter
from gigaslice.roles.dataset_node.fetching.units import Units
from gigaslice.roles.dataset_node.sources.protocol import CancelFlag
from gigaslice.roles.dataset_node.sources.retry import backoff
from tests.fakes.dataset_sources import files


def test_a_task_with_many_datasets_does_not_keep_the_others_out():
    async def run():
        bounds = FetchLimits(datasets=2)
        order = []

        async def one(task):
            async with bounds.place(task):
                order.append(task)
                await asyncio.sleep(0.01)

        await asyncio.gather(*(one(task) for task in ["big"] * 6 + ["small", "other"]))
        return order

    order = asyncio.run(run())
    assert order[:2] == ["big", "big"]
    assert set(order[2:4]) == {"small", "other"}


def test_who_gives_up_waiting_takes_no_place():
    async def run():
        bounds = FetchLimits(datasets=1)
        inside, leave = asyncio.Event(), asyncio.Event()

        async def hold():
            async with bounds.place("a"):
                inside.set()
                await leave.wait()

        async def come():
            async with bounds.place("b"):
                return "in"

        holder = asyncio.create_task(hold())
        await inside.wait()
        waiting = [asyncio.create_task(come()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        leave.set()
        await holder
        waiting[1].cancel()  # it may have been given the place in this very moment
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert found[2] == "in"
        assert await asyncio.wait_for(come(), 5) == "in"

    asyncio.run(run())


def test_bytes_per_second_are_shared_by_datasets_whatever_their_units():
    pace, stop, had = RateLimiter(4_000_000), CancelFlag(), {"large": 0, "small": 0}

    def read(name, flow, size):
        while not stop:
            pace.acquire(flow, size, stop)
            had[name] += size

    large, small = Flow(), Flow()
    threads = [threading.Thread(target=read, args=("large", large, 200_000)) for _ in range(4)]
    threads += [threading.Thread(target=read, args=("small", small, 10_000)) for _ in range(4)]
    for one in threads:
        one.start()
    time.sleep(2)
    stop.set()
    for one in threads:
        one.join(60)
    assert not any(one.is_alive() for one in threads)
    assert 0.6 < had["large"] / had["small"] < 1.6


def test_no_more_bytes_than_the_bound():
    now = [0.0]
    pace, stop, flow = RateLimiter(1000, clock=lambda: now[0]), CancelFlag(), Flow()
    pace.acquire(flow, 1000, stop)
    done = threading.Event()

    def more():
        pace.acquire(flow, 10, stop)
        done.set()

    thread = threading.Thread(target=more)
    thread.start()
    assert not done.wait(0.1)
    now[0] = 1.1
    assert done.wait(60)
    thread.join()


def test_who_gives_up_lets_the_next_one_pass():
    pace, stop, other = RateLimiter(1.0), CancelFlag(), CancelFlag()
    pace.acquire(Flow(), 1_000_000, CancelFlag())
    threads = [threading.Thread(target=pace.acquire, args=(Flow(), 1, one)) for one in (stop, other)]
    for one in threads:
        one.start()
    for one in (stop, other):
        one.set()
    for one in threads:
        one.join(60)
        assert not one.is_alive()


def test_progress_counts_what_was_there_and_tells_the_time_left():
    now = [0.0]
    meter = ProgressMeter(1000, 200, clock=lambda: now[0])
    assert meter.now().fraction == 0.2
    assert meter.now().eta is None
    for _ in range(4):
        now[0] += 1
        meter.read(120)
        meter.arrived(100)
    found = meter.now()
    assert (found.bytes, found.fetched) == (600, 480)
    assert found.rate == pytest.approx(100)
    assert found.eta == pytest.approx(4)
    now[0] += 60
    meter.arrived(400)
    assert meter.now().eta == 0.0
    assert meter.now().fraction == 1.0
    assert ProgressMeter(0).now().fraction == 1.0


def test_delays_grow_to_a_bound_and_heed_the_server():
    for failures, least in ((1, 0.2), (2, 0.4), (3, 0.8), (30, 20.0)):
        assert all(least <= backoff(failures) <= least * 1.25 for _ in range(200))
    assert 60 <= backoff(1, 60) <= 75


def test_units_are_files_and_pieces_of_large_ones_in_the_images_order():
    listing = files({"a": 5, "b": 25, "c": 0, "d": 10})
    units = Units(listing.entries, [(1000, 5), (100, 25), (5, 0), (500, 10)], unit_bytes=10)
    assert units.count == 5
    assert units.bytes == 40
    found = [units[number] for number in range(units.count)]
    assert [(one.entry.path, one.offset, one.size, one.place) for one in found] == [
        (b"b", 0, 10, 100),
        (b"b", 10, 10, 110),
        (b"b", 20, 5, 120),
        (b"d", 0, 10, 500),
        (b"a", 0, 5, 1000),
    ]
    assert [units.place(number) for number in range(units.count)] == [100, 110, 120, 500, 1000]
    other = Units(listing.entries, [(1001, 5), (100, 25), (5, 0), (500, 10)], unit_bytes=10)
    assert other.fingerprint != units.fingerprint
    with pytest.raises(ValueError, match="plan has 6"):
        Units(listing.entries, [(0, 6), (10, 25), (0, 0), (50, 10)])
