"""What the parts of a node agent show before any of them runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agent.config import Config
from agent.deviceplugin.gpu_resource import GpuResource
from agent.inventory.holder import InventoryHolder
from agent.roles.node_parts import build
from gigaslice.core.deviceplugin.device_id import whole_gpu_device_id
from tests.fakes.nodes import device_allocator, inventory, uuid

WHOLE = "gigaslice.io/gpu"


@pytest.mark.parametrize("whole", [True, False])
def test_a_started_agent_shows_no_slice_of_a_gpu_that_is_given_out_whole(store, tmp_path, whole):
    """A kubelet that was shown them, for a moment, gave them to a pod that waited for the other one's end."""
    gpus = InventoryHolder(inventory(2))
    if whole:
        allocator = device_allocator(
            store, gpus, new_id=lambda: f"{1:032x}", whole_resource=WHOLE, whole=True
        )
        allocator.allocate([[whole_gpu_device_id(uuid(0))]])
    config = Config(
        state_dir=tmp_path, kube_api="off", whole_gpus=WHOLE, node_name="n", metrics_address=("127.0.0.1", 0)
    )
    parts = build(config, SimpleNamespace(process_busy=None), gpus, store, lambda _: None)
    slices, *others = (parts.servicer.provider, *parts.providers)
    assert isinstance(slices, GpuResource)
    assert sum(device.healthy for device in slices.devices()) == (24 if whole else 48)
    assert [sum(device.healthy for device in other.devices()) for other in others] == [2]
