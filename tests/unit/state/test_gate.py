from agent.model import NodeState
from agent.state import gate
from agent.state.records import Book, ContainerRef
from tests.fakes.nodes import GIB, grant, inventory, tokens, uuid


def node(**more):
    found = inventory(**more)
    return NodeState.build(found.gpus, found.topology)


def book(*grants):
    result = Book()
    for one in grants:
        result = result.with_grant(one)
    return result


def lacking(found, one, used=None, **more):
    return {lack.gpu: lack.bytes for lack in gate.shortfall(found, one, node(**more), used or {})}


def test_an_empty_card_lets_pass():
    one = grant(1, (0, range(24)))
    assert lacking(book(one), one) == {}


def test_neighbours_count_with_what_they_were_promised():
    first, second = grant(1, (0, range(20))), grant(2, (0, range(16, 24)))
    assert lacking(book(first, second), second) == {uuid(0): 4 * GIB}
    assert lacking(book(first, second), second, {first.id: {uuid(0): GIB}}) == {uuid(0): 4 * GIB}


def test_a_neighbour_on_another_card_does_not_count():
    first, second = grant(1, (1, range(20))), grant(2, (0, range(24)))
    assert lacking(book(first, second), second) == {}


def test_one_whose_tokens_were_taken_back_counts_with_what_it_still_uses():
    gone, second = grant(1, (0, range(20)), gone=True), grant(2, (0, range(24)))
    assert lacking(book(gone, second), second) == {}
    assert lacking(book(gone, second), second, {gone.id: {uuid(0): 3 * GIB}}) == {uuid(0): 3 * GIB}
    small = grant(3, (0, range(8)))
    assert lacking(book(gone, small), small, {gone.id: {uuid(0): 3 * GIB}}) == {}


def test_of_two_that_wait_the_first_passes_first():
    holder = grant(1, (0, range(10)))
    first, second = (
        grant(2, (0, range(10, 22)), waiting=True),
        grant(3, (0, range(20, 24)), (1, range(2)), waiting=True),
    )
    found = book(holder, first, second)
    assert lacking(found, first) == {}
    assert lacking(found, second) == {uuid(0): 2 * GIB}
    assert lacking(book(first, second), second) == {}


def test_an_init_container_that_starts_again_is_not_held_up_by_its_own_pod():
    init = grant(1, (0, range(24)), lent=tokens(0, *range(24)))
    app = grant(2, (0, range(24)), supersedes=(init.id,))
    found = book(init, app)
    assert lacking(found, init) == {}
    assert lacking(found, app) == {}
    assert lacking(found, app, {init.id: {uuid(0): GIB}}) == {uuid(0): GIB}


def test_a_sick_or_vanished_card_holds_back():
    one = grant(1, (0, range(8)), (3, range(2)))
    missing = gate.shortfall(book(one), one, node(sick=(0,)), {})
    assert {lack.gpu: lack.sick for lack in missing} == {uuid(0): True, uuid(3): True}
    assert "not healthy" in gate.describe(missing, book(one), one, {})


def test_the_sentence_names_what_is_waited_for_and_who_has_it():
    gone = grant(1, (0, range(20)), gone=True, container=ContainerRef("default", "old", "main"))
    holder = grant(2, (0, range(4)), container=ContainerRef("default", "other", "main"))
    elsewhere = grant(3, (1, range(4)), container=ContainerRef("default", "far", "main"))
    one = grant(4, (0, range(4, 24)))
    found, used = book(gone, holder, elsewhere, one), {gone.id: {uuid(0): 3 * GIB}}
    text = gate.describe(gate.shortfall(found, one, node(), used), found, one, used)
    assert f"3 GiB of {uuid(0)}" in text
    assert "default/old/main (ended, its processes still hold 3 GiB)" in text
    assert "default/other/main (4 GiB)" in text
    assert "far" not in text
    assert "\n" not in text
