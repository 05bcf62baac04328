import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.allocation.table import (
    AllocationOptions,
    AllocationTable,
    ContainerRef,
    LiveLimit,
    assign_device_ids,
)
from gigaslice.errors import StateError
from gigaslice.model import Placement, Share
from tests.fakes.nodes import GIB, all_device_ids, allocation, device_ids, inventory, uuid

APP = ContainerRef("default", "p", "main")


def table(*allocations):
    result = AllocationTable()
    for one in allocations:
        result = result.with_allocation(one)
    return result


def test_numbers_go_up_and_are_never_used_twice():
    made = table(allocation(1, (0, range(2))), allocation(7, (0, range(2, 4))))
    assert made.next_number == 8
    assert made.without([made.allocations[1].id]).next_number == 8


def test_an_id_twice_is_a_contradiction():
    with pytest.raises(StateError):
        table(allocation(1, (0, range(2))), allocation(1, (0, range(2))))


def test_a_device_id_seen_again_ends_a_container_that_was_listed():
    made = table(allocation(1, (0, range(8)), container=APP))
    after, superseded = made.taken_over(device_ids(0, 3), over={made.allocations[0].id})
    assert superseded == (made.allocations[0].id,)
    assert after.allocations[0].gone
    assert after.occupants(inventory().gpus) == ()


def test_a_device_id_seen_again_takes_nothing_from_a_holder_that_may_live():
    """A kubelet that has lost its checkpoint hands out the devices of running containers."""
    made = table(allocation(1, (0, range(8)), container=APP))
    after, superseded = made.taken_over(device_ids(0, 3))
    assert superseded == (made.allocations[0].id,)
    (one,) = after.allocations
    assert (one.gone, one.forgotten, one.held) == (False, True, frozenset())
    (occupant,) = after.occupants(inventory().gpus)
    assert occupant.shares == (Share(uuid(0), 8),)
    assert after.taken_over(device_ids(0, 3)) == (after, ())


@pytest.mark.parametrize("known", [{"started": {f"{1:032x}"}}, {"since": 1700000001.0}])
def test_who_has_started_or_was_made_long_ago_lends_nothing(known):
    """The kubelet allocates all containers of a pod at once, and before it starts the first."""
    after, _ = table(allocation(1, (0, range(8)))).taken_over(device_ids(0, 3, 4), **known)
    assert (after.allocations[0].lent, after.allocations[0].forgotten) == (frozenset(), True)
    assert after.allocations[0].promised == {uuid(0): 8 * GIB}


def test_a_container_that_was_never_listed_may_be_an_init_container_and_lends_just_these():
    after, superseded = table(allocation(1, (0, range(8)))).taken_over(device_ids(0, 3, 4))
    assert superseded
    assert after.allocations[0].held == device_ids(0, 0, 1, 2, 5, 6, 7)
    (occupant,) = after.occupants(inventory().gpus)
    assert occupant.shares == (Share(uuid(0), 6),)


def test_lent_device_ids_are_not_taken_twice():
    first, _ = table(allocation(1, (0, range(8)))).taken_over(device_ids(0, 0))
    second, superseded = first.taken_over(device_ids(0, 0))
    assert superseded == ()
    assert second == first


def test_a_device_id_shown_free_ends_its_holder_only_if_that_is_over():
    made = table(
        allocation(1, (0, range(8))),
        allocation(2, (1, range(4)), container=APP),
        allocation(3, (1, range(4, 6))),
    )
    after = made.given_back([f"{uuid(0)}/7", f"{uuid(1)}/0", "nonsense"], over={made.allocations[1].id})
    assert [one.gone for one in after.allocations] == [False, True, False]
    assert [one.forgotten for one in after.allocations] == [True, False, False]


def test_the_newest_of_equal_device_id_sets_is_meant():
    made = table(allocation(1, (0, range(4))), allocation(2, (0, range(4))), allocation(3, (0, range(5))))
    assert made.of_device_ids(device_ids(0, 0, 1, 2, 3)).number == 2
    assert [one.number for one in made.all_of_device_ids(device_ids(0, 0, 1, 2, 3))] == [2, 1]
    assert made.of_device_ids(device_ids(0, 9)) is None


def test_a_changed_slice_size_counts_old_holds_rounded_up():
    old = allocation(1, (0, range(3)))
    (gpu,) = inventory(1).gpus
    from dataclasses import replace

    (occupant,) = table(old).occupants([replace(gpu, slice_bytes=2 * GIB, slices=12)])
    assert occupant.shares == (Share(uuid(0), 2),)


def test_device_ids_are_served_by_the_gpus_they_are_named_after():
    found = inventory()
    placement = Placement((Share(uuid(0), 2), Share(uuid(1), 2)))
    holds = assign_device_ids(device_ids(0, 10, 9) | device_ids(1, 1, 2), placement, found.gpus)
    assert [(hold.gpu, set(hold.device_ids)) for hold in holds] == [
        (uuid(0), device_ids(0, 9, 10)),
        (uuid(1), device_ids(1, 1, 2)),
    ]


def test_a_wrong_number_of_device_ids_is_a_contradiction():
    with pytest.raises(StateError):
        assign_device_ids(device_ids(0, 1), Placement((Share(uuid(0), 2),)), inventory().gpus)


@given(st.data())
def test_every_device_id_is_served_once_and_every_gpu_gets_its_number(data):
    found = inventory(3, 6)
    wanted = data.draw(
        st.lists(st.sampled_from([*all_device_ids(found), "odd", "x/y"]), min_size=1, unique=True)
    )
    cuts = sorted(data.draw(st.tuples(st.integers(0, len(wanted)), st.integers(0, len(wanted)))))
    parts = (cuts[0], cuts[1] - cuts[0], len(wanted) - cuts[1])
    shares = tuple(Share(uuid(gpu), count) for gpu, count in enumerate(parts) if count)
    holds = assign_device_ids(wanted, Placement(shares), found.gpus)
    assert [(hold.gpu, len(hold.device_ids)) for hold in holds] == [
        (share.gpu, share.slices) for share in shares
    ]
    assert sorted(device_id for hold in holds for device_id in hold.device_ids) == sorted(wanted)


@pytest.mark.parametrize(
    ("policy", "limits", "share"),
    [
        ({}, (), Share(uuid(0), 4)),
        ({"cores": 30}, (), Share(uuid(0), 4, 30)),
        ({}, (LiveLimit(uuid(0), cores=20),), Share(uuid(0), 4, 20)),
        ({"cores": 30}, (LiveLimit(uuid(0), cores=20),), Share(uuid(0), 4, 20)),
        ({"exclusive": True}, (), Share(uuid(0), 24, 100)),
    ],
)
def test_what_counts_is_what_was_asked_for_and_changed_since(policy, limits, share):
    held = allocation(1, (0, range(4)), policy=AllocationOptions(**policy), limits=limits)
    (occupant,) = table(held).occupants(inventory().gpus)
    assert occupant.shares == (share,)
