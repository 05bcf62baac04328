# SPDX-License-Identifier: Apache-2.0
"""Free device IDs that the kubelet must not hand out."""

from dataclasses import replace

from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.deviceplugin.origin import GpuTokens
from gigaslice.core.deviceplugin.withheld import withheld
from tests.fakes.nodes import GIB, allocation, device_ids, inventory, of_tokens, uuid

NODE = inventory(2, 24)


def test_what_an_init_container_still_counts_for_after_it_has_lent_everything_is_withheld():
    """The app has its device IDs on another GPU, so that the kubelet counts eight for sixteen slices."""
    names = sorted(device_ids(1, *range(8)))
    init = allocation(1, (1, range(8)), lent=frozenset(names))
    init = replace(init, holds=(replace(init.holds[0], counted_bytes=8 * GIB),))
    app = replace(of_tokens(2, GpuTokens(uuid(1), tuple(names))), id=f"{2:032x}")
    app = replace(app, holds=(replace(app.holds[0], gpu=uuid(0)),))
    both = AllocationTable().with_allocation(init).with_allocation(app)
    assert withheld(both, NODE.gpus) == device_ids(0, *range(16, 24))
    assert withheld(AllocationTable().with_allocation(app), NODE.gpus) == frozenset()
