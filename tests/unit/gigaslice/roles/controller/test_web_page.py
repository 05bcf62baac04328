# SPDX-License-Identifier: Apache-2.0
"""A page is made when something has changed, not when a browser asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gigaslice.roles.controller.web_page import _Pages


def test_pages_are_made_again_only_when_something_has_changed_and_some_time_has_passed():
    now, revision, made = 0.0, 1, []

    async def make(query: Mapping[str, str]) -> Callable[[], str]:
        made.append(dict(query))
        return lambda: f"page {len(made)}"

    pages = _Pages(make, lambda: revision, lambda: now)

    async def main() -> None:
        nonlocal now, revision
        first = await pages.page({})
        assert (await pages.page({})) is first
        revision = 2
        assert (await pages.page({})) is first, "changed, and not two seconds old"
        now = 3.0
        second = await pages.page({})
        assert second.body != first.body and second.tag != first.tag
        now = 32.0
        assert (await pages.page({})) is second, "nothing has changed"
        now = 34.0
        assert (await pages.page({})).tag != second.tag, "the ages in it are old"
        await asyncio.gather(*(pages.page({"q": "h100"}) for _ in range(10)))
        for number in range(40):
            await pages.page({"q": str(number)})
        assert (await pages.page({})).body != second.body, "forgotten for newer ones"

    asyncio.run(main())
    assert made == [{}, {}, {}, {"q": "h100"}, *({"q": str(number)} for number in range(40)), {}]


def test_a_page_that_takes_long_is_made_more_rarely():
    now, made = 0.0, 0

    async def make(query: Mapping[str, str]) -> Callable[[], str]:
        nonlocal now, made
        now += 1.0
        made += 1
        return lambda: "page"

    revisions = iter(range(100))
    pages = _Pages(make, lambda: next(revisions), lambda: now)

    async def main() -> None:
        nonlocal now
        await pages.page({})
        now = 20.0
        await pages.page({})
        assert made == 1
        now = 21.5
        await pages.page({})
        assert made == 2

    asyncio.run(main())
