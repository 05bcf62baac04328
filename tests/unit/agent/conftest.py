from __future__ import annotations

import itertools

import pytest

from agent.allocation.service import AllocationService
from agent.inventory.holder import InventoryHolder
from gigaslice.model import AnnotationRights
from gigaslice.placement import Policy
from tests.fakes.nodes import inventory


@pytest.fixture
def gpus():
    return InventoryHolder(inventory())


@pytest.fixture
def allocator(store, gpus):
    return make_allocator(store, gpus)


def make_allocator(store, found, rights=AnnotationRights.CHECKED):
    """A service on the GPUs of FOUND: an inventory, or the holder of one."""
    numbers = itertools.count(1)
    return AllocationService(
        store,
        found if isinstance(found, InventoryHolder) else InventoryHolder(found),
        Policy.GAIA,
        now=lambda: 1700000000.0,
        new_id=lambda: f"{next(numbers):032x}",
        rights=rights,
    )
