# SPDX-License-Identifier: Apache-2.0
"""What becomes of holders whose device IDs are handed out again."""

import pytest

from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.deviceplugin.handing_out import (
    counted_elsewhere,
    lenders,
    of_device_ids,
    with_freed,
    with_handed_out,
)
from gigaslice.core.deviceplugin.origin import held, kept, plugin
from gigaslice.core.model import Share
from tests.fakes.nodes import GIB, allocation, device_ids, inventory, table, uuid

APP = ContainerRef("default", "p", "main")


def test_a_device_id_seen_again_ends_a_container_that_was_listed():
    made = table(allocation(1, (0, range(8)), container=APP))
    after, superseded = with_handed_out(made, device_ids(0, 3), expired={made.allocations[0].id})
    assert superseded == (made.allocations[0].id,)
    assert after.allocations[0].ended
    assert after.occupants(inventory().gpus) == ()


def test_a_device_id_seen_again_takes_nothing_from_a_holder_that_may_live():
    """A kubelet that has lost its checkpoint hands out the devices of running containers."""
    made = table(allocation(1, (0, range(8)), container=APP))
    after, superseded = with_handed_out(made, device_ids(0, 3))
    assert superseded == (made.allocations[0].id,)
    (one,) = after.allocations
    assert (one.ended, plugin(one).forgotten, held(one)) == (False, True, frozenset())
    (occupant,) = after.occupants(inventory().gpus)
    assert occupant.shares == (Share(uuid(0), 8),)
    assert with_handed_out(after, device_ids(0, 3)) == (after, ())


@pytest.mark.parametrize("known", [{"started": {f"{1:032x}"}}, {"since": 1700000001.0}])
def test_who_has_started_or_was_made_long_ago_lends_nothing(known):
    """The kubelet allocates all containers of a pod at once, and before it starts the first."""
    after, _ = with_handed_out(table(allocation(1, (0, range(8)))), device_ids(0, 3, 4), **known)
    assert (plugin(after.allocations[0]).lent, plugin(after.allocations[0]).forgotten) == (frozenset(), True)
    assert after.allocations[0].promised == {uuid(0): 8 * GIB}


def test_a_container_that_was_never_listed_may_be_an_init_container_and_lends_just_these():
    after, superseded = with_handed_out(table(allocation(1, (0, range(8)))), device_ids(0, 3, 4))
    assert superseded
    assert held(after.allocations[0]) == device_ids(0, 0, 1, 2, 5, 6, 7)
    (occupant,) = after.occupants(inventory().gpus)
    assert occupant.shares == (Share(uuid(0), 6),)


def test_lent_device_ids_are_not_taken_twice():
    first, _ = with_handed_out(table(allocation(1, (0, range(8)))), device_ids(0, 0))
    second, superseded = with_handed_out(first, device_ids(0, 0))
    assert superseded == ()
    assert second == first


def test_a_device_id_shown_free_ends_its_holder_only_if_that_is_over():
    made = table(
        allocation(1, (0, range(8))),
        allocation(2, (1, range(4)), container=APP),
        allocation(3, (1, range(4, 6))),
    )
    after = with_freed(made, [f"{uuid(0)}/7", f"{uuid(1)}/0", "nonsense"], expired={made.allocations[1].id})
    assert [one.ended for one in after.allocations] == [False, True, False]
    assert [plugin(one).forgotten for one in after.allocations] == [True, False, False]


def test_the_newest_of_equal_device_id_sets_is_meant():
    made = table(allocation(1, (0, range(4))), allocation(2, (0, range(4))), allocation(3, (0, range(5))))
    assert [one.number for one in of_device_ids(made, device_ids(0, 0, 1, 2, 3))] == [2, 1]
    assert of_device_ids(made, device_ids(0, 9)) == ()
    assert of_device_ids(made, frozenset()) == ()


def test_what_a_pod_that_has_ended_had_is_nobodys():
    made = table(allocation(1, (0, range(8)))).with_ended([f"{1:032x}"])
    (ended,) = made.allocations
    assert kept(ended) == held(ended) == frozenset()
    assert not counted_elsewhere(made, allocation(2, (0, range(8))))
    assert with_handed_out(made, device_ids(0, 3)) == (made, ()), "nothing is superseded, and nothing is lent"
    assert lenders(made, device_ids(0, 3), "", (), 0.0) == frozenset()
