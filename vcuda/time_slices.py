"""Turns on a GPU whose containers use host memory: what each does, and whose turn the page says it is.

The library in the containers waits where a page says HELD, and no longer than that page says, so an agent that is gone
holds nobody up. Values in and out; deciding is the agent's.
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
    """A container on one GPU as its processes tell it. progress: pieces of work ever since. waiting: it is held back
    now. busy: living processes that wait for work under way or ask about it. held_us: microseconds its threads were
    held, added up.
    """

    progress: int
    waiting: bool
    busy: int
    alive: int
    managed: int
    real: int
    held_us: int


def read_time_slices(path: StrPath, uuids: Sequence[str], *, wait: bool = True) -> dict[str, TimeSliceUsage]:
    """What the ledger at PATH says, by GPU, in the order of UUIDS, its page's; nothing without host memory. WAIT: as in
    read_ledger()."""
    read = lib.ledger_read_time_slices if wait else lib.ledger_read_time_slices_now
    usage = ffi.new("struct vc_time_slice_usage[]", lib.VC_MAX_GPUS)
    status = read(path_bytes(path), usage, len(usage))
    count = checked(status, f"cannot read the ledger {os.fspath(path)}")
    found = (
        TimeSliceUsage(
            one.progress, bool(one.waiting), one.busy, one.alive, one.managed, one.real, one.held_us
        )
        for one in usage[0:count]
    )
    return dict(zip(uuids, found, strict=False))


def time_slice_clock() -> int:
    """Milliseconds of the clock by which turns end."""
    return int(lib.time_slice_now_ms())


def give_time_slice(path: StrPath, uuid: str, end_ms: int) -> None:
    """The limits page at PATH says that it is its container's turn on the GPU, until END_MS."""
    set_time_slice(path, uuid, lib.VC_TIME_SLICE_YOURS | end_ms << lib.VC_TIME_SLICE_SHIFT)


def withhold_time_slice(path: StrPath, uuid: str, end_ms: int) -> None:
    """The same for somebody else's turn: the container waits, until END_MS at most."""
    set_time_slice(path, uuid, lib.VC_TIME_SLICE_HELD | end_ms << lib.VC_TIME_SLICE_SHIFT)


def shorten_queues(path: StrPath, uuid: str, end_ms: int) -> None:
    """Everybody may go on, but queues are to be kept short, until END_MS: there may soon be turns."""
    set_time_slice(path, uuid, lib.VC_TIME_SLICE_SHORT | end_ms << lib.VC_TIME_SLICE_SHIFT)


def end_time_slices(path: StrPath, uuid: str) -> None:
    """There are no turns on the GPU."""
    set_time_slice(path, uuid, lib.VC_TIME_SLICE_FREE)
