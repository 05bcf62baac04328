# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from agent.inventory.source import Inventory, merge
from gigaslice.core.model import Topology
from tests.fakes.nodes import inventory, uuid


def only(found, *gpus):
    return Inventory(tuple(found.gpus[gpu] for gpu in gpus), Topology.flat(len(gpus)))


def test_an_unchanged_node_stays_as_it_is():
    assert merge(inventory(), inventory()) == inventory()


def test_a_lost_gpu_stays_in_its_place_and_is_unhealthy():
    before = inventory(3)
    now = merge(before, only(before, 0, 2))
    assert now.uuids == before.uuids
    assert [gpu.healthy for gpu in now.gpus] == [True, False, True]
    assert now.topology == before.topology
    assert any(uuid(1) in sentence for sentence in now.warnings)


def test_it_is_well_again_when_it_is_back():
    before = inventory(3)
    lost = merge(before, only(before, 0, 2))
    assert merge(lost, inventory(3)) == inventory(3)


def test_indices_of_the_others_do_not_move():
    before = inventory(2)
    renumbered = Inventory((replace(before.gpus[1], index=0),), Topology.flat(1))
    assert [gpu.index for gpu in merge(before, renumbered).gpus] == [0, 1]


def test_a_new_gpu_is_added():
    assert merge(inventory(1), inventory(2)) == inventory(2)


def test_a_new_gpu_waits_while_another_is_lost():
    before = only(inventory(3), 0, 1)
    now = merge(before, only(inventory(3), 1, 2))
    assert now.uuids == before.uuids
    assert any(uuid(2) in sentence and "new" in sentence for sentence in now.warnings)
