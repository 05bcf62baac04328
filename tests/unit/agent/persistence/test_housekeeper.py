# SPDX-License-Identifier: Apache-2.0
"""What takes a disk long happens in another thread, behind the fact, and in the right order."""

import asyncio
import contextlib

import pytest

from agent.persistence import directories
from agent.persistence.housekeeper import Housekeeper
from gigaslice.core.errors import StorageError
from tests.fakes.nodes import device_ids


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def during(store, interval, story):
    """Runs a story beside a housekeeper."""

    async def main():
        task = asyncio.create_task(Housekeeper(store, interval).run())
        try:
            await asyncio.wait_for(story(), 30)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert store.watchers == []


def test_files_for_the_next_allocation_are_made_after_each(store, allocator):
    """Not only at the next interval, which comes too late for a burst of admissions."""

    async def story():
        for number in range(3):
            await until(lambda: len(store.dirs._spares) == directories._SPARES)
            allocator.allocate([device_ids(0, number)])
            assert len(store.dirs._spares) == directories._SPARES - 1

    during(store, 3600.0, story)


def test_the_files_of_what_is_released_go_soon(store, allocator):
    (one,) = allocator.allocate([device_ids(0, 1, 2)])
    root = store.dirs.path(one.id).parent

    async def story():
        allocator.service.release({one.id})
        await until(lambda: all(path.name.startswith(".new-spare-") for path in root.iterdir()))

    during(store, 3600.0, story)


def test_what_is_tidied_away_is_synced_first_and_an_unchanged_table_only_once(store, allocator, monkeypatch):
    """It may be all that a power failure would leave."""
    calls = []
    for name in ("sync", "tidy"):
        monkeypatch.setattr(store, name, lambda name=name: calls.append(name))
    allocator.allocate([device_ids(0, 1)])

    async def story():
        await until(lambda: len(calls) >= 4)

    during(store, 0.01, story)
    assert calls[:4] == ["sync", "tidy", "tidy", "tidy"]


def test_a_sync_that_fails_is_tried_again_and_reported_once(store, allocator, monkeypatch, capsys):
    tried = []

    def sync():
        tried.append(1)
        if len(tried) < 4:
            raise StorageError("the disk is gone")

    monkeypatch.setattr(store, "sync", sync)
    allocator.allocate([device_ids(0, 1)])

    async def story():
        await until(lambda: len(tried) >= 4)

    during(store, 0.01, story)
    assert capsys.readouterr().out.count("not synced") == 1


@pytest.mark.parametrize("interval", [0.01])
def test_it_goes_on_without_any_change(store, monkeypatch, interval):
    calls = []
    monkeypatch.setattr(store, "tidy", lambda: calls.append(1))

    async def story():
        await until(lambda: len(calls) >= 3)

    during(store, interval, story)
