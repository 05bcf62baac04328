# SPDX-License-Identifier: Apache-2.0
"""The slices as the kubelet is shown them: one device each, with its GPU's health and NUMA node.

It follows the GPUs. Several parts of the agent besides can take slices off what the scheduler sees as allocatable, each
for its own reason. They meet here, and a change of any of them is one change of the list.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.inventory.holder import GpusNow, InventoryHolder
from agent.inventory.source import Inventory
from agent.providers.resource import Device
from gigaslice.core.deviceplugin.device_id import gpu_device_ids

__all__ = ["DeviceList", "DevicesOfType", "slice_devices"]


def slice_devices(inventory: Inventory, withheld: frozenset[str] = frozenset()) -> tuple[Device, ...]:
    """Returns every slice of every GPU as a device.

    Args:
        inventory: The GPUs.
        withheld: Device IDs that no container holds and none can get now. They are shown as unhealthy, which takes
            them off what the scheduler sees as allocatable.
    """
    return tuple(
        Device(device_id, gpu.healthy and device_id not in withheld, gpu.numa_node)
        for gpu in inventory.gpus
        for device_id in gpu_device_ids(gpu)
    )


class DevicesOfType:
    """Those slices of a list that are of one type of GPU."""

    def __init__(self, devices: DeviceList, gpus: GpusNow) -> None:
        """Args: devices: All slices. gpus: The GPUs of the type."""
        self._devices = devices
        self._gpus = gpus

    def devices(self) -> tuple[Device, ...]:
        """Returns every slice of every GPU of the type."""
        names = set(self._gpus.now.uuids)
        return tuple(device for device in self._devices.devices() if device.id.rpartition("/")[0] in names)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Has a function called at every change of the list. Returns a function that ends this."""
        return self._devices.watch(changed)


class DeviceList:
    """The present list of slices."""

    def __init__(self, gpus: InventoryHolder) -> None:
        self._gpus = gpus
        self._withheld: frozenset[str] = frozenset()
        self._taken_whole: frozenset[str] = frozenset()
        self._withdrawn: set[str] = set()
        self._watchers: list[Callable[[], None]] = []
        gpus.watch(self._changed)

    def devices(self) -> tuple[Device, ...]:
        """Returns every slice of every GPU."""
        inventory = self._gpus.now
        withheld = self._withheld | self._taken_whole
        if self._withdrawn:
            withheld = frozenset(device_id for gpu in inventory.gpus for device_id in gpu_device_ids(gpu))
        return slice_devices(inventory, withheld)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Has a function called at every change. Returns a function that ends this."""
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    def withhold(self, device_ids: frozenset[str]) -> None:
        """Shows exactly these slices as not to be had, whatever the health of their GPUs: limits have taken them."""
        if device_ids != self._withheld:
            self._withheld = device_ids
            self._changed()

    def set_taken_whole(self, device_ids: frozenset[str]) -> None:
        """Shows exactly these free slices as not to be had besides: their GPUs are given out whole."""
        if device_ids != self._taken_whole:
            self._taken_whole = device_ids
            self._changed()

    def withdraw(self, reason: str, withdrawn: bool) -> None:
        """Shows every slice as not to be had for as long as any REASON is WITHDRAWN: nothing can be given out now.

        That includes slices of running containers: the scheduler learns that they are free before the agent does.
        """
        before = set(self._withdrawn)
        (self._withdrawn.add if withdrawn else self._withdrawn.discard)(reason)
        if self._withdrawn != before:
            self._changed()

    def _changed(self) -> None:
        for changed in self._watchers:
            changed()
