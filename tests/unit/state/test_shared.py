"""The two views of a card with lent host memory, and what the start gate and changes of limits make of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from agent.model import Gpu, NodeState, Topology
from agent.state import gate, live, shared
from agent.state.codec import decode_book, encode_book
from agent.state.records import Book, GrantPolicy
from tests.fakes.nodes import GIB, grant, uuid

MIB = 1 << 20
HOST = GrantPolicy(oversubscribe=True)


def card(own=16, host=8, number=0):
    return Gpu(uuid(number), number, "L4", own * GIB, own + host, GIB, host_bytes=host * GIB)


def free(book, card_, *, host, asked=8):
    cards, taken = shared.view(book, [card_], "", host=host, memory_bytes=asked * GIB)
    return NodeState.build(cards, Topology.flat(1), taken).free(card_.uuid)


def with_split(book, one, card_):
    return book.with_grant(shared.split(book, one, [card_]))


def test_three_jobs_of_8_gib_on_16_gib_and_8_of_the_host():
    found = card()
    book = Book()
    for number in range(1, 4):
        assert free(book, found, host=True) == 32 - 8 * number
        book = with_split(book, grant(number, (0, range(8 * number - 8, 8 * number)), policy=HOST), found)
    assert [one.physical[uuid(0)] for one in book.grants] == [4 * GIB] * 3
    assert free(book, found, host=True) == 0
    assert free(book, found, host=False) == 0
    node = NodeState.build([found], Topology.flat(1))
    for one in book.grants:
        assert gate.shortfall(book, one, node, {}) == ()
    # The real memory of all and the rest of one are on the card together.
    assert 3 * 4 + (8 - 4) == 16


def test_without_the_wish_nobody_is_placed_beyond_the_card():
    found = card()
    assert free(Book(), found, host=False, asked=16) == 16
    book = Book().with_grant(grant(1, (0, range(16))))
    assert free(book, found, host=False) == 0
    assert free(book, found, host=True) == 0, "a program needs some real memory for its context"
    book = Book().with_grant(grant(1, (0, range(12))))
    assert free(book, found, host=False) == 4
    assert free(book, found, host=True) == 12


def test_the_lent_memory_is_not_lent_twice():
    """One that may use host memory has most of its quota there: what is left to others is the sum, not the card."""
    found = card()
    book = with_split(Book(), grant(1, (0, range(16)), policy=HOST), found)
    assert book.grants[0].physical[uuid(0)] == 2 * GIB
    assert free(book, found, host=False) == 8
    assert free(book, found, host=True) == 8


@pytest.mark.parametrize(
    ("memory", "own", "host", "expected"),
    [
        (8, 16, 8, 4),
        (16, 16, 16, 2),
        (4, 16, 8, 2.4),
        (1, 16, 8, 1),
        (24, 16, 8, 3),
        (8, 80, 40, 72 * 8 / 112),
    ],
)
def test_the_physical_share(memory, own, host, expected):
    found = shared.physical_share(memory * GIB, own * GIB, host * GIB)
    assert found == int(expected * GIB) // MIB * MIB


def test_a_card_without_lent_memory_is_as_ever():
    found = card(host=0)
    book = with_split(Book(), grant(1, (0, range(8)), policy=HOST), found)
    assert book.grants[0].physical == {}
    assert free(book, found, host=True) == free(book, found, host=False) == 8


def test_the_gate_counts_real_memory():
    found = card()
    node = NodeState.build([found], Topology.flat(1))
    plain = grant(1, (0, range(14)))
    late = replace(grant(2, (0, range(14, 22)), policy=HOST), waiting=True)
    book = with_split(Book().with_grant(plain), late, found)
    late = book.grants[1]
    assert late.physical[uuid(0)] == 2 * GIB
    assert gate.shortfall(book, late, node, {}) == ()
    # The neighbour lingers with more than it was promised: real memory is lacking, though slices are not.
    assert [lack.bytes for lack in gate.shortfall(book, late, node, {plain.id: {uuid(0): 15 * GIB}})] == [GIB]
    assert gate.shortfall(book, plain, node, {late.id: {uuid(0): 8 * GIB}}) == ()
    bigger = grant(3, (0, range(16)))
    book = Book().with_grant(late).with_grant(bigger)
    assert [lack.bytes for lack in gate.shortfall(book, bigger, node, {})] == [2 * GIB]


def test_limits_grow_only_into_what_is_there():
    found = card()
    book = with_split(Book(), grant(1, (0, range(8)), policy=HOST), found)
    book = book.with_grant(grant(2, (0, range(8, 16))))
    one, plain = book.grants
    grown = live.resized(book, one, [found], {}, memory={uuid(0): 16 * GIB})
    assert not isinstance(grown, live.Refusal)
    assert grown.physical[uuid(0)] == 4 * GIB
    assert isinstance(live.resized(book, one, [found], {}, memory={uuid(0): 17 * GIB}), live.Refusal)
    larger = live.resized(book, plain, [found], {}, memory={uuid(0): 12 * GIB})
    assert not isinstance(larger, live.Refusal)
    assert isinstance(live.resized(book, plain, [found], {}, memory={uuid(0): 13 * GIB}), live.Refusal)
    small = live.resized(book, one, [found], {}, memory={uuid(0): 2 * GIB})
    assert not isinstance(small, live.Refusal)
    assert small.physical[uuid(0)] == 2 * GIB


def test_an_elastic_container_grows_in_the_cards_own_memory():
    found = card()
    policy = GrantPolicy(oversubscribe=True, elastic=True)
    book = with_split(Book(), grant(1, (0, range(8)), policy=policy), found)
    ((memory, *_),) = live.limits_now(book, [found], {})[book.grants[0].id].values()
    assert memory == 24 * GIB
    assert live.physical_now(book.grants[0], [found], {uuid(0): memory}) == {uuid(0): 16 * GIB}
    plain = Book().with_grant(grant(1, (0, range(8)), policy=GrantPolicy(elastic=True)))
    ((memory, *_),) = live.limits_now(plain, [found], {})[plain.grants[0].id].values()
    assert memory == 16 * GIB


def test_the_host_needs_what_all_promises_go_beyond_the_card():
    found = card()
    book = Book()
    for number in range(1, 4):
        book = with_split(book, grant(number, (0, range(8 * number - 8, 8 * number)), policy=HOST), found)
    one, two, three = book.grants
    assert shared.host_need(book.without([two.id, three.id]), one, {}, [found]) == 0
    assert shared.host_need(book.without([three.id]), two, {}, [found]) == 0
    # Its own part of the host is 4 GiB, but it is others' pages, too, that have to make room.
    assert shared.host_need(book, three, {}, [found]) == 8 * GIB
    used = {one.id: {uuid(0): 8 * GIB}, two.id: {uuid(0): 8 * GIB}, three.id: {uuid(0): 3 * GIB}}
    assert shared.host_need(book, three, used, [found]) == 5 * GIB, "3 GiB lie there already"
    waits = book.replaced([replace(three, waiting=True)])
    assert shared.host_need(waits, two, {}, [found]) == 0, "whoever waits behind has to look for itself"
    assert shared.host_need(waits, waits.grants[2], {}, [found]) == 8 * GIB


def test_a_container_without_the_wish_pushes_pages_out_too():
    found = card()
    book = with_split(Book(), grant(1, (0, range(12)), policy=HOST), found)
    plain = grant(2, (0, range(12, 20)))
    assert shared.host_need(book.with_grant(plain), plain, {}, [found]) == 4 * GIB
    other = grant(3, (1, range(4)))
    assert shared.host_need(book.with_grant(other), other, {}, [found, card(host=0, number=1)]) == 0


def test_the_host_is_one_for_all_cards():
    cards = [card(number=0), card(number=1)]
    book = Book()
    for number in (1, 2):
        book = book.with_grant(shared.split(book, grant(number, (number - 1, range(20)), policy=HOST), cards))
    one = book.grants[1]
    assert shared.host_need(book, one, {}, cards) == 8 * GIB


@pytest.mark.parametrize("seed", range(25))
def test_a_node_never_promises_more_host_memory_than_it_lends(seed):
    """Containers with the wish and without come, wait, start, grow, shrink, are taken over and end; the agent restarts.
    After every step: what has passed the gate goes beyond each card by no more than it was lent."""
    luck = random.Random(seed)
    cards = [card(luck.choice([16, 24, 80]), luck.choice([0, 1, 8, 40]), number) for number in range(2)]
    node = NodeState.build(cards, Topology.flat(2))
    book = Book()
    for number in range(1, 150):
        roll = luck.random()
        if not book.grants or roll < 0.45:
            at, size, host = luck.randrange(2), luck.randint(1, 24), luck.random() < 0.6
            tokens = range(100 * number, 100 * number + size)
            policy = GrantPolicy(oversubscribe=host, elastic=luck.random() < 0.2)
            # The kubelet's choice, whatever has room: the gate decides.
            one = replace(grant(number, (at, tokens), policy=policy), waiting=True)
            book = book.with_grant(shared.split(book, one, cards))
        elif roll < 0.6:
            book = book.without([luck.choice(book.grants).id])
        elif roll < 0.85:
            one = luck.choice(book.grants)
            gpu = next(iter(one.quota()))
            asked = {gpu: luck.randint(1, 48) * GIB // 2}
            grown = live.resized(book, one, cards, {}, memory=asked)
            if not isinstance(grown, live.Refusal):
                book = book.replaced([grown])
        elif roll < 0.95:
            victim = luck.choice(book.grants)
            book, _ = book.taken_over(luck.sample(sorted(victim.tokens), 1))
        else:
            book = decode_book(encode_book(book))
        for one in book.grants:
            if one.waiting and not gate.shortfall(book, one, node, {}):
                book = book.replaced([replace(one, waiting=False)])
        started = book.without([one.id for one in book.grants if one.waiting])
        beyond = shared.host_promised(started, cards)
        for found in cards:
            assert beyond.get(found.uuid, 0) <= found.bytes_of(found.slices - found.own_slices)
            real = [
                shared.real_part(one, found.uuid, one.promised.get(found.uuid, 0)) for one in started.grants
            ]
            assert sum(real) <= found.bytes_of(found.own_slices)
        assert sum(beyond.values()) <= sum(found.host_bytes for found in cards)


@pytest.mark.parametrize("seed", range(30))
def test_never_beyond_what_there_is(seed):
    """Random containers come and go: real promises fit the card, all promises the card and what is lent."""
    luck = random.Random(seed)
    found = card(luck.choice([16, 24, 80]), luck.choice([1, 8, 40]))
    book = Book()
    for number in range(1, 200):
        if book.grants and luck.random() < 0.4:
            book = book.without([luck.choice(book.grants).id])
            continue
        host, size = luck.random() < 0.6, luck.randint(1, 20)
        if free(book, found, host=host, asked=size) < size:
            continue
        one = grant(number, (0, range(size)), policy=HOST if host else GrantPolicy())
        book = with_split(book, one, found)
        promised = sum(one.promised[uuid(0)] for one in book.grants)
        real = sum(shared.real_part(one, uuid(0), one.promised[uuid(0)]) for one in book.grants)
        assert promised <= found.bytes_of(found.slices)
        assert real <= found.bytes_of(found.own_slices)
        node = NodeState.build([found], Topology.flat(1))
        assert gate.shortfall(book, book.grants[-1], node, {}) == ()
