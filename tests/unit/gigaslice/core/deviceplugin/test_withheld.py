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


def resized(slice_bytes, gpus=2):
    """The same GPUs in slices of another size."""
    return [
        replace(gpu, slices=24 * GIB // slice_bytes, slice_bytes=slice_bytes)
        for gpu in inventory(gpus, 24).gpus
    ]


def one_of_8_gib(device_ids_, **fields):
    """A container that was given 8 GiB of the first GPU by these device IDs, in slices of 8 GiB or less."""
    holder = allocation(1, (0, device_ids_), **fields)
    hold = replace(holder.holds[0], memory_bytes=8 * GIB, slice_bytes=8 * GIB // len(device_ids_))
    return AllocationTable().with_allocation(replace(holder, holds=(hold,)))


def test_smaller_slices_leave_no_more_free_device_ids_than_there_is_room():
    """The kubelet counts one device ID for the container, as before, and it is a GiB now."""
    assert withheld(one_of_8_gib(range(1)), resized(GIB)) == device_ids(0, *range(17, 24))
    assert withheld(one_of_8_gib(range(8)), resized(GIB)) == frozenset()
    half = withheld(one_of_8_gib(range(8)), resized(GIB // 2))
    assert half == device_ids(0, *range(40, 48))


def test_device_ids_that_are_none_any_more_count_for_nothing():
    assert withheld(one_of_8_gib(range(16, 24)), resized(8 * GIB)) == device_ids(0, 2)


def test_device_ids_that_count_for_more_than_before_have_nothing_withheld():
    """Eight device IDs, of which there are three now: the kubelet takes all of the GPU for given out."""
    assert withheld(one_of_8_gib(range(8)), resized(8 * GIB)) == frozenset()


def test_a_whole_gpu_has_no_device_ids_of_slices():
    whole = one_of_8_gib(range(1), whole=True)
    assert withheld(whole, resized(GIB)) == frozenset()
