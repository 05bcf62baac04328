"""Whole cards and slices in one book, without a kubelet."""

from dataclasses import replace

import pytest

from agent.model import Topology
from agent.placement import Policy
from agent.providers import whole
from agent.state.records import Book, GrantPolicy, Hold, whole_token
from tests.fakes.nodes import GIB, grant, inventory, uuid


def given(number, *cards, name=None, **more):
    """A grant of whole cards; NAME: the device's card where that is another one."""
    one = grant(number, (0, range(1)), policy=GrantPolicy(exclusive=True), **more)
    holds = tuple(Hold(uuid(n), 24 * GIB, (whole_token(uuid(n if name is None else name)),)) for n in cards)
    return replace(one, holds=holds)


def book(*grants):
    found = Book()
    for one in grants:
        found = found.with_grant(one)
    return found


def healthy(found, cards=2, **more):
    listed = whole.devices(found, inventory(cards, **more).gpus)
    assert [one.id for one in listed] == [uuid(n) for n in range(cards)]
    return [number for number, one in enumerate(listed) if one.healthy]


def withheld(found, cards=2, **more):
    tokens = whole.slices_withheld(found, inventory(cards, **more).gpus)
    return {n: sum(one.startswith(uuid(n) + "/") for one in tokens) for n in range(cards)}


def test_a_card_is_there_as_a_whole_while_nobody_has_a_slice_of_it():
    assert healthy(book()) == [0, 1]
    assert healthy(book(grant(1, (0, range(1))))) == [1]
    assert healthy(book(grant(1, (0, range(1)), gone=True))) == [0, 1]
    assert healthy(book(), sick=(1,)) == [0]


def test_a_card_given_out_whole_stays_a_healthy_device():
    assert healthy(book(given(1, 0))) == [0, 1]
    assert healthy(book(given(1, 0)), sick=(0,)) == [1]


def test_a_card_under_anothers_name_leaves_as_many_healthy_devices_as_free_cards():
    """Device 0 is served by card 1, and card 0 is free: the only device left stands for it."""
    assert healthy(book(given(1, 1, name=0))) == [0, 1]
    assert healthy(book(given(1, 1, name=0), grant(2, (0, range(3))))) == [0]


def test_a_card_given_out_whole_has_no_slices_left():
    found = book(given(1, 0))
    assert withheld(found) == {0: 24, 1: 0}
    assert [(one.shares[0].gpu, one.shares[0].slices) for one in found.allocations(inventory().gpus)] == [
        (uuid(0), 24)
    ]


def test_nothing_is_withheld_without_whole_cards_or_after_them():
    assert withheld(book(grant(1, (0, range(8))))) == {0: 0, 1: 0}
    assert withheld(book(given(1, 0, gone=True))) == {0: 0, 1: 0}


def test_tokens_that_somebody_has_are_never_withheld():
    """A container on card 1 has 8 tokens named after card 0, which is given out whole: 8 of 1 go in their place."""
    astray = grant(1, (0, range(8)))
    astray = replace(astray, holds=tuple(replace(hold, gpu=uuid(1)) for hold in astray.holds))
    found = book(astray, given(2, 0))
    assert withheld(found) == {0: 16, 1: 8}
    assert not whole.slices_withheld(found, inventory().gpus) & astray.tokens


def test_the_slices_of_a_sick_card_need_not_be_withheld():
    assert withheld(book(given(1, 0)), sick=(0,)) == {0: 0, 1: 0}


def test_the_named_cards_are_given_when_they_are_free():
    chosen = whole.choose(book(grant(1, (0, range(4)))), inventory(4).gpus, [uuid(3), uuid(1)])
    assert ([hold.gpu for hold in chosen.holds], chosen.waiting) == ([uuid(1), uuid(3)], False)
    assert [hold.tokens for hold in chosen.holds] == [(whole_token(uuid(1)),), (whole_token(uuid(3)),)]


def test_another_free_card_is_given_when_the_named_one_has_just_lost_slices():
    chosen = whole.choose(book(grant(1, (0, range(4)))), inventory().gpus, [uuid(0)])
    assert ([(hold.gpu, hold.tokens) for hold in chosen.holds], chosen.waiting) == (
        [(uuid(1), (whole_token(uuid(0)),))],
        False,
    )


def test_the_least_used_card_is_waited_for_when_none_is_free():
    found = book(grant(1, (0, range(4))), grant(2, (1, range(20))))
    chosen = whole.choose(found, inventory(numa=(0,)).gpus, [])
    assert chosen.holds == ()
    chosen = whole.choose(found, inventory(3, sick=(2,), numa=(0,)).gpus, [uuid(2)])
    assert ([hold.gpu for hold in chosen.holds], chosen.waiting) == ([uuid(0)], True)


def test_more_cards_than_there_are_cannot_be_had():
    assert whole.choose(book(), inventory().gpus, ["a", "b", "c"]) is None


@pytest.mark.parametrize("fixed", [(), (2,)])
def test_cards_that_are_well_linked_are_preferred(fixed):
    """Four cards, linked in pairs 0-1 and 2-3; a container has slices of 0."""
    found = inventory(4, numa=(0,))
    levels = [[0 if i == j else 10 if i // 2 == j // 2 else 50 for j in range(4)] for i in range(4)]
    linked = replace(found, topology=Topology.build(levels))
    names = [uuid(n) for n in range(4)]
    chosen = whole.prefer(
        book(grant(1, (0, range(1)))),
        linked,
        Policy.GAIA,
        names,
        must_include=[uuid(n) for n in fixed],
        size=2,
    )
    assert set(chosen) == {uuid(2), uuid(3)}


def test_a_preference_is_filled_up_from_what_there_is():
    names = [uuid(n) for n in range(2)]
    assert whole.prefer(book(given(1, 0)), inventory(), Policy.GAIA, names, size=2) == (uuid(1), uuid(0))
