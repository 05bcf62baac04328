# SPDX-License-Identifier: Apache-2.0
"""Device ids as the kubelet sees them: "<GPU uuid>/<n>", one per slice.

The uuid lets an id outlive restarts and says which NUMA node it is near; it does not bind a slice to that
GPU, since the kubelet picks ids at random when it has no preference. Parsing is strict: an id comes back
from a peer's disk.
"""

from dataclasses import dataclass
from functools import lru_cache

from gigaslice.core.errors import DeviceIdError
from gigaslice.core.model.gpu import Gpu


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """A device ID in parts; device IDs of one GPU sort by number, not as text."""

    uuid: str
    number: int


def format_device_id(uuid: str, number: int) -> str:
    """Return the device ID of slice `number` of a GPU."""
    return f"{uuid}/{number}"


@lru_cache(maxsize=1 << 15)
def parse_device_id(text: str) -> DeviceId:
    """Return the parts of a device ID; DeviceIdError unless it is exactly what `format_device_id` writes.

    Cached: the kubelet sends the same thousand ids with every call.
    """
    uuid, _, number = text.rpartition("/")
    if not uuid or not (number.isascii() and number.isdigit()) or str(int(number)) != number:
        raise DeviceIdError(f'device ID {text!r} is not "<GPU uuid>/<number>", such as "GPU-6e1b/17"')
    return DeviceId(uuid, int(number))


def gpu_device_ids(gpu: Gpu) -> tuple[str, ...]:
    """Return the device IDs of all slices of a GPU, in order."""
    return tuple(format_device_id(gpu.uuid, number) for number in range(gpu.slices))


_WHOLE = "whole:"


def whole_gpu_device_id(uuid: str) -> str:
    """Return the allocation table's device ID for a device of the resource of whole GPUs; never that of a slice."""
    return _WHOLE + uuid


def whole_gpu(device_id: str) -> str:
    """Return the GPU's UUID in such a device ID; empty for a slice."""
    return device_id.removeprefix(_WHOLE) if device_id.startswith(_WHOLE) else ""


def gpu_name(device_id: str) -> str:
    """Return the UUID of the GPU that a slice's device ID is named after; empty where it is none of this agent's."""
    try:
        return parse_device_id(device_id).uuid
    except DeviceIdError:
        return ""


def device_order(device_id: str) -> tuple[str, int, str]:
    """Return the place of a device ID among others: the GPU that it is named after first, then its number."""
    try:
        parsed = parse_device_id(device_id)
    except DeviceIdError:
        return device_id, 0, device_id
    return parsed.uuid, parsed.number, device_id
