# SPDX-License-Identifier: Apache-2.0
"""What the init containers of a pod count for: as the scheduler counts it, whichever of them has the device IDs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.persistence.recovery import recover
from agent.roles.records import CODEC
from gigaslice.core.allocation import start_decision
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.pod_holdings import ContainerTraits, shares_of
from gigaslice.core.deviceplugin.handing_out import with_handed_out
from gigaslice.core.deviceplugin.origin import GpuTokens, Owner, kept, plugin
from gigaslice.core.deviceplugin.pod_peak import with_peak, with_peaks, without_peak
from gigaslice.core.deviceplugin.withheld import withheld
from gigaslice.core.model import ContainerKind, Share
from tests.fakes.gpus import node_state
from tests.fakes.nodes import GIB, allocation, device_ids, inventory, of_tokens, uuid

GPUS = inventory(2, 24).gpus


def owner(name="c", *, init=False, pod="u"):
    return Owner(pod, "default", "p", name, init)


def lent_to_another_gpu(**more):
    """An init container with 8 GiB of the first GPU, whose device IDs a main container on the second has."""
    init = allocation(1, (0, range(8)), owner=owner("i", init=True), lent=device_ids(0, *range(8)), **more)
    tokens = GpuTokens(uuid(1), tuple(sorted(device_ids(0, *range(8)))))
    main = of_tokens(2, tokens, owner=owner(), supersedes=(init.id,))
    return AllocationTable((init, main), 3)


def promised(table):
    found = {}
    for one in table.allocations:
        for gpu, count in one.promised.items():
            found[gpu] = found.get(gpu, 0) + count // GIB
    return found


def test_the_gpu_of_an_init_container_counts_where_no_later_one_has_it():
    table = lent_to_another_gpu()
    assert promised(table) == {uuid(1): 8}
    table = with_peak(table, "u")
    assert promised(table) == {uuid(0): 8, uuid(1): 8}
    assert [kept(one) == frozenset() for one in table.allocations] == [True, False], (
        "the kubelet's count is as it was"
    )
    assert with_peak(table, "u") == table == with_peaks(table)
    assert promised(without_peak(table, "u")) == {uuid(1): 8}
    assert with_peak(table, "another") is table


def test_another_pod_waits_for_it_and_its_own_does_not():
    table = with_peak(lent_to_another_gpu(), "u")
    other = allocation(3, (0, range(8, 24)))
    late = allocation(4, (1, range(24)))
    table = table.with_allocation(other).with_allocation(late)
    node = node_state(GPUS)
    init, main, *_ = table.allocations

    def lacking(one):
        return {lack.gpu: lack.bytes // GIB for lack in start_decision.shortfall(table, one, node, {})}

    assert lacking(other) == {}
    assert lacking(replace(other, holds=allocation(3, (0, range(24))).holds)) == {uuid(0): 8}
    without = table.without([late.id])
    assert not start_decision.shortfall(without, init, node, {})
    assert not start_decision.shortfall(without, main, node, {})
    missing = start_decision.shortfall(table, late, node, {})
    assert "ended" not in start_decision.describe(missing, table, late, {})


def test_main_containers_do_not_hold_up_an_init_container_that_starts_again():
    """The first main container has its device IDs on another GPU, and the second one has others on its own."""
    table = lent_to_another_gpu()
    second = allocation(3, (0, range(8, 16)), owner=owner("d"))
    table = with_peak(table.with_allocation(second), "u")
    assert promised(table) == {uuid(0): 8, uuid(1): 8}
    small = node_state(inventory(2, 8).gpus)
    for one in table.allocations:
        assert not start_decision.shortfall(table, one, small, {}), plugin(one).owner


def test_the_kubelet_is_not_offered_what_its_count_leaves_out():
    table = with_peak(lent_to_another_gpu(), "u")
    assert withheld(table, GPUS) == device_ids(1, *range(16, 24))
    assert withheld(lent_to_another_gpu(), GPUS) == frozenset()


def test_it_is_kept_in_the_checkpoint_and_made_again_from_directories():
    table = with_peak(lent_to_another_gpu(), "u")
    assert CODEC.decode_table(CODEC.encode_table(table)) == table
    plain = {one.id: one for one in lent_to_another_gpu().allocations}
    assert promised(recover(CODEC, AllocationTable(), plain).table) == {uuid(0): 8, uuid(1): 8}
    assert promised(recover(CODEC, lent_to_another_gpu(), {}).table) == {uuid(0): 8, uuid(1): 8}


def test_a_pod_that_is_gone_counts_for_nothing():
    table = with_peak(lent_to_another_gpu(), "u")
    assert promised(table.with_ended([one.id for one in table.allocations])) == {}


kinds = st.sampled_from(list(ContainerKind))
sizes = st.dictionaries(st.integers(0, 2), st.integers(1, 4), min_size=1, max_size=2)


@pytest.mark.parametrize("remade", [False, True])
@given(st.lists(st.tuples(kinds, sizes), min_size=1, max_size=5))
def test_a_pod_counts_as_the_scheduler_counts_it(remade, containers):
    """The kubelet hands the device IDs of init containers to later ones first, whatever GPUs are behind them."""
    containers = sorted(containers, key=lambda one: one[0] is ContainerKind.APP)
    fresh = (f"{uuid(0)}/{number}" for number in range(1000))
    reusable: list[str] = []
    table, named, traits = AllocationTable(), {}, []
    for number, (kind, shares) in enumerate(containers):
        count = sum(shares.values())
        taken = reusable[:count] + [next(fresh) for _ in range(count - len(reusable[:count]))]
        reusable = [one for one in reusable if one not in taken]
        init = kind is ContainerKind.INIT
        table, _ = with_handed_out(without_peak(table, "u"), taken, pod="u")
        left = iter(taken)
        tokens = [
            GpuTokens(uuid(gpu), tuple(next(left) for _ in range(size))) for gpu, size in shares.items()
        ]
        one = of_tokens(number + 1, *tokens, owner=owner(f"c{number}", init=init))
        table = with_peak(table.with_allocation(one), "u")
        if init:
            reusable += taken
        named[f"c{number}"] = tuple(Share(uuid(gpu), size) for gpu, size in shares.items())
        traits.append(ContainerTraits(f"c{number}", kind, exclusive=False, host=False))
    if remade:
        table = with_peaks(without_peak(table, "u"))
    scheduler = {one.gpu: one.slices for one in shares_of(Assignment(named), tuple(traits))}
    assert promised(table) == scheduler
