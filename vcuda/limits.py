# SPDX-License-Identifier: Apache-2.0
"""Limits pages: what a container or command may use of each GPU. Created here, mapped read-only by its processes.

A page appears complete or not at all, and a live change is one atomic store that every process sees;
``native/shm/limits.c`` does both. This module converts its structures to frozen values and its statuses to exceptions.
It keeps no state between calls.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from vcuda import errors, sizes
from vcuda._bridge import checked, ffi, lib, path_bytes

__all__ = [
    "GpuLimit",
    "LimitsPage",
    "create_limits",
    "fill_limits",
    "read_limits",
    "reserve_limits",
    "set_allowed",
    "set_compute_policy",
    "set_cores_limit",
    "set_credit",
    "set_memory_limit",
    "set_physical_limit",
    "set_time_slice",
    "set_undeclared",
]

StrPath: TypeAlias = "str | os.PathLike[str]"


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """What one container or command may use of one GPU.

    Attributes:
        uuid: The GPU.
        memory_bytes: The memory quota.
        cores_percent: Percent of the GPU's time; 0: all of it.
        undeclared_bytes: What the agent has measured with NVML beyond the ledger; it counts as used.
        physical_bytes: The part of the quota in the GPU's own memory, the rest is in the host's; 0: all of it.
        compute_policy: VC_COMPUTE_ELASTIC and a weight, as in shm_api.h.
        allowed_permille: The share of the GPU's time that the arbiter allows now. Read only.
        credit_us: The time that the arbiter has given back so far. Read only.
    """

    uuid: str
    memory_bytes: int
    cores_percent: int = 0
    undeclared_bytes: int = 0
    physical_bytes: int = 0
    compute_policy: int = 0
    allowed_permille: int = 0
    credit_us: int = 0


@dataclass(frozen=True, slots=True)
class LimitsPage:
    """A page as read: format version, allocation, number of live changes since it was created, GPUs in order."""

    version: int
    allocation_id: bytes
    changes: int
    gpus: tuple[GpuLimit, ...]


def pack_gpus(gpus: Sequence[GpuLimit]) -> Any:
    """GPUS as the C array for limits_create and ledger_create."""
    if not 1 <= len(gpus) <= lib.VC_MAX_GPUS:
        raise errors.InvalidArgumentError(f"{len(gpus)} GPUs", f"a page holds 1 to {lib.VC_MAX_GPUS} of them")
    array = ffi.new("struct vc_gpu_limit[]", len(gpus))
    for item, gpu in zip(array, gpus, strict=True):
        raw, flags = sizes.parse_uuid(gpu.uuid)
        item.uuid[0 : len(raw)] = raw
        item.flags = flags
        item.memory_bytes = _in_range(gpu.memory_bytes, 64, gpu.uuid, "bytes of memory")
        item.unhooked_bytes = _in_range(gpu.undeclared_bytes, 64, gpu.uuid, "bytes measured")
        item.cores_percent = _in_range(gpu.cores_percent, 32, gpu.uuid, "percent of its time")
        item.physical_bytes = _in_range(gpu.physical_bytes, 64, gpu.uuid, "bytes of its own memory")
        item.compute_policy = _in_range(gpu.compute_policy, 32, gpu.uuid, "as a compute policy")
    return array


def allocation_bytes(allocation_id: bytes) -> bytes:
    """Returns ALLOCATION_ID. Raises InvalidArgumentError when its length is wrong."""
    if len(allocation_id) != lib.VC_ID_BYTES:
        raise errors.InvalidArgumentError(
            "not an allocation ID", f"{len(allocation_id)} bytes instead of {lib.VC_ID_BYTES}"
        )
    return allocation_id


def create_limits(path: StrPath, allocation_id: bytes, gpus: Sequence[GpuLimit], mode: int = 0o644) -> None:
    """Creates the page at PATH with permission bits MODE. Raises ExistsError when PATH exists."""
    raw, array = allocation_bytes(allocation_id), pack_gpus(gpus)
    status = lib.limits_create(path_bytes(path), raw, array, len(gpus), mode)
    checked(status, f"cannot create the limits page {os.fspath(path)}")


def reserve_limits(path: StrPath, mode: int = 0o644) -> None:
    """Creates the empty file of a page in advance, for fill_limits(). Raises ExistsError when PATH exists."""
    checked(lib.limits_reserve(path_bytes(path), mode), f"cannot create the limits page {os.fspath(path)}")


def fill_limits(path: StrPath, allocation_id: bytes, gpus: Sequence[GpuLimit]) -> None:
    """Writes the page into a file of reserve_limits() that no other process uses yet."""
    raw, array = allocation_bytes(allocation_id), pack_gpus(gpus)
    status = lib.limits_fill(path_bytes(path), raw, array, len(gpus))
    checked(status, f"cannot write the limits page {os.fspath(path)}")


def read_limits(path: StrPath) -> LimitsPage:
    """Reads and checks the whole page."""
    page = ffi.new("struct vc_limits *")
    checked(lib.limits_read(path_bytes(path), page), f"cannot read the limits page {os.fspath(path)}")
    gpus = tuple(
        GpuLimit(
            uuid=sizes.format_uuid(bytes(ffi.buffer(gpu.uuid)), gpu.flags),
            memory_bytes=gpu.memory_bytes,
            cores_percent=gpu.cores_percent,
            undeclared_bytes=gpu.unhooked_bytes,
            physical_bytes=gpu.physical_bytes,
            compute_policy=gpu.compute_policy,
            allowed_permille=gpu.allowed_permille,
            credit_us=gpu.credit_us,
        )
        for gpu in page.gpu[0 : page.gpu_count]
    )
    return LimitsPage(page.version, bytes(ffi.buffer(page.id)), page.changes, gpus)


def set_memory_limit(path: StrPath, uuid: str, memory_bytes: int) -> None:
    """Changes the quota of one GPU for all processes. A quota below the memory in use only refuses new charges."""
    _change(lib.limits_set_memory, path, uuid, _in_range(memory_bytes, 64, uuid, "bytes of memory"))


def set_undeclared(path: StrPath, uuid: str, undeclared_bytes: int) -> None:
    """Publishes the undeclared bytes of the container: what NVML shows beyond its ledger."""
    _change(lib.limits_set_unhooked, path, uuid, _in_range(undeclared_bytes, 64, uuid, "bytes measured"))


def set_cores_limit(path: StrPath, uuid: str, cores_percent: int) -> None:
    """Changes the share of the GPU's time in percent; 0: no limit."""
    _change(lib.limits_set_cores, path, uuid, _in_range(cores_percent, 32, uuid, "percent of its time"))


def set_physical_limit(path: StrPath, uuid: str, physical_bytes: int) -> None:
    """Changes how much of the quota may lie in the GPU's own memory."""
    _change(
        lib.limits_set_physical, path, uuid, _in_range(physical_bytes, 64, uuid, "bytes of its own memory")
    )


def set_compute_policy(path: StrPath, uuid: str, policy: int) -> None:
    """Changes the policy for the share of the GPU's time: VC_COMPUTE_ELASTIC and a weight."""
    _change(lib.limits_set_compute, path, uuid, _in_range(policy, 32, uuid, "as a compute policy"))


def set_allowed(path: StrPath, uuid: str, permille: int) -> None:
    """Publishes the permille of the GPU's time that the container may use now: its share and lent time."""
    _change(lib.limits_set_allowed, path, uuid, _in_range(permille, 32, uuid, "permille of its time"))


def set_credit(path: StrPath, uuid: str, microseconds: int) -> None:
    """Publishes the busy time given back since the page was created, for work of others on the GPU."""
    _change(lib.limits_set_credit, path, uuid, _in_range(microseconds, 64, uuid, "microseconds of credit"))


def set_time_slice(path: StrPath, uuid: str, state: int) -> None:
    """Publishes the container's time slice on a GPU: VC_TIME_SLICE_… and its end, as `vcuda.time_slices` packs them."""
    _change(lib.limits_set_time_slice, path, uuid, _in_range(state, 64, uuid, "as a time slice"))


def _change(setter: Any, path: StrPath, uuid: str, value: int) -> None:
    raw, _ = sizes.parse_uuid(uuid)
    what = f"cannot change the limit of {uuid} in {os.fspath(path)}"
    try:
        checked(setter(path_bytes(path), raw, value), what)
    except errors.NotFoundError as error:
        if not Path(path).exists():
            raise
        raise errors.NotFoundError(what, "the page has no such GPU") from error


def _in_range(value: int, bits: int, uuid: str, meaning: str) -> int:
    """Returns VALUE when the C type can hold it; C checks its meaning."""
    if not 0 <= value < 1 << bits:
        raise errors.InvalidArgumentError(f"{value} {meaning} of {uuid}", "the number is out of range")
    return value
