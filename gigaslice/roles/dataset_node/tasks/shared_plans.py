# SPDX-License-Identifier: Apache-2.0
"""The layouts of the images that tasks wait for. There is one per key, made by the first task that needs it.

A layout follows from the listing, and a key is made of the listing's digest, so equal keys have equal layouts. The
other tasks take the layout of the first one, and its listing in place of their own. So a listing of a million files
that eight tasks have taken is in memory once.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from gigaslice.core.dataset.image import ImagePlan, plan
from gigaslice.core.dataset.listing import Listing
from gigaslice.roles.dataset_node.tasks.threads import Threads

__all__ = ["SharedPlan", "SharedPlans"]


class SharedPlan:
    """The layout of one image. It is kept as long as a task has this object."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.layout: ImagePlan | None = None


class SharedPlans:
    """All layouts that tasks have."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._plans: WeakValueDictionary[str, SharedPlan] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._plans)

    def of(self, key: str) -> SharedPlan:
        """The place for the layout of KEY; to be held by who needs it."""
        return self._plans.setdefault(key, SharedPlan())

    async def layout(self, planned: SharedPlan, listing: Listing) -> ImagePlan:
        """The layout, which is made of LISTING where no task has made it."""
        async with planned.lock:
            if planned.layout is None:
                planned.layout = await self._threads.run(plan, listing)
            return planned.layout
