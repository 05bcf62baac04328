# SPDX-License-Identifier: Apache-2.0
"""Usage ledgers: how much of each GPU each process of a container or command uses.

The processes themselves write the file, so it is not trusted: the C code reads it by ``pread`` with checked sizes,
bounds every number, and learns from the kernel's record locks which processes live. Python gets frozen snapshots and
never maps the file, because Python has no atomic loads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from vcuda import errors, sizes
from vcuda._bridge import checked, ffi, lib, path_bytes
from vcuda.limits import GpuLimit, StrPath, allocation_bytes, pack_gpus

__all__ = [
    "LedgerUsage",
    "ProcessUsage",
    "ShareReader",
    "ShareUsage",
    "create_ledger",
    "fill_ledger",
    "ledger_file_bytes",
    "ledger_owners",
    "locks_last",
    "read_ledger",
    "read_shares",
    "reserve_ledger",
    "trim_ledger",
    "trim_open_ledger",
]


_FEW_SLOTS = 16


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One process with a slot in the ledger. Sizes are bytes by GPU UUID.

    The kernel vouches for `slot`, `pid` and `alive`. Everything else is what the container has written.

    Attributes:
        slot: Index of its slot.
        pid: Its PID in the reader's namespace. 0: it is dead, or it closed a descriptor of the ledger and has not
            locked its slot again.
        pid_inside: Its PID in its own namespace.
        generation: Counts the owners of the slot.
        used: Bytes that count against the limit.
        peak: The most so far.
        refused: Allocations that were answered with "out of memory".
        name: Its name.
        undeclared: The part of `used` that no call declared and that the process measured on itself.
        managed: The part of `used` that may lie in host memory.
        alive: Whether it lives; the slot of a dead process is free.
    """

    slot: int
    pid: int
    pid_inside: int
    generation: int
    used: dict[str, int]
    peak: dict[str, int]
    refused: int
    name: str
    undeclared: dict[str, int] = field(default_factory=dict)
    managed: dict[str, int] = field(default_factory=dict)
    alive: bool = True

    @property
    def nameless(self) -> bool:
        """Whether it lives under a PID that the kernel does not tell."""
        return self.alive and self.pid == 0

    def declared(self, uuid: str) -> int:
        """Bytes of one GPU that its calls declared."""
        return self.used.get(uuid, 0) - self.undeclared.get(uuid, 0)


@dataclass(frozen=True, slots=True)
class ShareUsage:
    """Use of the compute share of one GPU, as the container's processes report it.

    Attributes:
        spent: Seconds of the GPU's time that were charged so far.
        throttled: Seconds that launches were held back so far.
        flying: Processes with work under way.
        waiting: Launches are held back now.
    """

    spent: float
    throttled: float
    flying: int
    waiting: bool


@dataclass(frozen=True, slots=True)
class LedgerUsage:
    """A snapshot of a ledger. Sizes and counts are by GPU UUID.

    Attributes:
        version: Format version.
        allocation_id: The allocation that it belongs to.
        gpu_uuids: The GPUs in order.
        peak: Largest sums so far.
        processes: By slot.
        driver_refused: Allocations that the driver had no memory for although the quota had room: a limit of the
            driver's own, or a full GPU. 0 in ledgers of processes with an older library.
        driver_refused_bytes: What the last of them asked for; 0 where nobody knew.
        context_bytes: What a context takes, where a process has measured it.
    """

    version: int
    allocation_id: bytes
    gpu_uuids: tuple[str, ...]
    peak: dict[str, int]
    processes: tuple[ProcessUsage, ...]
    driver_refused: dict[str, int] = field(default_factory=dict)
    driver_refused_bytes: dict[str, int] = field(default_factory=dict)
    context_bytes: dict[str, int] = field(default_factory=dict)

    def used(self, uuid: str) -> int:
        """Bytes that the living processes hold of one GPU."""
        return sum(process.used.get(uuid, 0) for process in self.processes if process.alive)

    def undeclared(self, uuid: str) -> int:
        """The part of `used` that no call declared and the processes measured on themselves."""
        return sum(process.undeclared.get(uuid, 0) for process in self.processes if process.alive)

    def managed(self, uuid: str) -> int:
        """The part of `used` that may lie in host memory."""
        return sum(process.managed.get(uuid, 0) for process in self.processes if process.alive)


def create_ledger(path: StrPath, allocation_id: bytes, gpus: Sequence[GpuLimit], mode: int = 0o666) -> None:
    """Creates an empty ledger at PATH for the GPUS of a limits page. Raises ExistsError when PATH exists."""
    raw, array = allocation_bytes(allocation_id), pack_gpus(gpus)
    status = lib.ledger_create(path_bytes(path), raw, array, len(gpus), mode)
    checked(status, f"cannot create the ledger {os.fspath(path)}")


def reserve_ledger(path: StrPath, mode: int = 0o666) -> None:
    """Creates the empty file of a ledger in advance, for fill_ledger(). Raises ExistsError when PATH exists."""
    checked(lib.ledger_reserve(path_bytes(path), mode), f"cannot create the ledger {os.fspath(path)}")


def fill_ledger(path: StrPath, allocation_id: bytes, gpus: Sequence[GpuLimit]) -> None:
    """Writes an empty ledger into a file of reserve_ledger() that no other process uses yet."""
    raw, array = allocation_bytes(allocation_id), pack_gpus(gpus)
    status = lib.ledger_fill(path_bytes(path), raw, array, len(gpus))
    checked(status, f"cannot write the ledger {os.fspath(path)}")


def ledger_file_bytes() -> int:
    """The size of a ledger file of a container without host memory."""
    return int(lib.ledger_file_bytes())


def read_ledger(path: StrPath, gpus: Sequence[GpuLimit] = (), *, wait: bool = True) -> LedgerUsage:
    """Reads a snapshot.

    Args:
        path: The ledger.
        gpus: The GPUs of the limits page, which tell MIG instances from GPUs; without them all UUIDs are "GPU-…".
        wait: Wait for the disk, and for a process that keeps writing the file.

    Raises:
        BusyError: Without `wait`, where it would have to wait.
    """
    read = lib.ledger_read if wait else lib.ledger_read_now
    info, raw_path = ffi.new("struct vc_ledger_info *"), path_bytes(path)
    for room in (
        _FEW_SLOTS,
        lib.VC_MAX_SLOTS,
    ):  # clearing half a megabyte would take longer than all the rest
        slots = ffi.new("struct vc_slot_usage[]", room)
        count = checked(read(raw_path, info, slots, room), f"cannot read the ledger {os.fspath(path)}")
        if count < room:
            break
    uuid_texts = {sizes.parse_uuid(gpu.uuid)[0]: gpu.uuid for gpu in gpus}
    raw_uuids = [bytes(ffi.buffer(info.uuid[i])) for i in range(info.gpu_count)]
    uuids = tuple(uuid_texts.get(raw, sizes.format_uuid(raw)) for raw in raw_uuids)
    processes = tuple(
        ProcessUsage(
            slot=slot.slot,
            pid=slot.pid,
            pid_inside=slot.pid_inside,
            generation=slot.generation,
            alive=bool(slot.alive),
            used=dict(zip(uuids, slot.used, strict=False)),
            peak=dict(zip(uuids, slot.peak, strict=False)),
            refused=slot.refused,
            undeclared=dict(zip(uuids, slot.undeclared, strict=False)),
            managed=dict(zip(uuids, slot.managed, strict=False)),
            name=errors.printable(ffi.string(slot.name, lib.VC_NAME_BYTES).decode("utf-8", "replace")),
        )
        for slot in slots[0:count]
    )
    return LedgerUsage(
        info.version,
        bytes(ffi.buffer(info.id)),
        uuids,
        peak=dict(zip(uuids, info.peak, strict=False)),
        processes=processes,
        driver_refused=dict(zip(uuids, info.driver_refused, strict=False)),
        driver_refused_bytes=dict(zip(uuids, info.driver_refused_bytes, strict=False)),
        context_bytes={uuid: cost for uuid, cost in zip(uuids, info.context_bytes, strict=False) if cost},
    )


def locks_last(path: StrPath) -> bool:
    """Whether a slot's lock lasts as long as its process on the file system of PATH, a file that no process uses.

    It does where a mapping keeps the opened file; overlayfs maps another one. Tried, not guessed.
    """
    what = f"cannot try a lock on {os.fspath(path)}"
    return checked(lib.ledger_hold_lasts(path_bytes(path)), what) == 1


def ledger_owners(path: StrPath) -> tuple[tuple[int, int], ...]:
    """Slots and the PIDs of their owners, 0 where the kernel tells only that there is one.

    The kernel's record locks alone are read, so the file may be damaged.
    """
    array = ffi.new("struct vc_slot_owner[]", lib.VC_MAX_SLOTS)
    count = checked(
        lib.ledger_owners(path_bytes(path), array, lib.VC_MAX_SLOTS),
        f"cannot read the ledger {os.fspath(path)}",
    )
    return tuple((owner.slot, owner.pid) for owner in array[0:count])


def trim_ledger(path: StrPath) -> bool:
    """Truncates a ledger that grew to its fixed size; returns whether it had grown."""
    return checked(lib.ledger_trim(path_bytes(path)), f"cannot trim the ledger {os.fspath(path)}") > 0


def trim_open_ledger(fd: int) -> bool:
    """The same for a ledger that is open for writing as FD."""
    return checked(lib.ledger_trim_open(fd), "cannot trim a ledger") > 0


def read_shares(path: StrPath, gpus: Sequence[GpuLimit] = (), *, wait: bool = True) -> dict[str, ShareUsage]:
    """Reads the use of compute shares, by GPU UUID as in read_ledger(). Cheap enough for polling."""
    read = lib.ledger_read_shares if wait else lib.ledger_read_shares_now
    array = ffi.new("struct vc_share_usage[]", lib.VC_MAX_GPUS)
    count = checked(
        read(path_bytes(path), array, lib.VC_MAX_GPUS),
        f"cannot read the ledger {os.fspath(path)}",
    )
    uuid_texts = {sizes.parse_uuid(gpu.uuid)[0]: gpu.uuid for gpu in gpus}
    shares = {}
    for usage in array[0:count]:
        raw = bytes(ffi.buffer(usage.uuid))
        shares[uuid_texts.get(raw) or sizes.format_uuid(raw)] = ShareUsage(
            usage.spent_us / 1e6, usage.throttled_us / 1e6, usage.flying, bool(usage.waiting)
        )
    return shares


class ShareReader:
    """Polls the use of one GPU's compute share in the ledger at PATH. It keeps the file open between two reads."""

    def __init__(self, path: StrPath, uuid: str) -> None:
        self._path = path
        self._raw = sizes.parse_uuid(uuid)[0]
        self._file = -1
        self._array = ffi.new("struct vc_share_usage[]", lib.VC_MAX_GPUS)
        self._columns = [(ffi.buffer(usage.uuid), usage) for usage in self._array]

    def read(self) -> ShareUsage | None:
        """The use now; None: the ledger has no such GPU. Raises BusyError instead of waiting."""
        if self._file < 0:
            self._file = self._checked(lib.ledger_open_shares(path_bytes(self._path)))
        count = lib.ledger_read_open_shares(self._file, self._array, lib.VC_MAX_GPUS)
        if count < 0:
            self.close()
            self._checked(count)
        for uuid, usage in self._columns[:count]:
            if uuid[:] == self._raw:
                return ShareUsage(
                    usage.spent_us / 1e6, usage.throttled_us / 1e6, usage.flying, usage.waiting != 0
                )
        return None

    def close(self) -> None:
        """Closes the file; the next read opens it again."""
        if self._file >= 0:
            lib.ledger_close(self._file)
        self._file = -1

    def __del__(self) -> None:
        self.close()

    def _checked(self, status: int) -> int:
        return checked(status, f"cannot read the ledger {os.fspath(self._path)}")
