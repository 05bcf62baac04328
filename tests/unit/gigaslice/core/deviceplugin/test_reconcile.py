# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.persistence.recovery import recover
from agent.roles.records import CODEC
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationTable, Hold
from gigaslice.core.deviceplugin.device_id import whole_gpu_device_id
from gigaslice.core.deviceplugin.handing_out import with_freed, with_handed_out
from gigaslice.core.deviceplugin.lifetime import Evidence, Listed, PodListing, allocations_of_listed
from gigaslice.core.deviceplugin.origin import GpuTokens, held, plugin, with_origin
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse, from_response, review
from gigaslice.core.model import Share
from tests.fakes.nodes import (
    GIB,
    LIBRARY,
    all_device_ids,
    allocation,
    device_ids,
    inventory,
    of_tokens,
    table,
    uuid,
    whole_allocation,
)

FOUND = inventory()


def ref(name):
    return ContainerRef("default", name, "main")


def listed(name, *wanted):
    return Listed(ref(name), frozenset().union(*wanted))


def reconcile_once(
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
            PodListing(containers, present, settled),
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
        responses=answers,
    )


def reconcile_often(found, *containers, times=10, **more):
    unlisted = {}
    released = []
    for _ in range(times):
        result = reconcile_once(found, *containers, unlisted=unlisted, **more)
        found, unlisted = result.table, result.unlisted
        released += [one.number for one in result.released]
    return found, released


def test_names_are_learned_from_equal_device_ids():
    found = table(allocation(1, (0, range(4))), allocation(2, (1, range(4))))
    result = reconcile_once(
        found, listed("a", device_ids(0, 0, 1, 2, 3)), listed("b", device_ids(1, 0, 1, 2, 3))
    )
    assert [one.name for one in result.table.allocations] == ["default/a/main", "default/b/main"]
    assert len(result.learned) == 2
    assert (
        reconcile_once(
            result.table, listed("a", device_ids(0, 0, 1, 2, 3)), listed("b", device_ids(1, 0, 1, 2, 3))
        ).learned
        == ()
    )


def test_an_init_containers_equal_set_does_not_get_the_apps_name():
    init, app = (
        allocation(1, (0, range(4)), lent=device_ids(0, 0, 1, 2, 3)),
        allocation(2, (0, range(4)), supersedes=(f"{1:032x}",)),
    )
    result = reconcile_once(table(init, app), listed("p", device_ids(0, 0, 1, 2, 3)))
    assert [plugin(one).container for one in result.table.allocations] == [None, ref("p")]


def test_an_answer_older_than_an_allocation_does_not_name_it():
    found = table(allocation(1, (0, range(4))))
    assert reconcile_once(found, listed("old", device_ids(0, 0, 1, 2, 3)), asked_at=1).learned == ()


def test_a_container_that_is_no_longer_listed_is_given_up_after_patience():
    found = table(allocation(1, (0, range(4)), container=ref("p")))
    first = reconcile_once(found)
    second = reconcile_once(first.table, unlisted=first.unlisted)
    third = reconcile_once(second.table, unlisted=second.unlisted)
    assert [len(one.released) for one in (first, second, third)] == [0, 0, 1]
    assert third.table.allocations == ()


def test_being_listed_in_between_restores_patience():
    found = table(allocation(1, (0, range(4)), container=ref("p")))
    seen = listed("p", device_ids(0, 0, 1, 2, 3))
    unlisted = {}
    for containers in ((), (), (seen,), (), (), (seen,), (), ()):
        result = reconcile_once(found, *containers, unlisted=unlisted)
        found, unlisted = result.table, result.unlisted
    assert len(found.allocations) == 1


def test_a_living_process_keeps_its_allocation_however_long():
    found = table(allocation(1, (0, range(4)), container=ref("p")))
    kept, released = reconcile_often(found, alive=found.allocations)
    assert (len(kept.allocations), released) == (1, [])


def test_one_that_was_never_listed_is_kept_while_a_pod_lives_that_it_can_be_for():
    """A plain init container, which the kubelet does not list; its pod may need minutes for an image."""
    kept, released = reconcile_often(table(allocation(1, (0, range(4)))), pods=["default/p", "default/q"])
    assert (len(kept.allocations), released) == (1, [])
    kept, released = reconcile_often(kept, pods=["default/q", "default/later"])
    assert (len(kept.allocations), released) == (1, [])
    kept, released = reconcile_often(kept, pods=["default/later"])
    assert (kept.allocations, released) == ((), [1])


def test_pods_that_were_there_long_before_do_not_keep_it():
    kept, _ = reconcile_often(
        table(allocation(1, (0, range(4)))), pods=["system/old", "default/p"], young=["default/p"]
    )
    assert len(kept.allocations) == 1
    assert reconcile_often(kept, pods=["system/old"])[1] == [1]


def test_a_pod_that_came_and_went_between_two_looks_is_given_up():
    assert reconcile_often(table(allocation(1, (0, range(4)))), pods=["system/old"], young=[])[1] == [1]


def test_a_later_pod_that_took_none_of_its_device_ids_does_not_keep_it():
    """Two pods, the first gone before it was ever listed: the second cannot be whose init container that was."""
    init, app = (
        allocation(1, (0, range(4)), lent=device_ids(0, 0, 1, 2, 3)),
        allocation(2, (0, range(4)), supersedes=(f"{1:032x}",)),
    )
    other = allocation(3, (1, range(4)))
    kept, released = reconcile_often(table(init, app, other), listed("other", plugin(other).device_ids))
    assert ([one.number for one in kept.allocations], released) == ([3], [1, 2])


def test_an_earlier_pod_keeps_it_only_if_it_was_allocated_just_before():
    """An init container may follow a sidecar of its pod."""
    sidecar, unknown = allocation(1, (0, range(2))), allocation(2, (1, range(4)))
    running = listed("p", plugin(sidecar).device_ids)
    assert reconcile_often(table(sidecar, unknown), running)[1] == []
    assert reconcile_often(table(sidecar, replace(unknown, created=unknown.created + 60)), running)[1] == [2]
    between = allocation(2, (0, range(10, 12)))
    last = replace(unknown, id=f"{3:032x}", number=3)
    assert reconcile_often(
        table(sidecar, between, last), running, listed("q", plugin(between).device_ids), young=["default/p"]
    )[1] == [3]


def test_the_pod_that_took_its_device_ids_keeps_it():
    init = allocation(1, (0, range(8)), lent=device_ids(0, 0, 1))
    first = allocation(2, (0, range(2)), supersedes=(init.id,))
    kept, released = reconcile_often(table(init, first), listed("p", plugin(first).device_ids))
    assert (len(kept.allocations), released) == (2, [])
    assert reconcile_often(kept)[1] == [1, 2]


def test_the_pod_that_took_its_device_ids_keeps_it_under_a_name_that_was_there_before():
    """A StatefulSet's next pod has the name of the one before. Its init container waits for an image."""
    init = allocation(1, (0, range(8)), lent=device_ids(0, 0, 1))
    first = allocation(2, (0, range(2)), supersedes=(init.id,))
    kept, released = reconcile_often(table(init, first), listed("db-0", plugin(first).device_ids), young=[])
    assert (len(kept.allocations), released) == (2, [])
    assert reconcile_often(kept)[1] == [1, 2]


def test_who_took_its_device_ids_much_later_does_not_keep_it():
    init = allocation(1, (0, range(8)), lent=device_ids(0, 0, 1))
    other = allocation(2, (0, range(2)), supersedes=(init.id,), created=init.created + 60)
    kept, released = reconcile_often(table(init, other), listed("q", plugin(other).device_ids), young=[])
    assert ([one.number for one in kept.allocations], released) == ([2], [1])


def test_an_allocation_younger_than_the_answer_suspects_nobody_yet():
    found = table(allocation(1, (0, range(4))))
    assert reconcile_once(found, asked_at=1, pods=["default/p"]).table == found


def test_an_init_container_ends_with_the_container_that_took_its_device_ids():
    init = allocation(1, (0, range(4)), lent=device_ids(0, 0, 1))
    app = allocation(2, (0, range(2)), container=ref("p"), supersedes=(init.id,))
    kept, released = reconcile_often(table(init, app), listed("p", device_ids(0, 0, 1)))
    assert len(kept.allocations) == 2
    kept, released = reconcile_often(table(init, app))
    assert (kept.allocations, released) == ((), [1, 2])


def test_an_init_containers_living_process_keeps_it_and_it_ends_when_that_is_dead():
    init = allocation(1, (0, range(4)), lent=device_ids(0, 0, 1))
    app = allocation(2, (0, range(2)), container=ref("p"), supersedes=(init.id,))
    kept, _ = reconcile_often(table(init, app), alive=[init])
    assert [(one.number, plugin(one).forgotten) for one in kept.allocations] == [(1, True)]
    kept, released = reconcile_often(kept)
    assert released == [1]


def test_one_whose_device_ids_are_free_is_given_up_though_it_was_never_listed():
    found = table(replace(allocation(1, (0, range(4))), ended=True))
    assert reconcile_often(found)[1] == [1]


def test_a_container_without_a_record_counts_where_its_device_ids_say():
    result = reconcile_once(AllocationTable(), listed("p", device_ids(0, 0, 1), device_ids(1, 5)))
    (one,) = result.adopted
    assert {hold.gpu: hold.memory_bytes // GIB for hold in one.holds} == {uuid(0): 2, uuid(1): 1}
    assert (one.number, plugin(one).container) == (1, ref("p"))
    again = reconcile_once(result.table, listed("p", device_ids(0, 0, 1), device_ids(1, 5)))
    assert again.adopted == ()
    assert reconcile_often(again.table)[1] == [1]


def test_a_whole_gpu_without_a_record_counts_as_one():
    device_id = whole_gpu_device_id(uuid(1))
    result = reconcile_once(AllocationTable(), Listed(ref("p"), frozenset({device_id})))
    (one,) = result.adopted
    assert (one.whole, one.policy.exclusive) == (True, True)
    assert one.holds == (Hold(uuid(1), 24 * GIB, 24 * GIB),)
    assert plugin(one).tokens == (GpuTokens(uuid(1), (device_id,)),)
    assert one.shares_of({uuid(1): GIB}) == (Share(uuid(1), 24),)


def test_a_whole_gpu_of_a_pod_does_not_clear_it_of_slices():
    """The init container has slices and the other one a GPU: neither takes device IDs from the other."""
    init = allocation(1, (0, range(4)))
    device_id = whole_gpu_device_id(uuid(1))
    app = whole_allocation(2, 1, created=init.created + 3600)
    kept, released = reconcile_often(table(init, app), Listed(ref("p"), frozenset({device_id})))
    assert ([one.number for one in kept.allocations], released) == ([1, 2], [])
    assert reconcile_often(kept)[1] == [1, 2]


def test_a_container_with_devices_of_other_nodes_is_no_business_of_ours():
    assert (
        reconcile_once(AllocationTable(), Listed(ref("p"), frozenset({"GPU-x/1", "odd"}))).table
        == AllocationTable()
    )


def test_a_lost_checkpoint_is_rebuilt_from_the_directories():
    init, app, other = (
        allocation(1, (0, range(4))),
        allocation(2, (0, range(2))),
        allocation(3, (1, range(4)), container=ref("b")),
    )
    found = recover(CODEC, AllocationTable(), {one.id: one for one in (other, app, init)})
    assert [one.number for one in found.table.allocations] == [1, 2, 3]
    assert plugin(found.table.allocations[0]).lent == device_ids(0, 0, 1)
    assert plugin(found.table.allocations[1]).supersedes == (init.id,)
    assert found.table.next_number == 4
    assert len(found.adopted) == 3


def test_an_allocation_that_was_made_and_never_recorded_is_taken_over():
    known = allocation(1, (0, range(4)), container=ref("p"))
    fresh = allocation(2, (0, range(2, 6)))
    found = recover(CODEC, table(known), {known.id: known, fresh.id: fresh})
    older, newer = found.table.allocations
    assert (plugin(older).forgotten, older.ended, older.promised) == (True, False, {uuid(0): 4 * GIB})
    assert held(newer) == plugin(fresh).device_ids
    assert reconcile_often(found.table, listed("q", plugin(fresh).device_ids))[1] == [1], (
        "until nothing shows that it lives"
    )


def test_an_old_directory_does_not_take_device_ids_from_newer_allocations():
    newer = allocation(5, (0, range(4)), container=ref("p"))
    old = allocation(2, (0, range(2, 6)), container=ref("q"))
    found = recover(CODEC, table(newer), {old.id: old})
    assert [(one.number, len(held(one))) for one in found.table.allocations] == [(2, 2), (5, 4)]


def test_directories_that_say_nothing_are_named():
    assert recover(CODEC, AllocationTable(), {"x": None}).strays == ("x",)


# --- properties over any history ----------------------------------------------------------------------------------

every_device_id = all_device_ids(inventory(2, 6))
token_sets = st.lists(st.sampled_from(every_device_id), min_size=1, max_size=5, unique=True).map(frozenset)


@st.composite
def histories(draw):
    """A allocation table as a kubelet's calls make it: allocations, and device IDs shown free, in any order."""
    found = AllocationTable()
    for number in range(1, draw(st.integers(1, 8))):
        wanted = draw(token_sets)
        after, superseded = with_handed_out(found, wanted)
        named = draw(st.none() | st.just(ref(f"p{number}")))
        tokens = GpuTokens(uuid(0), tuple(sorted(wanted)))
        found = after.with_allocation(of_tokens(number, tokens, container=named, supersedes=superseded))
        if draw(st.booleans()):
            found = with_freed(found, draw(token_sets) - wanted)
    return found


def no_device_id_twice(found):
    taken = [device_id for one in found.allocations for device_id in held(one)]
    return len(taken) == len(set(taken))


@given(histories())
def test_no_device_id_is_ever_counted_twice(found):
    assert no_device_id_twice(found)


@settings(deadline=None)
@given(histories(), st.data())
def test_a_review_gives_up_nothing_that_is_listed_or_alive(found, data):
    containers = [
        Listed(plugin(one).container, plugin(one).device_ids)
        for one in found.allocations
        if plugin(one).container and data.draw(st.booleans())
    ]
    alive = [one for one in found.allocations if data.draw(st.booleans())]
    patience = data.draw(st.integers(1, 3))
    unlisted = {one.id: data.draw(st.integers(0, 5)) for one in found.allocations}
    result = reconcile_once(found, *containers, alive=alive, unlisted=unlisted, patience=patience)
    meant = {one.id for one in allocations_of_listed(found, PodListing(tuple(containers))).own.values()}
    for one in result.released:
        assert one.id not in {living.id for living in alive}
        lent_by = [other for other in found.allocations if one.id in plugin(other).supersedes]
        assert one.id not in meant or (one.container is None and lent_by)
    assert no_device_id_twice(result.table)
    assert {one.id for one in result.table.allocations} | {one.id for one in result.released} >= {
        one.id for one in found.allocations
    }
    assert set(result.unlisted) <= {one.id for one in result.table.allocations}


@given(histories())
def test_a_node_that_goes_quiet_ends_empty(found):
    kept, _ = reconcile_often(found, times=12)
    assert kept.allocations == ()


@given(histories())
def test_directories_alone_give_back_every_allocation(found):
    as_written = {
        one.id: with_origin(replace(one, ended=False), lent=frozenset()) for one in found.allocations
    }
    again = recover(CODEC, AllocationTable(), as_written).table
    assert [one.id for one in again.allocations] == [one.id for one in found.allocations]
    assert no_device_id_twice(again)
    assert (
        again.next_number == max(one.number for one in found.allocations) + 1 if found.allocations else True
    )


@given(histories(), st.data())
def test_recovering_twice_changes_nothing_more(found, data):
    directories = {one.id: one for one in found.allocations if data.draw(st.booleans())}
    once = recover(CODEC, found, directories)
    assert once.table == found
    assert once.adopted == ()


def test_of_a_pod_that_is_over_what_its_processes_hold_counts_and_no_longer_what_was_promised():
    ended, used = (
        allocation(1, (0, range(4)), container=ref("a")),
        allocation(2, (1, range(4)), container=ref("b")),
    )
    found, released = reconcile_often(table(ended, used), attached=[ended], alive=[used], times=9)
    assert released == []
    assert found.find(ended.id).ended
    assert not found.find(used.id).ended, "it runs, has used no GPU yet, and still may"
    for more in ({"settled": False}, {"times": 2}, {"pods": ["default/a"]}):
        found, released = reconcile_often(table(ended), attached=[ended], **more)
        assert released == [] and not found.find(ended.id).ended, more


def test_whole_gpus_that_were_answered_by_others_than_their_names_are_told_in_order():
    """The kubelet's device IDs are names: what was given to the runtime is what the container has."""
    names = [whole_gpu_device_id(uuid(number)) for number in range(3)]
    told = KeptAllocateResponse("u", "main", frozenset(names), "a" * 32, "", (uuid(2), uuid(3), uuid(1)))
    made = from_response(told, ref("p"), inventory(4).gpus, LIBRARY, 1.0)
    assert [(one.gpu, one.device_ids) for one in plugin(made).tokens] == [
        (uuid(2), (names[2],)),
        (uuid(3), (names[0],)),
        (uuid(1), (names[1],)),
    ]
    assert made.whole and not plugin(made).undecided


def test_what_the_kubelet_lists_again_lives_and_has_all_that_it_was_given():
    """A kubelet that had lost its list, and an init container by all that was known: a list says more than both."""
    for state in ({"ended": True}, {"forgotten": True}, {"lent": device_ids(0, 1, 2)}):
        one = allocation(1, (0, range(8)), **state)
        result = reconcile_once(table(one), listed("p", plugin(one).device_ids))
        (after,) = result.table.allocations
        assert (after.ended, plugin(after).forgotten, plugin(after).lent) == (False, False, frozenset()), (
            state
        )
        assert len(held(after)) == 8
