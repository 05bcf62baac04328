# SPDX-License-Identifier: Apache-2.0
"""What the kubelet is shown of the slices, for each of the reasons to take some off."""

from dataclasses import replace

import pytest

from agent.deviceplugin.device_list import DeviceList, DevicesOfType
from agent.inventory.holder import InventoryHolder
from gigaslice.core.model import Topology
from tests.fakes.nodes import all_device_ids, device_ids, inventory, uuid

FOUND = inventory(2, 3)


@pytest.fixture
def changes():
    return []


@pytest.fixture
def devices(changes):
    made = DeviceList(InventoryHolder(FOUND))
    made.watch(lambda: changes.append(1))
    return made


def unhealthy(devices):
    return {one.id for one in devices.devices() if not one.healthy}


def test_reasons_to_withhold_add_up_and_end_one_by_one(devices, changes):
    assert [one.id for one in devices.devices()] == all_device_ids(FOUND)
    assert unhealthy(devices) == set()
    devices.withhold(device_ids(0, 1))
    devices.set_taken_whole(device_ids(1, 2))
    assert unhealthy(devices) == device_ids(0, 1) | device_ids(1, 2)
    devices.withhold(frozenset())
    assert unhealthy(devices) == device_ids(1, 2)
    assert len(changes) == 3


def test_the_same_again_is_no_change(devices, changes):
    for _ in range(3):
        devices.withhold(device_ids(0, 1))
        devices.set_taken_whole(device_ids(1, 2))
    assert len(changes) == 2


def test_nothing_can_be_had_while_nothing_can_be_recorded(devices, changes):
    devices.withdraw("state directory", True)
    assert unhealthy(devices) == set(all_device_ids(FOUND))
    devices.withdraw("state directory", False)
    assert unhealthy(devices) == set()
    assert len(changes) == 2


def test_a_change_of_the_gpus_is_one_of_the_list(changes):
    gpus = InventoryHolder(FOUND)
    devices = DeviceList(gpus)
    unwatch = devices.watch(lambda: changes.append(1))
    gpus.replace(inventory(2, 3, unhealthy=(1,)))
    assert unhealthy(devices) == device_ids(1, 0, 1, 2)
    assert not gpus.now.gpus[1].healthy and gpus.now.gpus[1].uuid == uuid(1)
    unwatch()
    gpus.replace(FOUND)
    assert len(changes) == 1


def test_of_several_types_each_resource_has_its_own_slices_and_hears_of_changes(devices):
    second = FOUND.gpus[1:]
    of_type = DevicesOfType(devices, InventoryHolder(replace(FOUND, gpus=second, topology=Topology.flat(1))))
    assert {one.id for one in of_type.devices()} == device_ids(1, 0, 1, 2)
    heard = []
    end = of_type.watch(lambda: heard.append(len(of_type.devices())))
    devices.withhold(device_ids(1, 0))
    assert heard == [3] and [one.healthy for one in of_type.devices()] == [False, True, True]
    end()
    devices.withhold(frozenset())
    assert heard == [3]
