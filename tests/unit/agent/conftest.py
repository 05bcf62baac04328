# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from agent.inventory.holder import InventoryHolder
from gigaslice.core.model import AnnotationRights
from tests.fakes.nodes import device_allocator, inventory


@pytest.fixture
def gpus():
    return InventoryHolder(inventory())


@pytest.fixture
def allocator(store, gpus):
    return make_allocator(store, gpus)


def make_allocator(store, found, rights=AnnotationRights.CHECKED, **more):
    """A service on the GPUs of FOUND: an inventory, or the holder of one."""
    holder = found if isinstance(found, InventoryHolder) else InventoryHolder(found)
    return device_allocator(store, holder, rights=rights, **more)
