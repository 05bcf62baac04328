# SPDX-License-Identifier: Apache-2.0
"""Whose memory it is: processes, ledgers and pods that the test has made up."""

from dataclasses import replace

import pytest

from agent.accounting.attribution import (
    credible_owners,
    examine,
    owner_of,
    undeclared_overuse,
    with_found_pids,
)
from agent.accounting.processes import ProcessInfo
from agent.ledgers.usage import Reading
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.deviceplugin.origin import Owner, plugin, with_origin
from gigaslice.core.kube.cgroups import Place
from tests.fakes.nodes import GIB, allocation, claim_allocation, consumer, uuid, whole_allocation
from vcuda import ProcessUsage

UID, OTHER = "2c48913c-b29f-11e7-9350-020968147796", "ffffffff-b29f-11e7-9350-020968147796"
THIRD = "eeeeeeee-b29f-11e7-9350-020968147796"
ONE, TWO = "a1" * 32, "b2" * 32


def of(number, pod="a", container="c0", device_ids=range(8), **more):
    return allocation(number, (0, device_ids), container=ContainerRef("default", pod, container), **more)


def seen(pid=10, place=None, mounted="", name="sneaky"):
    return ProcessInfo(pid, name, place, mounted)


PODS = {UID: ("default", "a")}


def test_the_only_allocation_of_a_pod_is_meant():
    mine = of(1)
    assert owner_of(seen(place=Place(UID, ONE)), [mine, of(2, "b")], PODS, {}) == mine.id


def test_of_several_containers_the_one_with_a_known_process_is_meant():
    first, second = of(1), of(2, container="c1", device_ids=range(8, 12))
    assert owner_of(seen(place=Place(UID, TWO)), [first, second], PODS, {TWO: second.id}) == second.id


def test_of_several_containers_the_mounted_one_is_meant():
    first, second = of(1), of(2, container="c1", device_ids=range(8, 12))
    assert owner_of(seen(place=Place(UID, TWO), mounted=second.id), [first, second], PODS, {}) == second.id


def test_an_unclear_owner_is_none():
    first, second = of(1), of(2, container="c1", device_ids=range(8, 12))
    assert owner_of(seen(place=Place(UID, TWO)), [first, second], PODS, {}) is None


def test_a_mount_cannot_lay_memory_at_another_pods_door():
    assert (
        owner_of(seen(place=Place(UID, ONE), mounted=of(2, "b").id), [of(1), of(2, "b")], PODS, {})
        == of(1).id
    )
    stranger = {**PODS, OTHER: ("default", "none")}
    assert owner_of(seen(place=Place(OTHER, ONE), mounted=of(1).id), [of(1)], stranger, {}) is None


def test_without_the_api_server_the_mount_tells():
    assert owner_of(seen(place=Place(UID, ONE), mounted=of(1).id), [of(1)], {}, {}) == of(1).id
    assert owner_of(seen(mounted=of(1).id), [of(1)], {}, {}) == of(1).id
    assert owner_of(seen(mounted="ff" * 16), [of(1)], {}, {}) is None
    assert owner_of(seen(), [of(1)], {}, {}) is None


def test_memory_is_divided_between_owners_strangers_and_foreigners():
    mine = of(1)
    measured = {uuid(0): {10: 2 * GIB, 11: 3 * GIB, 12: GIB}, uuid(1): {12: GIB}}
    processes = [seen(10, Place(UID, ONE)), seen(11, Place(UID, ONE)), seen(12)]
    survey = examine(measured, {11: mine.id}, processes, [mine], PODS)
    assert survey.without_library == {mine.id: {uuid(0): 2 * GIB}}
    assert survey.foreign == {uuid(0): GIB, uuid(1): GIB}
    (bypass,) = survey.bypasses
    assert bypass.over == {}
    assert [(process.pid, gpu, count) for process, gpu, count in bypass.processes] == [(10, uuid(0), 2 * GIB)]


def test_declared_and_undeclared_memory_together_can_be_too_much():
    mine = of(1)
    measured = {uuid(0): {10: 4 * GIB, 11: 5 * GIB}}
    survey = examine(measured, {11: mine.id}, [seen(10, Place(UID, ONE))], [mine], PODS)
    assert survey.bypasses[0].over == {uuid(0): GIB}


def test_every_byte_on_a_gpu_that_it_does_not_hold_is_too_much():
    survey = examine({uuid(1): {10: 5}}, {}, [seen(10, Place(UID, ONE))], [of(1)], PODS)
    assert survey.bypasses[0].over == {uuid(1): 5}


def test_a_process_that_has_ended_counts_nowhere():
    survey = examine({uuid(0): {10: GIB}}, {}, [], [of(1)], PODS)
    assert (survey.without_library, survey.foreign, survey.bypasses) == ({}, {uuid(0): 0}, ())


def test_an_ended_container_is_not_meant_while_another_one_lives():
    old, new = of(1), of(2)
    assert owner_of(seen(place=Place(UID, ONE)), [replace(old, ended=True), new], PODS, {}) == new.id


def test_on_a_whole_gpu_nothing_is_too_much():
    """What holds it is known, for the start decision; there is no library to pass by and no limit to exceed."""
    mine = whole_allocation(1, 0, container=plugin(of(1)).container)
    survey = examine({uuid(0): {10: 25 * GIB}}, {}, [seen(place=Place(UID, ONE))], [mine], PODS)
    assert (survey.without_library, survey.bypasses) == ({mine.id: {uuid(0): 25 * GIB}}, ())


def test_a_process_of_an_ended_allocation_is_attributed_to_none():
    """Its process was in a ledger before the measurement, and beside it one that was not; then it was given up."""
    ended = of(1)
    processes = (seen(10, Place(UID, ONE)), seen(11, Place(UID, ONE)))
    survey = examine({uuid(0): {10: GIB, 11: GIB}}, {10: ended.id}, processes, [of(2, "b")], PODS)
    assert survey.bypasses == () and survey.without_library == {}
    assert survey.foreign == {uuid(0): GIB}


def test_a_slot_is_the_kernels_word_where_nothing_contradicts_it():
    mine, other = of(1), of(2, "b")
    assert credible_owners({10: {mine.id}}, [], [mine, other], PODS) == {10: mine.id}
    assert credible_owners({10: {mine.id}}, [seen()], [mine, other], PODS) == {10: mine.id}
    assert credible_owners({10: {mine.id}}, [seen(place=Place(UID, ONE))], [mine, other], PODS) == {
        10: mine.id
    }
    assert credible_owners({10: {"ended"}}, [seen(place=Place(UID, ONE))], [mine], PODS) == {10: "ended"}


def test_a_slot_of_a_process_that_runs_in_another_pod_is_no_slot():
    mine, other = of(1), of(2, "b")
    away = seen(place=Place(OTHER, ONE))
    assert credible_owners({10: {mine.id}}, [away], [mine, other], {**PODS, OTHER: ("default", "b")}) == {}
    assert (
        credible_owners(
            {10: {mine.id}}, [away], [with_origin(mine, owner=Owner(UID, "default", "a", "c0"))], {}
        )
        == {}
    )
    assert credible_owners({10: {mine.id}}, [seen(mounted=other.id)], [mine, other], {}) == {}


def test_a_quota_that_pods_share_has_the_processes_of_each():
    shared = claim_allocation(1, "shared", consumer("a", UID), consumer("b", OTHER))
    pods = {UID: ("default", "a"), OTHER: ("default", "b"), THIRD: ("default", "c")}
    slots = {10: {shared.id}, 11: {shared.id}, 12: {shared.id}}
    processes = [seen(10, Place(UID, ONE)), seen(11, Place(OTHER, TWO)), seen(12, Place(THIRD, "c3" * 32))]
    assert credible_owners(slots, processes, [shared], pods) == {10: shared.id, 11: shared.id}
    owners = [owner_of(replace(process, mounted=""), [shared], pods, {}) for process in processes]
    assert owners == [shared.id, shared.id, None]
    without_slots = examine({uuid(0): {10: GIB, 11: GIB, 12: GIB}}, {}, processes, [shared], pods)
    assert without_slots.without_library == {shared.id: {uuid(0): 2 * GIB}}


def test_of_a_claim_without_consumers_nothing_contradicts_a_slot():
    shared = claim_allocation(1, "shared")
    slots = {10: {shared.id}}
    assert credible_owners(slots, [seen(10, Place(UID, ONE))], [shared], PODS) == {10: shared.id}


def test_of_two_who_have_a_process_the_one_that_it_has_mounted_is_right():
    first, second = of(1), of(2, container="c1", device_ids=range(8, 12))
    both = {10: {first.id, second.id}}
    assert credible_owners(both, [seen(mounted=second.id)], [first, second], PODS) == {10: second.id}
    assert credible_owners(both, [seen(place=Place(UID, ONE))], [first, second], PODS) == {}


def reading(used, limit=8 * GIB, undeclared=0, pid=10, **more):
    process = ProcessUsage(0, pid, 1, 1, {uuid(0): used}, {uuid(0): used}, 0, "p", {uuid(0): undeclared})
    return Reading({uuid(0): used}, {}, (process,), limits={uuid(0): limit}, **more)


@pytest.mark.parametrize(
    ("used", "undeclared", "held", "found"),
    [
        (GIB, 0, 60 * GIB, 52 * GIB),
        (60 * GIB, 59 * GIB, 60 * GIB, 52 * GIB),  # what it measured on itself no call declared either
        (60 * GIB, 0, 60 * GIB, 52 * GIB),  # it was never allowed to declare that much
        (8 * GIB, 0, 9 * GIB, 0),  # a context, on top of a quota that is used up
        (GIB, 0, 8 * GIB, 0),  # within its limit, whichever call allocated it
        (8 * GIB, 0, 0, 0),  # reserved, and not used yet
    ],
)
def test_what_a_process_with_a_slot_holds_undeclared_is_too_much_beyond_the_limit(
    used, undeclared, held, found
):
    over = undeclared_overuse(of(1), reading(used, undeclared=undeclared), {uuid(0): {10: held, 11: GIB}})
    assert over == ({uuid(0): found} if found else {})


def test_what_was_declared_under_a_larger_limit_is_no_overuse():
    lowered = replace(of(1), resizes=2)
    assert (
        undeclared_overuse(lowered, reading(8 * GIB, limit=2 * GIB), {uuid(0): {10: 8 * GIB + GIB // 2}})
        == {}
    )
    over = undeclared_overuse(lowered, reading(8 * GIB, limit=2 * GIB), {uuid(0): {10: 20 * GIB}})
    assert over == {uuid(0): 12 * GIB}, "but undeclared bytes are"


def test_each_process_may_have_its_context():
    processes = tuple(
        ProcessUsage(slot, pid, 1, 1, {uuid(0): 4 * GIB}, {}, 0, "p", {}) for slot, pid in enumerate((10, 11))
    )
    both = Reading({uuid(0): 8 * GIB}, {}, processes, limits={uuid(0): 8 * GIB})
    assert undeclared_overuse(of(1), both, {uuid(0): {10: 5 * GIB, 11: 5 * GIB}}) == {}
    assert undeclared_overuse(of(1), both, {uuid(0): {10: 5 * GIB, 11: 5 * GIB + 1}}) == {
        uuid(0): 2 * GIB + 1
    }


def test_nothing_is_said_of_a_ledger_that_cannot_be_read_or_of_whole_gpus():
    measured = {uuid(0): {10: 60 * GIB}}
    assert undeclared_overuse(of(1), reading(0, problem="damaged"), measured) == {}
    whole = whole_allocation(1, 0, container=plugin(of(1)).container)
    assert undeclared_overuse(whole, reading(0), measured) == {}


def nameless(inside, slot=0):
    return ProcessUsage(slot, 0, inside, 1, {uuid(0): GIB}, {uuid(0): GIB}, 0, "p", alive=True)


def test_an_owner_without_a_lock_is_the_process_that_has_the_files_mounted():
    mine, other = of(1), of(2, "b")
    lost = Reading({uuid(0): GIB}, {}, (nameless(7), nameless(8, 1)), limits={})
    processes = [
        replace(seen(70, mounted=mine.id), inner=7),
        replace(seen(71, mounted=other.id), inner=7),  # the number is another container's there
        replace(seen(80, mounted=mine.id), inner=8),
        replace(seen(90, mounted=mine.id), inner=9),
    ]
    assert with_found_pids({mine.id: lost}, processes, {80})[mine.id].pids == (70,), "80 has a name already"
    assert with_found_pids({mine.id: lost}, processes, ())[mine.id].pids == (70, 80)
    twice = [*processes, replace(seen(72, mounted=mine.id), inner=7)]  # two PID namespaces in one container
    assert with_found_pids({mine.id: lost}, twice, ())[mine.id].pids == (80,), (
        "of two who could be meant neither is"
    )
    dead = Reading({}, {}, (replace(nameless(7), alive=False),), limits={})
    assert with_found_pids({mine.id: dead}, processes, ()) == {mine.id: dead}
