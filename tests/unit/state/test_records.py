import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import StateError
from agent.model import Placement, Share
from agent.state.records import Book, ContainerRef, GrantPolicy, LiveLimit, assign_tokens
from tests.fakes.nodes import GIB, all_tokens, grant, inventory, tokens, uuid

APP = ContainerRef("default", "p", "main")


def book(*grants):
    result = Book()
    for one in grants:
        result = result.with_grant(one)
    return result


def test_numbers_go_up_and_are_never_used_twice():
    made = book(grant(1, (0, range(2))), grant(7, (0, range(2, 4))))
    assert made.next_number == 8
    assert made.without([made.grants[1].id]).next_number == 8


def test_an_id_twice_is_a_contradiction():
    with pytest.raises(StateError):
        book(grant(1, (0, range(2))), grant(1, (0, range(2))))


def test_a_token_seen_again_ends_a_container_that_was_listed():
    made = book(grant(1, (0, range(8)), container=APP))
    after, superseded = made.taken_over(tokens(0, 3), over={made.grants[0].id})
    assert superseded == (made.grants[0].id,)
    assert after.grants[0].gone
    assert after.allocations(inventory().gpus) == ()


def test_a_token_seen_again_takes_nothing_from_a_holder_that_may_live():
    """A kubelet that has lost its checkpoint hands out the devices of running containers."""
    made = book(grant(1, (0, range(8)), container=APP))
    after, superseded = made.taken_over(tokens(0, 3))
    assert superseded == (made.grants[0].id,)
    (one,) = after.grants
    assert (one.gone, one.forgotten, one.held) == (False, True, frozenset())
    (allocation,) = after.allocations(inventory().gpus)
    assert allocation.shares == (Share(uuid(0), 8),)
    assert after.taken_over(tokens(0, 3)) == (after, ())


@pytest.mark.parametrize("known", [{"started": {f"{1:032x}"}}, {"since": 1700000001.0}])
def test_who_has_started_or_was_made_long_ago_lends_nothing(known):
    """The kubelet allocates all containers of a pod at once, and before it starts the first."""
    after, _ = book(grant(1, (0, range(8)))).taken_over(tokens(0, 3, 4), **known)
    assert (after.grants[0].lent, after.grants[0].forgotten) == (frozenset(), True)
    assert after.grants[0].promised == {uuid(0): 8 * GIB}


def test_a_container_that_was_never_listed_may_be_an_init_container_and_lends_just_these():
    after, superseded = book(grant(1, (0, range(8)))).taken_over(tokens(0, 3, 4))
    assert superseded
    assert after.grants[0].held == tokens(0, 0, 1, 2, 5, 6, 7)
    (allocation,) = after.allocations(inventory().gpus)
    assert allocation.shares == (Share(uuid(0), 6),)


def test_lent_tokens_are_not_taken_twice():
    first, _ = book(grant(1, (0, range(8)))).taken_over(tokens(0, 0))
    second, superseded = first.taken_over(tokens(0, 0))
    assert superseded == ()
    assert second == first


def test_a_token_shown_free_ends_its_holder_only_if_that_is_over():
    made = book(grant(1, (0, range(8))), grant(2, (1, range(4)), container=APP), grant(3, (1, range(4, 6))))
    after = made.given_back([f"{uuid(0)}/7", f"{uuid(1)}/0", "nonsense"], over={made.grants[1].id})
    assert [one.gone for one in after.grants] == [False, True, False]
    assert [one.forgotten for one in after.grants] == [True, False, False]


def test_the_newest_of_equal_token_sets_is_meant():
    made = book(grant(1, (0, range(4))), grant(2, (0, range(4))), grant(3, (0, range(5))))
    assert made.of_tokens(tokens(0, 0, 1, 2, 3)).number == 2
    assert [one.number for one in made.all_of_tokens(tokens(0, 0, 1, 2, 3))] == [2, 1]
    assert made.of_tokens(tokens(0, 9)) is None


def test_a_changed_slice_size_counts_old_holds_rounded_up():
    old = grant(1, (0, range(3)))
    (gpu,) = inventory(1).gpus
    from dataclasses import replace

    (allocation,) = book(old).allocations([replace(gpu, slice_bytes=2 * GIB, slices=12)])
    assert allocation.shares == (Share(uuid(0), 2),)


def test_tokens_are_served_by_the_cards_they_are_named_after():
    found = inventory()
    placement = Placement((Share(uuid(0), 2), Share(uuid(1), 2)))
    holds = assign_tokens(tokens(0, 10, 9) | tokens(1, 1, 2), placement, found.gpus)
    assert [(hold.gpu, set(hold.tokens)) for hold in holds] == [
        (uuid(0), tokens(0, 9, 10)),
        (uuid(1), tokens(1, 1, 2)),
    ]


def test_a_wrong_number_of_tokens_is_a_contradiction():
    with pytest.raises(StateError):
        assign_tokens(tokens(0, 1), Placement((Share(uuid(0), 2),)), inventory().gpus)


@given(st.data())
def test_every_token_is_served_once_and_every_card_gets_its_number(data):
    found = inventory(3, 6)
    wanted = data.draw(st.lists(st.sampled_from([*all_tokens(found), "odd", "x/y"]), min_size=1, unique=True))
    cuts = sorted(data.draw(st.tuples(st.integers(0, len(wanted)), st.integers(0, len(wanted)))))
    parts = (cuts[0], cuts[1] - cuts[0], len(wanted) - cuts[1])
    shares = tuple(Share(uuid(card), count) for card, count in enumerate(parts) if count)
    holds = assign_tokens(wanted, Placement(shares), found.gpus)
    assert [(hold.gpu, len(hold.tokens)) for hold in holds] == [(share.gpu, share.slices) for share in shares]
    assert sorted(token for hold in holds for token in hold.tokens) == sorted(wanted)


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
    held = grant(1, (0, range(4)), policy=GrantPolicy(**policy), limits=limits)
    (allocation,) = book(held).allocations(inventory().gpus)
    assert allocation.shares == (share,)
