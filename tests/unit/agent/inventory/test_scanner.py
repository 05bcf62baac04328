# SPDX-License-Identifier: Apache-2.0
import asyncio

from agent.inventory.scanner import Scanner
from gigaslice.core.errors import InventoryError
from tests.fakes.nodes import FixedSource, inventory


def test_only_changes_are_passed_on_and_failures_change_nothing():
    source, seen = FixedSource(inventory()), []

    async def main():
        last = [inventory()]
        scanner = Scanner(source, 3600.0, last=lambda: (last + seen)[-1], changed=seen.append)
        await scanner.scan()
        assert seen == []
        source.found = InventoryError(["half written"])
        await scanner.scan()
        assert seen == []
        source.found = inventory(unhealthy=(1,))
        await scanner.scan()
        await scanner.scan()
        assert seen == [inventory(unhealthy=(1,))]
        source.found = inventory(1)
        await scanner.scan()
        assert [gpu.healthy for gpu in seen[-1].gpus] == [True, False]
        source.found = inventory()
        await scanner.scan()
        assert seen[-1] == inventory()

    asyncio.run(main())


def test_it_looks_by_itself():
    source, found = FixedSource(inventory(unhealthy=(0,))), []

    async def main():
        event = asyncio.Event()

        def changed(now):
            found.append(now)
            event.set()

        scanner = Scanner(source, 0.01, last=inventory, changed=changed)
        task = asyncio.create_task(scanner.run())
        await asyncio.wait_for(event.wait(), 30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert found == [inventory(unhealthy=(0,))]
