# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs and slices in one allocation table, without a kubelet."""

from dataclasses import replace

import pytest

from agent.deviceplugin import whole_gpu_rules
from agent.deviceplugin.device_allocator import tokens_of
from gigaslice.core.allocation import whole_gpus
from gigaslice.core.allocation.table import AllocationOptions
from gigaslice.core.deviceplugin.device_id import whole_gpu_device_id
from gigaslice.core.deviceplugin.origin import GpuTokens, plugin
from gigaslice.core.model import Placement, Share, Topology
from gigaslice.core.placement import Policy
from tests.fakes.nodes import GIB, allocation, device_ids, inventory, of_tokens, table, uuid


def given(number, *gpus, name=None, **more):
    """An allocation of whole GPUs; NAME: the device's GPU where that is another one."""
    tokens = [GpuTokens(uuid(n), (whole_gpu_device_id(uuid(n if name is None else name)),)) for n in gpus]
    policy = AllocationOptions(exclusive=True)
    return of_tokens(number, *tokens, slice_bytes=24 * GIB, whole=True, policy=policy, **more)


def chosen(found, gpus, *names):
    """The GPUs behind devices of these names."""
    choice = whole_gpus.choose(found, gpus, len(names), names)
    placement = Placement(tuple(Share(gpu.uuid, 1) for gpu in choice.gpus))
    return list(
        tokens_of([whole_gpu_device_id(name) for name in names], placement, whole=True)
    ), choice.waiting


def healthy(found, gpus=2, **more):
    listed = whole_gpu_rules.devices(found, inventory(gpus, **more).gpus)
    assert [one.id for one in listed] == [uuid(n) for n in range(gpus)]
    return [number for number, one in enumerate(listed) if one.healthy]


def withheld(found, gpus=2, **more):
    device_ids = whole_gpu_rules.slices_withheld(found, inventory(gpus, **more).gpus)
    return {n: sum(one.startswith(uuid(n) + "/") for one in device_ids) for n in range(gpus)}


def test_a_gpu_is_there_as_a_whole_while_nobody_has_a_slice_of_it():
    assert healthy(table()) == [0, 1]
    assert healthy(table(allocation(1, (0, range(1))))) == [1]
    assert healthy(table(allocation(1, (0, range(1)), ended=True))) == [0, 1]
    assert healthy(table(), unhealthy=(1,)) == [0]


def test_a_gpu_given_out_whole_stays_a_healthy_device():
    assert healthy(table(given(1, 0))) == [0, 1]
    assert healthy(table(given(1, 0)), unhealthy=(0,)) == [1]


def test_a_gpu_under_anothers_name_leaves_as_many_healthy_devices_as_free_gpus():
    """Device 0 is served by GPU 1, and GPU 0 is free: the only device left stands for it."""
    assert healthy(table(given(1, 1, name=0))) == [0, 1]
    assert healthy(table(given(1, 1, name=0), allocation(2, (0, range(3))))) == [0]


def test_a_gpu_given_out_whole_has_no_slices_left():
    found = table(given(1, 0))
    assert withheld(found) == {0: 24, 1: 0}
    assert [(one.shares[0].gpu, one.shares[0].slices) for one in found.occupants(inventory().gpus)] == [
        (uuid(0), 24)
    ]


def test_nothing_is_withheld_without_whole_gpus_or_after_them():
    assert withheld(table(allocation(1, (0, range(8))))) == {0: 0, 1: 0}
    assert withheld(table(given(1, 0, ended=True))) == {0: 0, 1: 0}


def test_device_ids_that_somebody_has_are_never_withheld():
    """A container on GPU 1 has 8 device IDs named after GPU 0, which is given out whole: 8 of 1 go in their place."""
    astray = of_tokens(1, GpuTokens(uuid(1), tuple(sorted(device_ids(0, *range(8))))))
    found = table(astray, given(2, 0))
    assert withheld(found) == {0: 16, 1: 8}
    assert not whole_gpu_rules.slices_withheld(found, inventory().gpus) & plugin(astray).device_ids


def test_the_slices_of_an_unhealthy_gpu_need_not_be_withheld():
    assert withheld(table(given(1, 0)), unhealthy=(0,)) == {0: 0, 1: 0}


def test_the_named_gpus_are_given_when_they_are_free():
    assert chosen(table(allocation(1, (0, range(4)))), inventory(4).gpus, uuid(3), uuid(1)) == (
        [
            GpuTokens(uuid(1), (whole_gpu_device_id(uuid(1)),)),
            GpuTokens(uuid(3), (whole_gpu_device_id(uuid(3)),)),
        ],
        False,
    )


def test_another_free_gpu_is_given_when_the_named_one_has_just_lost_slices():
    assert chosen(table(allocation(1, (0, range(4)))), inventory().gpus, uuid(0)) == (
        [GpuTokens(uuid(1), (whole_gpu_device_id(uuid(0)),))],
        False,
    )


def test_the_least_used_gpu_is_waited_for_when_none_is_free():
    found = table(allocation(1, (0, range(4))), allocation(2, (1, range(20))))
    assert whole_gpus.choose(found, inventory(numa=(0,)).gpus, 0) is None
    tokens, waiting = chosen(found, inventory(3, unhealthy=(2,), numa=(0,)).gpus, uuid(2))
    assert ([gpu_tokens.gpu for gpu_tokens in tokens], waiting) == ([uuid(0)], True)


def test_in_the_place_of_a_busy_gpu_comes_one_near_the_other_that_was_named():
    found = table(allocation(1, (2, range(1))))
    choice = whole_gpus.choose(found, inventory(4, numa=(0, 1, 1, 1)).gpus, 2, [uuid(1), uuid(2)])
    assert ([gpu.uuid for gpu in choice.gpus], choice.waiting) == ([uuid(1), uuid(3)], False)


def test_more_gpus_than_there_are_cannot_be_had():
    assert whole_gpus.choose(table(), inventory().gpus, 3) is None


@pytest.mark.parametrize("fixed", [(), (2,)])
def test_gpus_that_are_well_linked_are_preferred(fixed):
    """Four GPUs, linked in pairs 0-1 and 2-3; a container has slices of 0."""
    found = inventory(4, numa=(0,))
    levels = [[0 if i == j else 10 if i // 2 == j // 2 else 50 for j in range(4)] for i in range(4)]
    linked = replace(found, topology=Topology.build(levels))
    names = [uuid(n) for n in range(4)]
    chosen = whole_gpu_rules.prefer(
        table(allocation(1, (0, range(1)))),
        linked,
        Policy.GAIA,
        names,
        must_include=[uuid(n) for n in fixed],
        size=2,
    )
    assert set(chosen) == {uuid(2), uuid(3)}


def test_a_preference_is_filled_up_from_what_there_is():
    names = [uuid(n) for n in range(2)]
    assert whole_gpu_rules.prefer(table(given(1, 0)), inventory(), Policy.GAIA, names, size=2) == (
        uuid(1),
        uuid(0),
    )
