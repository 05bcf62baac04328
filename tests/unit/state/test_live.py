"""Limits of running containers as decisions: who may use how much now, what fits, what must not be given out."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model import Share
from agent.model.node import NodeState
from agent.state import gate, live
from agent.state.records import Book, ContainerRef, Grant, GrantPolicy, Hold
from tests.fakes.nodes import GIB, LIBRARY, all_tokens, grant, inventory, tokens, uuid

NODE = inventory(2, 24)
ELASTIC = GrantPolicy(elastic=True, cores=30)


def book(*grants):
    made = Book()
    for one in grants:
        made = made.with_grant(one)
    return made


def named(number, *held, name="", **more):
    return grant(number, *held, container=ContainerRef("default", name or f"p{number}", "main"), **more)


def grow(found, one, count, used=None, card=0):
    return live.resized(found, one, NODE.gpus, used or {}, memory={uuid(card): count})


def now(found, one, used=None):
    return live.limits_now(found, NODE.gpus, used or {})[one.id][uuid(0)]


def test_growing_takes_what_is_free_and_counts_as_taken():
    one, other = named(1, (0, range(8))), named(2, (0, range(8, 16)))
    found = book(one, other)
    grown = grow(found, one, 16 * GIB)
    assert grown.quota() == {uuid(0): 16 * GIB} and grown.resizes == 1
    after = found.replaced([grown])
    assert after.allocations(NODE.gpus)[0].shares == (Share(uuid(0), 16),)
    assert now(after, grown) == (16 * GIB, 0)
    late = grant(3, (0, range(16, 17)))
    (lack,) = gate.shortfall(after.with_grant(late), late, NodeState.build(NODE.gpus, NODE.topology), {})
    assert lack.bytes == GIB


def test_a_refusal_names_what_is_free_and_who_has_the_rest():
    one, other = named(1, (0, range(8))), named(2, (0, range(8, 18)))
    refusal = grow(book(one, other), one, 15 * GIB)
    assert "7 GiB more" in refusal.detail and "6 GiB are free" in refusal.detail
    assert "default/p2/main has 10 GiB" in refusal.detail
    assert not refusal.mistake


def test_what_a_neighbour_uses_beyond_its_promise_is_not_free():
    one, other = named(1, (0, range(8))), named(2, (0, range(8, 12)))
    used = {other.id: {uuid(0): 10 * GIB}}
    assert isinstance(grow(book(one, other), one, 15 * GIB, used), live.Refusal)
    assert "uses 10 GiB" in grow(book(one, other), one, 15 * GIB, used).detail
    assert isinstance(grow(book(one, other), one, 14 * GIB, used), Grant)


def test_one_that_waits_behind_the_gate_keeps_its_place():
    one, waits = named(1, (0, range(8))), grant(2, (0, range(8, 24)), waiting=True)
    assert isinstance(grow(book(one, waits), one, 9 * GIB), live.Refusal)


@pytest.mark.parametrize(
    ("memory", "card", "words"),
    [(25 * GIB, 0, "24 GiB in all"), (0, 0, "1 MiB"), (GIB, 1, "has no slices of")],
)
def test_what_can_never_be_is_a_mistake(memory, card, words):
    one = named(1, (0, range(8)))
    refusal = grow(book(one), one, memory, card=card)
    assert refusal.mistake and words in refusal.detail


def test_sizes_are_rounded_up_to_whole_mebibytes():
    one = named(1, (0, range(8)))
    assert grow(book(one), one, 5 * GIB + 1).quota() == {uuid(0): 5 * GIB + live.MIB}


def test_back_to_what_was_given_leaves_no_trace_but_the_count():
    one = named(1, (0, range(8)))
    grown = grow(book(one), one, 9 * GIB)
    back = grow(book(grown), grown, 8 * GIB)
    assert (back.limits, back.resizes) == ((), 2)
    assert grow(book(back), back, 8 * GIB) is back


def test_what_one_gave_up_another_may_have_and_no_device_is_withheld_for_it():
    one, other = named(1, (0, range(12))), named(2, (0, range(12, 24)))
    small = grow(book(one, other), one, 8 * GIB)
    found = book(small, other)
    large = grow(found, other, 16 * GIB)
    assert large.quota() == {uuid(0): 16 * GIB}
    assert live.withheld(book(small, large), NODE.gpus) == frozenset()


def test_parts_of_slices_do_not_keep_anybody_from_starting_again():
    one, other = named(1, (0, range(12))), named(2, (0, range(12, 24)))
    small = grow(book(one, other), one, 11 * GIB + GIB // 2)
    large = grow(book(small, other), other, 12 * GIB + GIB // 2)
    node = NodeState.build(NODE.gpus, NODE.topology)
    assert gate.shortfall(book(small, large), small, node, {}) == ()
    assert gate.shortfall(book(small, large), large, node, {}) == ()


def test_growth_withholds_as_many_free_tokens_of_its_card_and_never_a_held_one():
    one = named(1, (0, range(8)))
    grown = grow(book(one), one, 12 * GIB)
    assert live.withheld(book(one), NODE.gpus) == frozenset()
    assert live.withheld(book(grown), NODE.gpus) == tokens(0, 20, 21, 22, 23)
    last = grant(2, (0, range(20, 24)))
    assert live.withheld(book(grown, last), NODE.gpus) == tokens(0, 16, 17, 18, 19)


def test_growth_on_a_card_whose_tokens_others_have_withholds_some_of_another_card():
    one = named(1, (0, range(8)))
    elsewhere = Grant(f"{2:032x}", 2, 0.0, (Hold(uuid(1), GIB, tuple(tokens(0, *range(8, 24)))),), LIBRARY)
    grown = grow(book(one, elsewhere), one, 24 * GIB)
    found = live.withheld(book(grown, elsewhere), NODE.gpus)
    assert found == tokens(1, *range(8, 24)), "8 GiB of the other card is all that is left"


def test_shares_of_compute_add_up_to_a_card():
    policy = GrantPolicy(cores=60)
    one, other = named(1, (0, range(8))), named(2, (0, range(8, 16)), policy=policy)
    found = book(one, other)
    assert "40%" in live.resized(found, one, NODE.gpus, {}, cores={uuid(0): 41}).detail
    changed = live.resized(found, one, NODE.gpus, {}, cores={uuid(0): 40})
    assert now(book(changed, other), changed) == (8 * GIB, 40)
    free = live.resized(found, other, NODE.gpus, {}, cores={uuid(0): 0})
    assert free.cores_of(uuid(0)) == 0


def test_an_elastic_container_has_the_card_while_it_is_alone():
    one = named(1, (0, range(8)), policy=ELASTIC)
    assert now(book(one), one) == (24 * GIB, 0)
    capped = replace(one, policy=replace(ELASTIC, max_slices=12))
    assert now(book(capped), capped) == (12 * GIB, 0)


@pytest.mark.parametrize(
    "neighbour",
    [
        grant(2, (0, range(8, 9))),
        grant(2, (0, range(8, 9)), waiting=True),
        grant(2, (0, range(8, 9)), policy=ELASTIC),
    ],
)
def test_any_neighbour_makes_it_strict_again(neighbour):
    one = named(1, (0, range(8)), policy=ELASTIC)
    assert now(book(one, neighbour), one) == (8 * GIB, 30)


def test_one_who_has_gone_is_a_neighbour_as_long_as_its_processes_hold_memory():
    one, gone = named(1, (0, range(8)), policy=ELASTIC), grant(2, (0, range(8, 12)), gone=True)
    assert now(book(one, gone), one, {gone.id: {uuid(0): 1}}) == (8 * GIB, 30)
    assert now(book(one, gone), one, {gone.id: {uuid(0): 0}}) == (24 * GIB, 0)


def test_an_init_container_that_has_lent_all_it_had_is_no_neighbour():
    init = grant(1, (0, range(8)), lent=tokens(0, *range(8)))
    one = named(2, (0, range(8)), policy=ELASTIC, supersedes=(init.id,))
    assert now(book(init, one), one) == (24 * GIB, 0)


@pytest.mark.parametrize("state", [{"waiting": True}, {"undecided": True}, {"gone": True}])
def test_nobody_is_given_more_before_it_starts_or_after_it_ended(state):
    one = named(1, (0, range(8)), policy=ELASTIC, **state)
    assert now(book(one), one) == (8 * GIB, 30)


def test_what_neither_kubelet_nor_scheduler_counts_is_withheld():
    """A pod deleted by force, whose devices the kubelet has given back, and whose processes hold on."""
    left = grant(1, (0, range(6)), forgotten=True)
    other = grant(2, (1, range(4)))
    gpus = inventory(2, 8).gpus
    assert live.withheld(book(left, other), gpus) == frozenset(), (
        "its pod's requests are the scheduler's to count"
    )
    found = live.withheld(book(left, other), gpus, uncounted={left.id})
    assert len(found) == 6 and all(token.startswith(uuid(0)) for token in found)
    late = grant(3, (0, range(2)))
    again = live.withheld(book(left, other, late), gpus, uncounted={left.id})
    assert len(again) == 6 and not again & late.tokens, "never what somebody has"


class Kubelet:
    """Gives out free healthy tokens of its choice, as a kubelet does, and takes them back."""

    def __init__(self):
        self.node = inventory(2, 8)
        self.book = Book()
        self.sizes = {}  # what each container was last told it may use, by id

    def step(self, action, who, size, pick):
        grants = self.book.grants
        if action == "allocate":
            held = {token for one in grants for token in one.held}
            free = [
                t for t in all_tokens(self.node) if t not in held | live.withheld(self.book, self.node.gpus)
            ]
            card = uuid(pick % 2)
            room = 8 * GIB - sum(one.promised.get(card, 0) for one in grants)
            count = min(size, len(free), room // GIB)
            if count > 0:
                policy = GrantPolicy(elastic=who % 2 == 0)
                chosen = tuple((free[pick % len(free) :] + free)[:count])
                hold = Hold(card, GIB, chosen)
                number = self.book.next_number
                made = Grant(f"{number:032x}", number, 0.0, (hold,), LIBRARY, policy=policy)
                self.book = self.book.with_grant(made)
                self.sizes[made.id] = count * GIB
        elif grants and action == "release":
            gone = grants[who % len(grants)]
            self.book = self.book.without([gone.id])
            del self.sizes[gone.id]
        elif grants:
            one = grants[who % len(grants)]
            (card,) = one.quota()
            asked = size * GIB // 2
            after = live.resized(self.book, one, self.node.gpus, {}, memory={card: asked})
            if isinstance(after, Grant):
                self.book = self.book.replaced([after])
                self.sizes[one.id] = asked


STEP = st.tuples(
    st.sampled_from(["allocate", "allocate", "resize", "resize", "release"]),
    st.integers(0, 9),
    st.integers(1, 18),
    st.integers(0, 15),
)


@given(st.lists(STEP, max_size=30))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_no_card_is_promised_twice_and_nobody_loses_anything(steps):
    kubelet = Kubelet()
    for step in steps:
        kubelet.step(*step)
        found, gpus = kubelet.book, kubelet.node.gpus
        assert {one.id: next(iter(one.quota().values())) for one in found.grants} == kubelet.sizes
        limits = live.limits_now(found, gpus, {})
        held = {token for one in found.grants for token in one.held}
        withheld = live.withheld(found, gpus)
        assert not withheld & held
        rooms = 0
        for gpu in gpus:
            of_card = [limits[one.id][gpu.uuid][0] for one in found.grants if gpu.uuid in one.quota()]
            assert sum(of_card) <= 8 * GIB, "promised twice"
            promised = sum(one.promised.get(gpu.uuid, 0) for one in found.grants)
            rooms += (8 * GIB - promised) // GIB
        offered = len(all_tokens(kubelet.node)) - len(held) - len(withheld)
        assert offered <= rooms or not withheld, "what the scheduler sees can be had"
        if any(next(iter(one.quota().values())) > len(one.tokens) * GIB for one in found.grants):
            assert offered <= rooms
