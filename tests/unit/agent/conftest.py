from __future__ import annotations

import itertools

import pytest

from agent.allocation.service import AllocationService
from gigaslice.placement import Policy
from tests.fakes.nodes import inventory


@pytest.fixture
def allocator(store):
    return make_allocator(store)


def make_allocator(store, found=None):
    numbers = itertools.count(1)
    return AllocationService(
        store,
        found or inventory(),
        Policy.GAIA,
        now=lambda: 1700000000.0,
        new_id=lambda: f"{next(numbers):032x}",
    )
