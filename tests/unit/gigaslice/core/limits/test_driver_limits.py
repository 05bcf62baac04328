# SPDX-License-Identifier: Apache-2.0
"""Which limits the driver is to keep for pods: never below what a container may use, never a share for nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.allocation.table import AllocationOptions, AllocationTable
from gigaslice.core.deviceplugin.origin import Owner
from gigaslice.core.deviceplugin.pod_peak import with_peak
from gigaslice.core.limits import live_limits
from gigaslice.core.limits.driver_limits import NodePods, excess_bytes, limits_of_node, pod_limits
from tests.fakes.nodes import GIB, allocation, device_ids, inventory, uuid, whole_allocation

NODE = inventory(2, 24)
MARGIN = 256 << 20
A, B, C = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")


def table(*allocations):
    result = AllocationTable()
    for entry in allocations:
        result = result.with_allocation(entry)
    return result


def users(**pods):
    return NodePods(users={f"{int(key[1:]):032x}": frozenset(uids) for key, uids in pods.items()})


def limits(allocations, pods, present=None, gpus=NODE.gpus, margin=MARGIN):
    return pod_limits(table(*allocations), pods, gpus, present or {}, margin)


def test_a_pod_gets_what_it_was_promised_with_the_margin_and_nothing_of_other_gpus():
    answer = limits([allocation(1, (0, range(8)))], users(a1=[A]))
    assert answer == {A: {uuid(0): 8 * GIB + MARGIN, uuid(1): 0}}


def test_containers_of_a_pod_add_up_and_pay_one_margin():
    pair = [allocation(1, (0, range(8))), allocation(2, (0, range(8, 12)), (1, range(2)))]
    answer = limits(pair, users(a1=[A], a2=[A]))
    assert answer == {A: {uuid(0): 12 * GIB + MARGIN, uuid(1): 2 * GIB + MARGIN}}


def test_no_limit_is_larger_than_what_programs_can_have():
    answer = limits([allocation(1, (0, range(24)))], users(a1=[A]))
    assert answer[A][uuid(0)] == NODE.gpus[0].memory_bytes


def test_an_allocation_of_several_pods_counts_in_full_for_each_and_one_without_pods_for_none():
    answer = limits([allocation(1, (0, range(8))), allocation(2, (1, range(3)))], users(a1=[A, B]))
    assert answer == {uid: {uuid(0): 8 * GIB + MARGIN, uuid(1): 0} for uid in (A, B)}


def test_a_pod_whose_containers_have_ended_has_nothing():
    assert limits([allocation(1, (0, range(8)), ended=True)], users(a1=[A])) == {A: {uuid(0): 0, uuid(1): 0}}


@pytest.mark.parametrize(("init", "main", "most"), [(8, 4, 8), (4, 8, 8), (6, 6, 6)])
def test_of_init_containers_the_larger_phase_counts_and_not_the_sum(init, main, most):
    lent = device_ids(0, *range(min(init, main)))
    first = allocation(1, (0, range(init)), owner=Owner(A, "default", "p", "init", True), lent=lent)
    second = allocation(2, (0, range(main)), owner=Owner(A, "default", "p", "main"))
    peaked = with_peak(table(first, second), A)
    answer = pod_limits(peaked, users(a1=[A], a2=[A]), NODE.gpus, {}, MARGIN)
    assert answer[A][uuid(0)] == most * GIB + MARGIN


def test_whole_gpus_are_not_cut():
    answer = limits([whole_allocation(1, 1)], users(a1=[A]))
    assert answer == {A: {uuid(0): 0, uuid(1): NODE.gpus[1].memory_bytes}}


def test_a_resize_is_followed_both_ways():
    given_8 = allocation(1, (0, range(8)))
    for size in (4 * GIB, 12 * GIB):
        changed = live_limits.with_limits(given_8, {uuid(0): size}, {})
        assert limits([changed], users(a1=[A]))[A][uuid(0)] == size + MARGIN


def test_an_elastic_container_alone_on_a_gpu_may_have_all_of_it_and_then_its_quota_again():
    elastic = allocation(1, (0, range(8)), policy=AllocationOptions(elastic=True))
    other = allocation(2, (0, range(8, 10)))
    assert limits([elastic], users(a1=[A]))[A][uuid(0)] == NODE.gpus[0].memory_bytes
    assert limits([elastic, other], users(a1=[A], a2=[B]))[A][uuid(0)] == 8 * GIB + MARGIN
    living = {f"{2:032x}": {uuid(0): GIB}}
    ended = replace(other, ended=True)
    assert limits([elastic, ended], users(a1=[A]), living)[A][uuid(0)] == 8 * GIB + MARGIN


def test_an_oversubscribing_container_is_bounded_by_its_physical_share():
    gpus = tuple(replace(gpu, host_bytes=24 * GIB, slices=48) for gpu in NODE.gpus)
    lent = allocation(1, (0, range(16)), policy=AllocationOptions(oversubscribe=True), physical_bytes=6 * GIB)
    assert limits([lent], users(a1=[A]), gpus=gpus)[A][uuid(0)] == 6 * GIB + MARGIN


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=6))
def test_every_limits_page_is_within_its_pods_limit(sizes):
    begin, entries = 0, []
    for number, (size, elastic) in enumerate(sizes, 1):
        entries.append(
            allocation(number, (0, range(begin, begin + size)), policy=AllocationOptions(elastic=elastic))
        )
        begin += size
    pods = NodePods(users={entry.id: frozenset([(A, B, C)[entry.number % 3]]) for entry in entries})
    made = table(*entries)
    answer = pod_limits(made, pods, NODE.gpus, {}, MARGIN)
    pages = live_limits.limits_now(made, NODE.gpus, {})
    for entry in entries:
        (uid,) = pods.users[entry.id]
        assert answer[uid][uuid(0)] >= min(pages[entry.id][uuid(0)][0], NODE.gpus[0].memory_bytes)
        assert answer[uid][uuid(1)] == 0


TOTALS = {uuid(0): 25 * GIB, uuid(1): 25 * GIB}
NOTHING = dict.fromkeys(TOTALS, 0)


def of_others(pods, *, identified=True):
    return limits_of_node({}, pods, TOTALS, identified=identified)


def test_a_pod_without_an_allocation_gets_nothing_of_any_gpu():
    assert of_others(NodePods(frozenset([A]), known=frozenset([A]))) == {A: NOTHING}


def test_an_exempt_pod_is_not_bounded():
    assert of_others(NodePods(frozenset([A]), known=frozenset([A]), exempt=frozenset([A]))) == {A: TOTALS}


def test_a_pod_that_may_be_one_with_an_allocation_is_not_bounded_unless_it_was_closed_before():
    pods = NodePods(frozenset([A, B]), known=frozenset([A, B]), closed=frozenset([B]))
    assert of_others(pods, identified=False) == {A: TOTALS, B: NOTHING}


def test_without_the_api_server_no_pod_is_closed_out():
    assert of_others(NodePods(frozenset([A]), known=None)) == {A: TOTALS}
    assert of_others(NodePods(frozenset([A]), known=None), identified=False) == {A: TOTALS}


def test_a_pod_that_the_api_server_does_not_show_keeps_what_it_has():
    assert of_others(NodePods(frozenset([A]), known=frozenset())) == {}


def test_the_limit_of_an_allocation_goes_before_everything_else():
    limit = {A: {uuid(0): GIB, uuid(1): 0}}
    pods = NodePods(frozenset([A]), known=frozenset([A]), exempt=frozenset([A]), closed=frozenset([A]))
    assert limits_of_node(limit, pods, TOTALS, identified=True) == limit


def test_the_excess_of_a_gpu_is_told_where_margins_do_not_fit_what_slices_leave():
    fit = {A: {uuid(0): 12 * GIB, uuid(1): 0}, B: {uuid(0): 12 * GIB, uuid(1): GIB}}
    assert excess_bytes(fit, NODE.gpus) == {}
    fit[B][uuid(0)] += MARGIN
    assert excess_bytes(fit, NODE.gpus) == {uuid(0): MARGIN}
