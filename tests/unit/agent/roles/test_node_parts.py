# SPDX-License-Identifier: Apache-2.0
"""What the parts of a node agent show before any of them runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from agent.config import Config
from agent.inventory.holder import InventoryHolder
from agent.roles.node_parts import build
from gigaslice.core.allocation.table import LiveLimit
from gigaslice.core.deviceplugin.device_id import whole_gpu_device_id
from tests.fakes.nodes import GIB, device_allocator, device_ids, inventory, uuid

WHOLE = "gigaslice.io/gpu"


def built(store, tmp_path, gpus):
    """The resource of slices, and the others, of an agent that was built and has not run."""
    config = Config(
        state_dir=tmp_path, kube_api="off", whole_gpus=WHOLE, node_name="n", metrics_address=("127.0.0.1", 0)
    )
    parts = build(config, SimpleNamespace(process_busy=None), gpus, store, link=None, renew=lambda _: None)
    return parts.servicer.provider, *parts.providers, *parts.whole_gpus


def healthy(resource):
    return sum(device.healthy for device in resource.devices())


@pytest.mark.parametrize("whole", [True, False])
def test_a_started_agent_shows_no_slice_of_a_gpu_that_is_given_out_whole(store, tmp_path, whole):
    """A kubelet that was shown them, for a moment, gave them to a pod that waited for the other one's end."""
    gpus = InventoryHolder(inventory(2))
    if whole:
        allocator = device_allocator(
            store, gpus, new_id=lambda: f"{1:032x}", whole_resource=WHOLE, whole=True
        )
        allocator.allocate([[whole_gpu_device_id(uuid(0))]])
    slices, *others = built(store, tmp_path, gpus)
    assert healthy(slices) == (24 if whole else 48)
    assert [healthy(other) for other in others] == [2]


def test_a_started_agent_shows_no_slice_that_a_grown_container_has(store, tmp_path):
    gpus = InventoryHolder(inventory(2))
    allocator = device_allocator(store, gpus, new_id=lambda: f"{1:032x}")
    (grown,) = allocator.allocate([device_ids(0, *range(4))])
    store.commit(store.table.replaced([replace(grown, limits=(LiveLimit(uuid(0), 8 * GIB),))]), ())
    slices, *_ = built(store, tmp_path, gpus)
    assert healthy(slices) == 48 - 4
