# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.deviceplugin.handing_out import with_handed_out
from gigaslice.core.deviceplugin.lending_by_gpu import served_by_gpu
from gigaslice.core.deviceplugin.origin import Owner, kept, plugin
from gigaslice.core.model import Share
from tests.fakes.nodes import GIB, allocation, device_ids, uuid

INIT = Owner("u", "default", "p", "i0", init=True)


def lender(*held, **more):
    return AllocationTable((allocation(1, *held, owner=INIT, **more),), 2)


def counts(table):
    (one,) = table.allocations
    counted = {tokens.gpu: len(kept(one).intersection(tokens.device_ids)) for tokens in plugin(one).tokens}
    assert counted == {hold.gpu: hold.kept_bytes // GIB for hold in one.holds}
    return counted


def lent(table, taken, *shares):
    (one,) = table.allocations
    served = served_by_gpu(table, {one.id}, taken, shares)
    after, lenders = with_handed_out(served, taken, pod="u")
    assert lenders == (one.id,)
    assert served.allocations[0].quota() == one.quota()
    assert plugin(served.allocations[0]).device_ids == plugin(one).device_ids
    return counts(after)


def test_what_is_lent_is_lent_of_the_borrowers_gpu_whatever_its_name():
    table = lender((0, range(2)), (1, range(2)))
    taken = device_ids(1, 0, 1)
    assert lent(table, taken, Share(uuid(0), 2)) == {uuid(0): 0, uuid(1): 2}
    assert lent(table, taken, Share(uuid(1), 2)) == {uuid(0): 2, uuid(1): 0}
    assert lent(table, taken, Share(uuid(0), 1), Share(uuid(1), 1)) == {uuid(0): 1, uuid(1): 1}


def test_what_the_borrower_has_elsewhere_is_lent_of_any():
    assert sum(lent(lender((0, range(4))), device_ids(0, 1, 2, 3), Share(uuid(1), 3)).values()) == 1


def test_what_was_lent_before_stays_as_it_is():
    table = lender((0, range(2)), (1, range(2)), lent=device_ids(0, 0))
    assert lent(table, device_ids(1, 0), Share(uuid(0), 1)) == {uuid(0): 0, uuid(1): 2}


def test_others_are_left_alone():
    table = lender((0, range(2)), (1, range(2)))
    assert served_by_gpu(table, (), device_ids(0, 0), (Share(uuid(1), 1),)) is table


@given(
    st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any),
    st.lists(st.integers(0, 6), min_size=3, max_size=3),
    st.randoms(use_true_random=False),
)
def test_no_gpu_counts_more_than_the_larger_of_lender_and_borrower(has, wants, random):
    table = lender(*((gpu, range(count)) for gpu, count in enumerate(has) if count))
    all_ids = sorted(plugin(table.allocations[0]).device_ids)
    taken = frozenset(random.sample(all_ids, min(len(all_ids), sum(wants))))
    if not taken:
        return
    shares = tuple(Share(uuid(gpu), count) for gpu, count in enumerate(wants) if count)
    left = lent(table, taken, *shares)
    for gpu, count in enumerate(has):
        assert left.get(uuid(gpu), 0) + wants[gpu] <= max(count, wants[gpu])
    assert sum(left.values()) == len(all_ids) - len(taken)
