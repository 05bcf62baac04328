# SPDX-License-Identifier: Apache-2.0
"""Limits of running containers as decisions: who may use how much now, what fits, what must not be given out."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigaslice.core.allocation import start_decision
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import Allocation, AllocationOptions, AllocationTable
from gigaslice.core.deviceplugin.origin import GpuTokens, held, plugin
from gigaslice.core.deviceplugin.withheld import withheld
from gigaslice.core.limits import live_limits
from gigaslice.core.model import Share
from tests.fakes.gpus import node_state
from tests.fakes.nodes import GIB, all_device_ids, allocation, device_ids, inventory, of_tokens, table, uuid

NODE = inventory(2, 24)
ELASTIC = AllocationOptions(elastic=True, cores=30)


def named(number, *held, name="", **more):
    return allocation(number, *held, container=ContainerRef("default", name or f"p{number}", "main"), **more)


def grow(found, one, count, used=None, gpu=0):
    return live_limits.resized(found, one, NODE.gpus, used or {}, memory={uuid(gpu): count})


def now(found, one, used=None):
    return live_limits.limits_now(found, NODE.gpus, used or {})[one.id][uuid(0)]


def test_growing_takes_what_is_free_and_counts_as_taken():
    one, other = named(1, (0, range(8))), named(2, (0, range(8, 16)))
    found = table(one, other)
    grown = grow(found, one, 16 * GIB)
    assert grown.quota() == {uuid(0): 16 * GIB} and grown.resizes == 1
    after = found.replaced([grown])
    assert after.occupants(NODE.gpus)[0].shares == (Share(uuid(0), 16),)
    assert now(after, grown) == (16 * GIB, 0)
    late = allocation(3, (0, range(16, 17)))
    (lack,) = start_decision.shortfall(after.with_allocation(late), late, node_state(NODE.gpus), {})
    assert lack.bytes == GIB


def test_a_refusal_names_what_is_free_and_who_has_the_rest():
    one, other = named(1, (0, range(8))), named(2, (0, range(8, 18)))
    refusal = grow(table(one, other), one, 15 * GIB)
    assert "7 GiB more" in refusal.detail and "6 GiB are free" in refusal.detail
    assert "default/p2/main has 10 GiB" in refusal.detail
    assert not refusal.mistake


def test_what_a_neighbour_uses_beyond_its_promise_is_not_free():
    one, other = named(1, (0, range(8))), named(2, (0, range(8, 12)))
    used = {other.id: {uuid(0): 10 * GIB}}
    assert isinstance(grow(table(one, other), one, 15 * GIB, used), live_limits.ResizeRefusal)
    assert "uses 10 GiB" in grow(table(one, other), one, 15 * GIB, used).detail
    assert isinstance(grow(table(one, other), one, 14 * GIB, used), Allocation)


def test_one_that_waits_behind_the_gate_keeps_its_place():
    one, waits = named(1, (0, range(8))), allocation(2, (0, range(8, 24)), waiting=True)
    assert isinstance(grow(table(one, waits), one, 9 * GIB), live_limits.ResizeRefusal)


@pytest.mark.parametrize(
    ("memory", "gpu", "words"),
    [(25 * GIB, 0, "24 GiB in all"), (0, 0, "1 MiB"), (GIB, 1, "has no slices of")],
)
def test_what_can_never_be_is_a_mistake(memory, gpu, words):
    one = named(1, (0, range(8)))
    refusal = grow(table(one), one, memory, gpu=gpu)
    assert refusal.mistake and words in refusal.detail


def test_sizes_are_rounded_up_to_whole_mebibytes():
    one = named(1, (0, range(8)))
    assert grow(table(one), one, 5 * GIB + 1).quota() == {uuid(0): 5 * GIB + live_limits.MIB}


def test_back_to_what_was_given_leaves_no_trace_but_the_count():
    one = named(1, (0, range(8)))
    grown = grow(table(one), one, 9 * GIB)
    back = grow(table(grown), grown, 8 * GIB)
    assert (back.limits, back.resizes) == ((), 2)
    assert grow(table(back), back, 8 * GIB) is back


def test_what_one_gave_up_another_may_have_and_no_device_is_withheld_for_it():
    one, other = named(1, (0, range(12))), named(2, (0, range(12, 24)))
    small = grow(table(one, other), one, 8 * GIB)
    found = table(small, other)
    large = grow(found, other, 16 * GIB)
    assert large.quota() == {uuid(0): 16 * GIB}
    assert withheld(table(small, large), NODE.gpus) == frozenset()


def test_parts_of_slices_do_not_keep_anybody_from_starting_again():
    one, other = named(1, (0, range(12))), named(2, (0, range(12, 24)))
    small = grow(table(one, other), one, 11 * GIB + GIB // 2)
    large = grow(table(small, other), other, 12 * GIB + GIB // 2)
    node = node_state(NODE.gpus)
    assert start_decision.shortfall(table(small, large), small, node, {}) == ()
    assert start_decision.shortfall(table(small, large), large, node, {}) == ()


def test_growth_withholds_as_many_free_device_ids_of_its_gpu_and_never_a_held_one():
    one = named(1, (0, range(8)))
    grown = grow(table(one), one, 12 * GIB)
    assert withheld(table(one), NODE.gpus) == frozenset()
    assert withheld(table(grown), NODE.gpus) == device_ids(0, 20, 21, 22, 23)
    last = allocation(2, (0, range(20, 24)))
    assert withheld(table(grown, last), NODE.gpus) == device_ids(0, 16, 17, 18, 19)


def test_growth_on_a_gpu_whose_device_ids_others_have_withholds_some_of_another_gpu():
    one = named(1, (0, range(8)))
    elsewhere = of_tokens(2, GpuTokens(uuid(1), tuple(device_ids(0, *range(8, 24)))))
    grown = grow(table(one, elsewhere), one, 24 * GIB)
    found = withheld(table(grown, elsewhere), NODE.gpus)
    assert found == device_ids(1, *range(8, 24)), "8 GiB of the other GPU is all that is left"


def test_shares_of_compute_add_up_to_a_gpu():
    policy = AllocationOptions(cores=60)
    one, other = named(1, (0, range(8))), named(2, (0, range(8, 16)), policy=policy)
    found = table(one, other)
    assert "40%" in live_limits.resized(found, one, NODE.gpus, {}, cores={uuid(0): 41}).detail
    changed = live_limits.resized(found, one, NODE.gpus, {}, cores={uuid(0): 40})
    assert now(table(changed, other), changed) == (8 * GIB, 40)
    free = live_limits.resized(found, other, NODE.gpus, {}, cores={uuid(0): 0})
    assert free.cores_of(uuid(0)) == 0


def test_an_elastic_container_has_the_gpu_while_it_is_alone():
    one = named(1, (0, range(8)), policy=ELASTIC)
    assert now(table(one), one) == (24 * GIB, 0)
    capped = replace(one, policy=replace(ELASTIC, max_slices=12))
    assert now(table(capped), capped) == (12 * GIB, 0)


@pytest.mark.parametrize(
    "neighbour",
    [
        allocation(2, (0, range(8, 9))),
        allocation(2, (0, range(8, 9)), waiting=True),
        allocation(2, (0, range(8, 9)), policy=ELASTIC),
    ],
)
def test_any_neighbour_makes_it_strict_again(neighbour):
    one = named(1, (0, range(8)), policy=ELASTIC)
    assert now(table(one, neighbour), one) == (8 * GIB, 30)


def test_one_who_has_gone_is_a_neighbour_as_long_as_its_processes_hold_memory():
    one, gone = named(1, (0, range(8)), policy=ELASTIC), allocation(2, (0, range(8, 12)), ended=True)
    assert now(table(one, gone), one, {gone.id: {uuid(0): 1}}) == (8 * GIB, 30)
    assert now(table(one, gone), one, {gone.id: {uuid(0): 0}}) == (24 * GIB, 0)


def test_an_init_container_that_has_lent_all_it_had_is_no_neighbour():
    init = allocation(1, (0, range(8)), lent=device_ids(0, *range(8)))
    one = named(2, (0, range(8)), policy=ELASTIC, supersedes=(init.id,))
    assert now(table(init, one), one) == (24 * GIB, 0)


@pytest.mark.parametrize("state", [{"waiting": True}, {"undecided": True}, {"ended": True}])
def test_nobody_is_given_more_before_it_starts_or_after_it_ended(state):
    one = named(1, (0, range(8)), policy=ELASTIC, **state)
    assert now(table(one), one) == (8 * GIB, 30)


def test_what_neither_kubelet_nor_scheduler_counts_is_withheld():
    """A pod deleted by force, whose devices the kubelet has given back, and whose processes hold on."""
    left = allocation(1, (0, range(6)), forgotten=True)
    other = allocation(2, (1, range(4)))
    gpus = inventory(2, 8).gpus
    assert withheld(table(left, other), gpus) == frozenset(), (
        "its pod's requests are the scheduler's to count"
    )
    found = withheld(table(left, other), gpus, uncounted={left.id})
    assert len(found) == 6 and all(device_id.startswith(uuid(0)) for device_id in found)
    late = allocation(3, (0, range(2)))
    again = withheld(table(left, other, late), gpus, uncounted={left.id})
    assert len(again) == 6 and not again & plugin(late).device_ids, "never what another container has"


class Kubelet:
    """Gives out free healthy device IDs of its choice, as a kubelet does, and takes them back."""

    def __init__(self):
        self.node = inventory(2, 8)
        self.table = AllocationTable()
        self.sizes = {}  # what each container was last told it may use, by id

    def step(self, action, who, size, pick):
        allocations = self.table.allocations
        if action == "allocate":
            taken = {device_id for one in allocations for device_id in held(one)}
            taken |= withheld(self.table, self.node.gpus)
            free = [device_id for device_id in all_device_ids(self.node) if device_id not in taken]
            gpu = uuid(pick % 2)
            room = 8 * GIB - sum(one.promised.get(gpu, 0) for one in allocations)
            count = min(size, len(free), room // GIB)
            if count > 0:
                policy = AllocationOptions(elastic=who % 2 == 0)
                chosen = tuple((free[pick % len(free) :] + free)[:count])
                made = of_tokens(self.table.next_number, GpuTokens(gpu, chosen), policy=policy)
                self.table = self.table.with_allocation(made)
                self.sizes[made.id] = count * GIB
        elif allocations and action == "release":
            gone = allocations[who % len(allocations)]
            self.table = self.table.without([gone.id])
            del self.sizes[gone.id]
        elif allocations:
            one = allocations[who % len(allocations)]
            (gpu,) = one.quota()
            asked = size * GIB // 2
            after = live_limits.resized(self.table, one, self.node.gpus, {}, memory={gpu: asked})
            if isinstance(after, Allocation):
                self.table = self.table.replaced([after])
                self.sizes[one.id] = asked


STEP = st.tuples(
    st.sampled_from(["allocate", "allocate", "resize", "resize", "release"]),
    st.integers(0, 9),
    st.integers(1, 18),
    st.integers(0, 15),
)


@given(st.lists(STEP, max_size=30))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_no_gpu_is_promised_twice_and_nobody_loses_anything(steps):
    kubelet = Kubelet()
    for step in steps:
        kubelet.step(*step)
        found, gpus = kubelet.table, kubelet.node.gpus
        assert {one.id: next(iter(one.quota().values())) for one in found.allocations} == kubelet.sizes
        limits = live_limits.limits_now(found, gpus, {})
        taken = {device_id for one in found.allocations for device_id in held(one)}
        hidden = withheld(found, gpus)
        assert not hidden & taken
        rooms = 0
        for gpu in gpus:
            of_gpu = [limits[one.id][gpu.uuid][0] for one in found.allocations if gpu.uuid in one.quota()]
            assert sum(of_gpu) <= 8 * GIB, "promised twice"
            promised = sum(one.promised.get(gpu.uuid, 0) for one in found.allocations)
            rooms += (8 * GIB - promised) // GIB
        offered = len(all_device_ids(kubelet.node)) - len(taken) - len(hidden)
        assert offered <= rooms or not hidden, "what the scheduler sees can be had"
        if any(
            next(iter(one.quota().values())) > len(plugin(one).device_ids) * GIB for one in found.allocations
        ):
            assert offered <= rooms


@pytest.mark.parametrize("alone, elastic, maximum, limit", [
    (True, True, None, 16), (True, True, 12, 12), (True, True, 99, 16), (False, True, 12, 4), (True, False, 12, 4),
])  # fmt: skip
def test_only_an_elastic_container_alone_on_its_gpu_may_grow(alone, elastic, maximum, limit):
    assert live_limits.limit_slices(4, 16, alone=alone, elastic=elastic, max_slices=maximum) == limit


def test_limits_are_per_gpu_in_bytes_and_lift_the_compute_share_too():
    options = AllocationOptions(elastic=True, max_slices=12, cores=30)
    both = named(1, (0, range(4)), (1, range(4)), policy=options)
    other = named(2, (1, range(4, 12)), policy=AllocationOptions(cores=50))
    assert live_limits.limits_now(table(both, other), NODE.gpus, {}) == {
        both.id: {uuid(0): (12 * GIB, 0), uuid(1): (4 * GIB, 30)},
        other.id: {uuid(1): (8 * GIB, 50)},
    }
