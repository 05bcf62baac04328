# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from gigaslice.core.allocation import start_decision
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationOptions
from gigaslice.core.deviceplugin.origin import Owner
from gigaslice.core.model import Share
from gigaslice.core.placement import Missing
from tests.fakes.gpus import make_gpu, node_state
from tests.fakes.nodes import GIB, allocation, device_ids, inventory, table, uuid


def node(**more):
    found = inventory(**more)
    return node_state(found.gpus)


def lacking(found, one, used=None, **more):
    return {lack.gpu: lack.bytes for lack in start_decision.shortfall(found, one, node(**more), used or {})}


def test_an_empty_gpu_lets_pass():
    one = allocation(1, (0, range(24)))
    assert lacking(table(one), one) == {}


def test_neighbours_count_with_what_they_were_promised():
    first, second = allocation(1, (0, range(20))), allocation(2, (0, range(16, 24)))
    assert lacking(table(first, second), second) == {uuid(0): 4 * GIB}
    assert lacking(table(first, second), second, {first.id: {uuid(0): GIB}}) == {uuid(0): 4 * GIB}


def test_a_neighbour_on_another_gpu_does_not_count():
    first, second = allocation(1, (1, range(20))), allocation(2, (0, range(24)))
    assert lacking(table(first, second), second) == {}


def test_one_whose_device_ids_were_taken_back_counts_with_what_it_still_uses():
    gone, second = allocation(1, (0, range(20)), ended=True), allocation(2, (0, range(24)))
    assert lacking(table(gone, second), second) == {}
    assert lacking(table(gone, second), second, {gone.id: {uuid(0): 3 * GIB}}) == {uuid(0): 3 * GIB}
    small = allocation(3, (0, range(8)))
    assert lacking(table(gone, small), small, {gone.id: {uuid(0): 3 * GIB}}) == {}


def test_of_two_that_wait_the_first_passes_first():
    holder = allocation(1, (0, range(10)))
    first, second = (
        allocation(2, (0, range(10, 22)), waiting=True),
        allocation(3, (0, range(20, 24)), (1, range(2)), waiting=True),
    )
    found = table(holder, first, second)
    assert lacking(found, first) == {}
    assert lacking(found, second) == {uuid(0): 2 * GIB}
    assert lacking(table(first, second), second) == {}


def test_an_init_container_that_starts_again_is_not_held_up_by_its_own_pod():
    init = allocation(1, (0, range(24)), lent=device_ids(0, *range(24)))
    app = allocation(2, (0, range(24)), supersedes=(init.id,))
    found = table(init, app)
    assert lacking(found, init) == {}
    assert lacking(found, app) == {}
    assert lacking(found, app, {init.id: {uuid(0): GIB}}) == {uuid(0): GIB}


def of_pod(number, slices, cores=0, *, exclusive=False, pod="u", **more):
    policy = AllocationOptions(cores=cores, exclusive=exclusive)
    owner = Owner(pod, "default", pod, f"c{number}")
    return allocation(number, (0, range(slices)), owner=owner, policy=policy, **more)


@pytest.mark.parametrize("first, second, lack", [
    ((12, 60), (12, 40), (0, 0)), ((12, 60), (12, 60), (0, 20)), ((16, 0), (9, 0), (GIB, 0)),
    ((12, 0), (12, 100), (0, 0)), ((12, 1), (12, 100), (0, 1)),
])  # fmt: skip
def test_a_gpu_of_a_pods_own_holds_its_containers_together(first, second, lack):
    beside = of_pod(1, *first)
    alone = of_pod(2, *second, exclusive=True, waiting=True)
    missing = start_decision.shortfall(table(beside, alone), alone, node(), {})
    assert [(one.bytes, one.cores) for one in missing] == ([lack] if any(lack) else [])
    started = replace(alone, waiting=False)
    assert start_decision.shortfall(table(beside, started), started, node(), {}) == ()
    stranger = of_pod(3, 1, pod="other")
    (missing,) = start_decision.shortfall(table(alone, stranger), alone, node(), {})
    assert missing.bytes == GIB


def test_an_unhealthy_or_vanished_gpu_holds_back():
    one = allocation(1, (0, range(8)), (3, range(2)))
    missing = start_decision.shortfall(table(one), one, node(unhealthy=(0,)), {})
    assert {lack.gpu: lack.unhealthy for lack in missing} == {uuid(0): True, uuid(3): True}
    assert "not healthy" in start_decision.describe(missing, table(one), one, {})


def test_the_sentence_names_what_is_waited_for_and_who_has_it():
    gone = allocation(1, (0, range(20)), ended=True, container=ContainerRef("default", "old", "main"))
    holder = allocation(2, (0, range(4)), container=ContainerRef("default", "other", "main"))
    elsewhere = allocation(3, (1, range(4)), container=ContainerRef("default", "far", "main"))
    one = allocation(4, (0, range(4, 24)))
    found, used = table(gone, holder, elsewhere, one), {gone.id: {uuid(0): 3 * GIB}}
    text = start_decision.describe(start_decision.shortfall(found, one, node(), used), found, one, used)
    assert f"3 GiB of {uuid(0)}" in text
    assert "default/old/main (ended, its processes still hold 3 GiB)" in text
    assert "default/other/main (4 GiB)" in text
    assert "far" not in text
    assert "\n" not in text


def two_gpus():
    return node(gpus=2, slices=16)


def test_measured_bytes_count_on_every_gpu():
    shares = (Share(uuid(0), 8), Share(uuid(1), 4))
    start = start_decision.start_shortfall
    assert start(two_gpus(), shares, {}) == ()
    assert start(two_gpus(), shares, {uuid(0): 8 * GIB, uuid(1): 12 * GIB}) == ()
    assert start(two_gpus(), shares, {uuid(0): 8 * GIB + 1, uuid(1): 16 * GIB}) == (
        Missing(uuid(0), 1, 1),
        Missing(uuid(1), 4, 4 * GIB),
    )


def test_host_memory_lent_to_a_gpu_is_room():
    lent = node_state([make_gpu(slices=24, host_bytes=8 * GIB)])
    assert start_decision.start_shortfall(lent, [Share(uuid(0), 10)], {uuid(0): 14 * GIB}) == ()


def test_an_unhealthy_or_vanished_gpu_is_always_missing():
    shares = [Share(uuid(0), 8)]
    unhealthy = two_gpus().with_health(uuid(0), healthy=False)
    assert start_decision.start_shortfall(unhealthy, shares, {}) == (Missing(uuid(0), 0, 0, unhealthy=True),)
    gone = node_state(two_gpus().gpus[1:])
    assert start_decision.start_shortfall(gone, shares, {}) == (Missing(uuid(0), 8, 0, unhealthy=True),)


def lacking_in_slices_of(gib, found, one):
    """The same where the agent was started again with another size of slices."""
    gpus = [make_gpu(0, 24 // gib, slice_bytes=gib * GIB, memory_bytes=24 * GIB + GIB // 2)]
    return {lack.gpu: lack.bytes for lack in start_decision.shortfall(found, one, node_state(gpus), {})}


def test_a_container_starts_again_though_slices_have_become_larger():
    one = allocation(1, (0, range(23)))
    assert lacking_in_slices_of(16, table(one), one) == {}, "8 GiB of the GPU are in no slice"
    small, large = allocation(1, (0, range(7))), allocation(2, (0, range(7, 24)))
    assert lacking_in_slices_of(8, table(small, large), small) == {}, "rounded up they are 8 and 24 GiB"
    assert lacking_in_slices_of(16, table(small, large), large) == {}


@pytest.mark.parametrize("gib", [1, 8, 16])
def test_what_is_really_missing_is_missing_in_slices_of_any_size(gib):
    one, other = allocation(1, (0, range(7))), allocation(2, (0, range(6, 24)))
    assert lacking_in_slices_of(gib, table(one, other), one) == {uuid(0): GIB}
