# SPDX-License-Identifier: Apache-2.0
"""Time slices on a GPU whose containers use host memory: what each container does, and what its page says.

Where a page says HELD, the library waits, but not beyond the time that the page gives: an agent that was killed
blocks no container. The agent decides who gets a time slice (`gigaslice.core.limits.time_slicing`); this module only
reads and writes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from vcuda._bridge import checked, ffi, lib, path_bytes
from vcuda.limits import StrPath, set_time_slice

__all__ = [
    "TimeSliceUsage",
    "end_time_slices",
    "give_time_slice",
    "read_time_slices",
    "shorten_queues",
    "time_slice_clock",
    "withhold_time_slice",
]


@dataclass(frozen=True, slots=True)
class TimeSliceUsage:
    """A container on one GPU, as its processes report it.

    Attributes:
        progress: Pieces of work so far.
        waiting: A process waits for a time slice now.
        busy: Living processes that wait for work under way or poll it.
        alive: Living processes.
        managed: Bytes that may move between GPU and host.
        real: Bytes that stay on the GPU.
        held_us: Microseconds that threads have waited for a time slice, in sum.
    """

    progress: int
    waiting: bool
    busy: int
    alive: int
    managed: int
    real: int
    held_us: int


def read_time_slices(path: StrPath, uuids: Sequence[str], *, wait: bool = True) -> dict[str, TimeSliceUsage]:
    """Reads the ledger at PATH.

    Args:
        path: The ledger.
        uuids: The GPUs of its limits page, in the page's order.
        wait: As in read_ledger().

    Returns:
        Usage by GPU; empty for a container without host memory.
    """
    read = lib.ledger_read_time_slices if wait else lib.ledger_read_time_slices_now
    usage = ffi.new("struct vc_time_slice_usage[]", lib.VC_MAX_GPUS)
    status = read(path_bytes(path), usage, len(usage))
    count = checked(status, f"cannot read the ledger {os.fspath(path)}")
    slices = (
        TimeSliceUsage(
            slice_usage.progress,
            bool(slice_usage.waiting),
            slice_usage.busy,
            slice_usage.alive,
            slice_usage.managed,
            slice_usage.real,
            slice_usage.held_us,
        )
        for slice_usage in usage[0:count]
    )
    return dict(zip(uuids, slices, strict=False))


def time_slice_clock() -> int:
    """The time in milliseconds on the clock of time slices."""
    return int(lib.time_slice_now_ms())


def give_time_slice(path: StrPath, uuid: str, end_ms: int) -> None:
    """Gives the container of the limits page at PATH the GPU's time slice, until END_MS."""
    set_time_slice(path, uuid, lib.VC_TIME_SLICE_YOURS | end_ms << lib.VC_TIME_SLICE_SHIFT)


def withhold_time_slice(path: StrPath, uuid: str, end_ms: int) -> None:
    """Lets the container wait for another one's time slice, until END_MS at most."""
    set_time_slice(path, uuid, lib.VC_TIME_SLICE_HELD | end_ms << lib.VC_TIME_SLICE_SHIFT)


def shorten_queues(path: StrPath, uuid: str, end_ms: int) -> None:
    """Lets the container run with short queues until END_MS: time slices may begin soon."""
    set_time_slice(path, uuid, lib.VC_TIME_SLICE_SHORT | end_ms << lib.VC_TIME_SLICE_SHIFT)


def end_time_slices(path: StrPath, uuid: str) -> None:
    """Ends time slicing for the container on the GPU."""
    set_time_slice(path, uuid, lib.VC_TIME_SLICE_FREE)
