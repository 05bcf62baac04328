# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationOptions, LiveLimit
from gigaslice.core.errors import StateError
from gigaslice.core.model import Share
from tests.fakes.nodes import GIB, allocation, inventory, table, uuid

APP = ContainerRef("default", "p", "main")


def test_numbers_go_up_and_are_never_used_twice():
    made = table(allocation(1, (0, range(2))), allocation(7, (0, range(2, 4))))
    assert made.next_number == 8
    assert made.without([made.allocations[1].id]).next_number == 8


def test_an_id_twice_is_a_contradiction():
    with pytest.raises(StateError):
        table(allocation(1, (0, range(2))), allocation(1, (0, range(2))))


def test_a_changed_slice_size_counts_old_holds_rounded_up():
    old = allocation(1, (0, range(3)))
    (gpu,) = inventory(1).gpus
    (occupant,) = table(old).occupants([replace(gpu, slice_bytes=2 * GIB, slices=12)])
    assert occupant.shares == (Share(uuid(0), 2),)


@pytest.mark.parametrize(
    ("ended", "lent", "keeps"),
    [(False, 0, True), (False, 1, True), (False, 2, False), (True, 0, False), (True, 2, False)],
)
def test_what_is_over_or_has_lent_everything_keeps_nothing(ended, lent, keeps):
    made = allocation(1, (0, range(2)), ended=ended)
    assert replace(made, holds=(replace(made.holds[0], lent_bytes=lent * GIB),)).keeps is keeps


@pytest.mark.parametrize(
    ("policy", "limits", "share"),
    [
        ({}, (), Share(uuid(0), 4)),
        ({"cores": 30}, (), Share(uuid(0), 4, 30)),
        ({}, (LiveLimit(uuid(0), cores=20),), Share(uuid(0), 4, 20)),
        ({"cores": 30}, (LiveLimit(uuid(0), cores=20),), Share(uuid(0), 4, 20)),
        ({"exclusive": True}, (), Share(uuid(0), 24, 100)),
    ],
)
def test_what_counts_is_what_was_asked_for_and_changed_since(policy, limits, share):
    held = allocation(1, (0, range(4)), policy=AllocationOptions(**policy), limits=limits)
    (occupant,) = table(held).occupants(inventory().gpus)
    assert occupant.shares == (share,)
