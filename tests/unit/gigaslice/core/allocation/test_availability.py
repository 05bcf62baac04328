# SPDX-License-Identifier: Apache-2.0
"""What is left of each GPU, whoever has the rest."""

from gigaslice.core.allocation.availability import availability
from gigaslice.core.allocation.table import AllocationOptions, AllocationTable
from tests.fakes.nodes import allocation, inventory, whole_allocation


def left(*allocations, **more):
    gpus = inventory(**more).gpus
    return [(one.free_slices, one.whole) for one in availability(AllocationTable(allocations, 9), gpus)]


def test_slices_that_count_are_not_free():
    assert left() == [(24, False), (24, False)]
    assert left(allocation(1, (0, range(5))), allocation(2, (0, range(5, 8)), (1, range(1)))) == [
        (16, False),
        (23, False),
    ]
    assert left(allocation(1, (0, range(5)), ended=True)) == [(24, False), (24, False)]


def test_a_gpu_that_is_given_out_whole_has_nothing_left():
    assert left(whole_allocation(1, 1)) == [(24, False), (0, True)]
    assert left(whole_allocation(1, 1, ended=True)) == [(24, False), (24, False)]
    exclusive = AllocationOptions(exclusive=True)
    assert left(allocation(1, (0, range(5)), policy=exclusive)) == [(0, False), (24, False)]


def test_more_than_there_is_leaves_nothing():
    assert left(allocation(1, (0, range(24))), slices=8)[0] == (0, False)
