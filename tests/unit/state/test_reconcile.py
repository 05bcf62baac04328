from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model import Share
from agent.state.lifetime import Evidence, grant_of
from agent.state.reconcile import Listed, Listing, recover, review
from agent.state.records import Book, ContainerRef, Hold, whole_token
from tests.fakes.nodes import GIB, LIBRARY, all_tokens, grant, inventory, tokens, uuid

FOUND = inventory()


def ref(name):
    return ContainerRef("default", name, "main")


def listed(name, *wanted):
    return Listed(ref(name), frozenset().union(*wanted))


def book(*grants):
    result = Book()
    for one in grants:
        result = result.with_grant(one)
    return result


def look(
    found,
    *containers,
    pods=(),
    alive=(),
    unlisted=None,
    patience=3,
    asked_at=None,
    young=None,
    api=None,
    settled=True,
    watched=True,
    answers=(),
    attached=(),
):
    present = frozenset({*pods, *(f"{one.container.namespace}/{one.container.pod}" for one in containers)})
    return review(
        found,
        Evidence(
            Listing(containers, present, settled),
            api,
            frozenset(one.id for one in (*alive, *attached)),
            frozenset(one.id for one in attached),
            watched=watched,
        ),
        young=present if young is None else frozenset(young),
        asked_at=found.next_number if asked_at is None else asked_at,
        unlisted=unlisted or {},
        patience=patience,
        gpus=FOUND.gpus,
        library=LIBRARY,
        now=1.0,
        answers=answers,
    )


def look_often(found, *containers, times=10, **more):
    unlisted = {}
    released = []
    for _ in range(times):
        result = look(found, *containers, unlisted=unlisted, **more)
        found, unlisted = result.book, result.unlisted
        released += [one.number for one in result.released]
    return found, released


def test_names_are_learned_from_equal_tokens():
    found = book(grant(1, (0, range(4))), grant(2, (1, range(4))))
    result = look(found, listed("a", tokens(0, 0, 1, 2, 3)), listed("b", tokens(1, 0, 1, 2, 3)))
    assert [one.name for one in result.book.grants] == ["default/a/main", "default/b/main"]
    assert len(result.learned) == 2
    assert (
        look(result.book, listed("a", tokens(0, 0, 1, 2, 3)), listed("b", tokens(1, 0, 1, 2, 3))).learned
        == ()
    )


def test_an_init_containers_equal_set_does_not_get_the_apps_name():
    init, app = (
        grant(1, (0, range(4)), lent=tokens(0, 0, 1, 2, 3)),
        grant(2, (0, range(4)), supersedes=(f"{1:032x}",)),
    )
    result = look(book(init, app), listed("p", tokens(0, 0, 1, 2, 3)))
    assert [one.container for one in result.book.grants] == [None, ref("p")]


def test_an_answer_older_than_an_allocation_does_not_name_it():
    found = book(grant(1, (0, range(4))))
    assert look(found, listed("old", tokens(0, 0, 1, 2, 3)), asked_at=1).learned == ()


def test_a_container_that_is_no_longer_listed_is_given_up_after_patience():
    found = book(grant(1, (0, range(4)), container=ref("p")))
    first = look(found)
    second = look(first.book, unlisted=first.unlisted)
    third = look(second.book, unlisted=second.unlisted)
    assert [len(one.released) for one in (first, second, third)] == [0, 0, 1]
    assert third.book.grants == ()


def test_being_listed_in_between_restores_patience():
    found = book(grant(1, (0, range(4)), container=ref("p")))
    seen = listed("p", tokens(0, 0, 1, 2, 3))
    unlisted = {}
    for containers in ((), (), (seen,), (), (), (seen,), (), ()):
        result = look(found, *containers, unlisted=unlisted)
        found, unlisted = result.book, result.unlisted
    assert len(found.grants) == 1


def test_a_living_process_keeps_its_allocation_however_long():
    found = book(grant(1, (0, range(4)), container=ref("p")))
    kept, released = look_often(found, alive=found.grants)
    assert (len(kept.grants), released) == (1, [])


def test_one_that_was_never_listed_is_kept_while_a_pod_lives_that_it_can_be_for():
    """A plain init container, which the kubelet does not list; its pod may need minutes for an image."""
    kept, released = look_often(book(grant(1, (0, range(4)))), pods=["default/p", "default/q"])
    assert (len(kept.grants), released) == (1, [])
    kept, released = look_often(kept, pods=["default/q", "default/later"])
    assert (len(kept.grants), released) == (1, [])
    kept, released = look_often(kept, pods=["default/later"])
    assert (kept.grants, released) == ((), [1])


def test_pods_that_were_there_long_before_do_not_keep_it():
    kept, _ = look_often(book(grant(1, (0, range(4)))), pods=["system/old", "default/p"], young=["default/p"])
    assert len(kept.grants) == 1
    assert look_often(kept, pods=["system/old"])[1] == [1]


def test_a_pod_that_came_and_went_between_two_looks_is_given_up():
    assert look_often(book(grant(1, (0, range(4)))), pods=["system/old"], young=[])[1] == [1]


def test_a_later_pod_that_took_none_of_its_tokens_does_not_keep_it():
    """Two pods, the first gone before it was ever listed: the second cannot be whose init container that was."""
    init, app = (
        grant(1, (0, range(4)), lent=tokens(0, 0, 1, 2, 3)),
        grant(2, (0, range(4)), supersedes=(f"{1:032x}",)),
    )
    other = grant(3, (1, range(4)))
    kept, released = look_often(book(init, app, other), listed("other", other.tokens))
    assert ([one.number for one in kept.grants], released) == ([3], [1, 2])


def test_an_earlier_pod_keeps_it_only_if_it_was_allocated_just_before():
    """An init container may follow a sidecar of its pod."""
    sidecar, unknown = grant(1, (0, range(2))), grant(2, (1, range(4)))
    running = listed("p", sidecar.tokens)
    assert look_often(book(sidecar, unknown), running)[1] == []
    assert look_often(book(sidecar, replace(unknown, created=unknown.created + 60)), running)[1] == [2]
    between = grant(2, (0, range(10, 12)))
    last = replace(unknown, id=f"{3:032x}", number=3)
    assert look_often(
        book(sidecar, between, last), running, listed("q", between.tokens), young=["default/p"]
    )[1] == [3]


def test_the_pod_that_took_its_tokens_keeps_it():
    init = grant(1, (0, range(8)), lent=tokens(0, 0, 1))
    first = grant(2, (0, range(2)), supersedes=(init.id,))
    kept, released = look_often(book(init, first), listed("p", first.tokens))
    assert (len(kept.grants), released) == (2, [])
    assert look_often(kept)[1] == [1, 2]


def test_the_pod_that_took_its_tokens_keeps_it_under_a_name_that_was_there_before():
    """A StatefulSet's next pod has the name of the one before. Its init container waits for an image."""
    init = grant(1, (0, range(8)), lent=tokens(0, 0, 1))
    first = grant(2, (0, range(2)), supersedes=(init.id,))
    kept, released = look_often(book(init, first), listed("db-0", first.tokens), young=[])
    assert (len(kept.grants), released) == (2, [])
    assert look_often(kept)[1] == [1, 2]


def test_who_took_its_tokens_much_later_does_not_keep_it():
    init = grant(1, (0, range(8)), lent=tokens(0, 0, 1))
    other = grant(2, (0, range(2)), supersedes=(init.id,), created=init.created + 60)
    kept, released = look_often(book(init, other), listed("q", other.tokens), young=[])
    assert ([one.number for one in kept.grants], released) == ([2], [1])


def test_an_allocation_younger_than_the_answer_suspects_nobody_yet():
    found = book(grant(1, (0, range(4))))
    assert look(found, asked_at=1, pods=["default/p"]).book == found


def test_an_init_container_ends_with_the_container_that_took_its_tokens():
    init = grant(1, (0, range(4)), lent=tokens(0, 0, 1))
    app = grant(2, (0, range(2)), container=ref("p"), supersedes=(init.id,))
    kept, released = look_often(book(init, app), listed("p", tokens(0, 0, 1)))
    assert len(kept.grants) == 2
    kept, released = look_often(book(init, app))
    assert (kept.grants, released) == ((), [1, 2])


def test_an_init_containers_living_process_keeps_it_and_it_ends_when_that_is_dead():
    init = grant(1, (0, range(4)), lent=tokens(0, 0, 1))
    app = grant(2, (0, range(2)), container=ref("p"), supersedes=(init.id,))
    kept, _ = look_often(book(init, app), alive=[init])
    assert [(one.number, one.forgotten) for one in kept.grants] == [(1, True)]
    kept, released = look_often(kept)
    assert released == [1]


def test_one_whose_tokens_are_free_is_given_up_though_it_was_never_listed():
    found = book(replace(grant(1, (0, range(4))), gone=True))
    assert look_often(found)[1] == [1]


def test_a_container_without_a_record_counts_where_its_tokens_say():
    result = look(Book(), listed("p", tokens(0, 0, 1), tokens(1, 5)))
    (one,) = result.adopted
    assert {hold.gpu: len(hold.tokens) for hold in one.holds} == {uuid(0): 2, uuid(1): 1}
    assert (one.number, one.container) == (1, ref("p"))
    again = look(result.book, listed("p", tokens(0, 0, 1), tokens(1, 5)))
    assert again.adopted == ()
    assert look_often(again.book)[1] == [1]


def test_a_whole_card_without_a_record_counts_as_one():
    token = whole_token(uuid(1))
    result = look(Book(), Listed(ref("p"), frozenset({token})))
    (one,) = result.adopted
    assert (one.whole, one.policy.exclusive) == (True, True)
    assert one.holds == (Hold(uuid(1), 24 * GIB, (token,)),)
    assert one.shares_of({uuid(1): GIB}) == (Share(uuid(1), 24),)


def test_a_whole_card_of_a_pod_does_not_clear_it_of_slices():
    """The init container has slices and the other one a card: neither takes tokens from the other."""
    init = grant(1, (0, range(4)))
    token = whole_token(uuid(1))
    app = replace(
        grant(2, (1, range(1)), created=init.created + 3600), holds=(Hold(uuid(1), 24 * GIB, (token,)),)
    )
    kept, released = look_often(book(init, app), Listed(ref("p"), frozenset({token})))
    assert ([one.number for one in kept.grants], released) == ([1, 2], [])
    assert look_often(kept)[1] == [1, 2]


def test_a_container_with_devices_of_other_nodes_is_no_business_of_ours():
    assert look(Book(), Listed(ref("p"), frozenset({"GPU-x/1", "odd"}))).book == Book()


def test_a_lost_checkpoint_is_rebuilt_from_the_directories():
    init, app, other = (
        grant(1, (0, range(4))),
        grant(2, (0, range(2))),
        grant(3, (1, range(4)), container=ref("b")),
    )
    found = recover(Book(), {one.id: one for one in (other, app, init)})
    assert [one.number for one in found.book.grants] == [1, 2, 3]
    assert found.book.grants[0].lent == tokens(0, 0, 1)
    assert found.book.grants[1].supersedes == (init.id,)
    assert found.book.next_number == 4
    assert len(found.adopted) == 3


def test_an_allocation_that_was_made_and_never_recorded_is_taken_over():
    known = grant(1, (0, range(4)), container=ref("p"))
    fresh = grant(2, (0, range(2, 6)))
    found = recover(book(known), {known.id: known, fresh.id: fresh})
    older, newer = found.book.grants
    assert (older.forgotten, older.gone, older.promised) == (True, False, {uuid(0): 4 * GIB})
    assert newer.held == fresh.tokens
    assert look_often(found.book, listed("q", fresh.tokens))[1] == [1], "until nothing shows that it lives"


def test_an_old_directory_does_not_take_tokens_from_newer_grants():
    newer = grant(5, (0, range(4)), container=ref("p"))
    old = grant(2, (0, range(2, 6)), container=ref("q"))
    found = recover(book(newer), {old.id: old})
    assert [(one.number, len(one.held)) for one in found.book.grants] == [(2, 2), (5, 4)]


def test_directories_that_say_nothing_are_named():
    assert recover(Book(), {"x": None}).strays == ("x",)


# --- properties over any history ----------------------------------------------------------------------------------

every_token = all_tokens(inventory(2, 6))
token_sets = st.lists(st.sampled_from(every_token), min_size=1, max_size=5, unique=True).map(frozenset)


@st.composite
def histories(draw):
    """A book as a kubelet's calls make it: allocations, and tokens shown free, in any order."""
    found = Book()
    for number in range(1, draw(st.integers(1, 8))):
        wanted = draw(token_sets)
        after, superseded = found.taken_over(wanted)
        named = draw(st.none() | st.just(ref(f"p{number}")))
        made = replace(grant(number, (0, range(1))), container=named, supersedes=superseded)
        held = replace(made, holds=(replace(made.holds[0], tokens=tuple(sorted(wanted))),))
        found = after.with_grant(held)
        if draw(st.booleans()):
            found = found.given_back(draw(token_sets) - wanted)
    return found


def no_token_twice(found):
    held = [token for one in found.grants for token in one.held]
    return len(held) == len(set(held))


@given(histories())
def test_no_token_is_ever_counted_twice(found):
    assert no_token_twice(found)


@settings(deadline=None)
@given(histories(), st.data())
def test_a_review_gives_up_nothing_that_is_listed_or_alive(found, data):
    containers = [
        Listed(one.container, one.tokens)
        for one in found.grants
        if one.container and data.draw(st.booleans())
    ]
    alive = [one for one in found.grants if data.draw(st.booleans())]
    patience = data.draw(st.integers(1, 3))
    unlisted = {one.id: data.draw(st.integers(0, 5)) for one in found.grants}
    result = look(found, *containers, alive=alive, unlisted=unlisted, patience=patience)
    meant = {one.id for container in containers if (one := grant_of(found, container))}
    for one in result.released:
        assert one.id not in {living.id for living in alive}
        lent_by = [other for other in found.grants if one.id in other.supersedes]
        assert one.id not in meant or (one.container is None and lent_by)
    assert no_token_twice(result.book)
    assert {one.id for one in result.book.grants} | {one.id for one in result.released} >= {
        one.id for one in found.grants
    }
    assert set(result.unlisted) <= {one.id for one in result.book.grants}


@given(histories())
def test_a_node_that_goes_quiet_ends_empty(found):
    kept, _ = look_often(found, times=12)
    assert kept.grants == ()


@given(histories())
def test_directories_alone_give_back_every_grant(found):
    as_written = {one.id: replace(one, lent=frozenset(), gone=False) for one in found.grants}
    again = recover(Book(), as_written).book
    assert [one.id for one in again.grants] == [one.id for one in found.grants]
    assert no_token_twice(again)
    assert again.next_number == max(one.number for one in found.grants) + 1 if found.grants else True


@given(histories(), st.data())
def test_recovering_twice_changes_nothing_more(found, data):
    directories = {one.id: one for one in found.grants if data.draw(st.booleans())}
    once = recover(found, directories)
    assert once.book == found
    assert once.adopted == ()


def test_of_a_pod_that_is_over_what_its_processes_hold_counts_and_no_longer_what_was_promised():
    ended, used = (
        grant(1, (0, range(4)), container=ref("a")),
        grant(2, (1, range(4)), container=ref("b")),
    )
    found, released = look_often(book(ended, used), attached=[ended], alive=[used], times=9)
    assert released == []
    assert found.find(ended.id).gone
    assert not found.find(used.id).gone, "it runs, has used no GPU yet, and still may"
    for more in ({"settled": False}, {"times": 2}, {"pods": ["default/a"]}):
        found, released = look_often(book(ended), attached=[ended], **more)
        assert released == [] and not found.find(ended.id).gone, more
