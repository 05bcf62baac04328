# SPDX-License-Identifier: Apache-2.0
"""``vcuda ps``: who uses how much of which GPU, as a table or as JSON.

Shows the quota that this command itself runs under, the allocations of a node agent where they are readable, and the
user's own quota directories; with ``--dir`` only the named ones. ``--json`` prints one object per scan, on one line::

    {"version": 1,              of this format; a number keeps the meaning of its keys, and may get new ones
     "time": 1760000000.0,      seconds since 1970
     "quotas": [
       {"directory": "/run/user/1000/vcuda/run-17-ab12cd34",
        "kind": "command",      "container", "command" or "directory"
        "name": "python x.py",  for people
        "allocation_id": "00ff…",
        "gpus": [{"uuid": "GPU-…", "limit_bytes": 0, "cores_percent": 0,
                  "physical_bytes": 0,   the part of the limit in the GPU's own memory; 0: all of it
                  "used_bytes": 0,       what counts against the limit: processes + agent_undeclared_bytes
                  "declared_bytes": 0,   memory that the processes' calls declared
                  "undeclared_bytes": 0, undeclared memory that the processes measured on themselves
                  "agent_undeclared_bytes": 0,  undeclared memory that the agent measured beyond that
                  "measured_bytes": 0,   of these processes, from NVML; null where NVML gives none
                  "drift_bytes": 0,      measured - declared; without NVML both undeclared numbers
                  "managed_bytes": 0,    the part of used_bytes that may lie in host memory
                  "peak_bytes": 0,       largest sum of the processes so far
                  "driver_refused": 0,   allocations that the driver had no memory for although the quota had room
                  "driver_refused_bytes": 0}],  what the last of them asked for; 0: not known
        "processes": [{"pid": 1,               0: not known now
                       "pid_inside": 1, "name": "python",
                       "refused": 0,          allocations that the quota had no room for
                       "gpus": [{"uuid": "GPU-…", "used_bytes": 0, "declared_bytes": 0, "undeclared_bytes": 0,
                                 "managed_bytes": 0, "measured_bytes": 0, "drift_bytes": 0,
                                 "peak_bytes": 0}]}]}],
     "gpus": [{"uuid": "GPU-…",          all quotas in use together
               "memory_bytes": 0,        what the GPU has; null where NVML does not tell
               "promised_bytes": 0,      what may lie in its own memory
               "used_bytes": 0}],
     "errors": [{"directory": "…", "error": "…"}]}

Below the table stands what the quotas in use promise of each GPU, and who was refused memory, by whom.

Under a quota this command does not use NVML: the library would answer with declared memory. The table leaves out
columns that a narrow terminal has no room for. With ``--watch`` one object or table comes after the other, and on a
terminal the table is drawn over (`gigaslice.runtime.command_line.watch`).

The exit code is 1 when a quota could not be read. The others are shown all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gigaslice.core.units import format_bytes
from gigaslice.core.uuids import SHORT
from gigaslice.runtime.command_line.output import add_json
from gigaslice.runtime.command_line.watch import Picture, add_watch, show
from gigaslice.runtime.table import Column, as_table
from gigaslice.runtime.terminal import terminal
from vcuda import contract, errors, promises, quotas, settings
from vcuda.ledger import ProcessUsage
from vcuda.limits import GpuLimit

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "show who uses how much GPU memory"
DESCRIPTION = "Shows containers and commands with a quota: PID, GPU, limit, memory in use and peak."

_NAME = (12, 60)  # columns of a name, which may be a whole script: minimum, maximum
_PID = 7  # digits of the kernel's largest PID
_SIZE = len("-99.9 GiB")
_ALL = ("LIMIT", "USED", "DECLARED", "MEASURED", "DRIFT", "PEAK")
_FEW = ("LIMIT", "USED", "PEAK")
_MANAGED = "MANAGED"  # after USED, where a quota includes host memory


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """One scan: the quotas that could be read, the errors of the others, and NVML's bytes by GPU and PID."""

    time: float
    quotas: tuple[quotas.Quota, ...]
    errors: tuple[tuple[Path, str], ...]
    measured: Mapping[str, Mapping[int, int]]
    memory: Mapping[str, int] = field(default_factory=dict)  # of whole GPUs, as far as NVML tells

    def promises(self) -> list[promises.GpuPromises]:
        """What the quotas in use promise of each GPU, and use of it."""
        return promises.summed(
            (
                quota.name,
                quota.limits.gpus,
                {gpu.uuid: _of_quota(self, quota, gpu).used for gpu in quota.limits.gpus},
            )
            for quota in self.quotas
            if quotas.is_in_use(quota)
        )


@dataclass(frozen=True, slots=True)
class _Memory:
    """Bytes of one GPU, of a process or of a quota.

    undeclared: measured by the processes on themselves, agent_undeclared: by the agent beyond that. measured: by NVML
    now, None where NVML gives no number.
    """

    used: int
    declared: int
    undeclared: int
    agent_undeclared: int
    measured: int | None
    peak: int
    managed: int

    @property
    def drift(self) -> int:
        return (
            self.undeclared + self.agent_undeclared
            if self.measured is None
            else self.measured - self.declared
        )

    def as_json(self) -> dict[str, object]:
        return {
            "used_bytes": self.used,
            "declared_bytes": self.declared,
            "undeclared_bytes": self.undeclared,
            "managed_bytes": self.managed,
            "measured_bytes": self.measured,
            "drift_bytes": self.drift,
            "peak_bytes": self.peak,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_watch(parser)
    add_json(parser, "print one JSON object per scan; sizes in bytes")
    parser.add_argument(
        "--dir",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="show only this quota directory, or those in this directory; may be repeated",
    )


def run(parsed: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    config = settings.read_settings()

    def picture() -> Picture:
        snapshot = _scan(_directories(parsed.dir, config), config)
        text = _as_json(snapshot) if parsed.json else _as_text(snapshot)
        return Picture(text, errors=tuple(error for _, error in snapshot.errors))

    return show(picture, parsed.watch, documents=parsed.json)


def _directories(named: list[Path], config: settings.UserSettings) -> list[Path]:
    if named:
        return [quota for directory in named for quota in _below(directory)]
    below = quotas.all_quotas(config.base_directory)
    own = config.own_directory
    return [own, *below] if own is not None and own not in below else below


def _below(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise errors.UsageError(
            f"{directory} is not a directory", "", "name a quota directory or one that holds some"
        )
    if (directory / contract.LIMITS_FILE).exists():
        return [directory]
    return quotas.find_quotas(directory)


def _scan(directories: list[Path], config: settings.UserSettings) -> _Snapshot:
    quotas_read: list[quotas.Quota] = []
    failed: list[tuple[Path, str]] = []
    for directory in directories:
        try:
            quotas_read.append(quotas.read_quota(directory))
        except errors.VcudaError as error:
            if directory.exists():  # else it was removed between listing and reading
                failed.append((directory, str(error)))
    return _Snapshot(
        time.time(),
        tuple(quotas_read),
        tuple(failed),
        _measured(quotas_read, config),
        _gpu_memory() if quotas_read and not config.is_limited else {},
    )


def _gpu_memory() -> dict[str, int]:
    from vcuda import devices

    with contextlib.suppress(errors.NoDriverError):
        return {device.uuid: device.memory_bytes for device in devices.list_devices()}
    return {}


def _measured(
    quotas_read: Sequence[quotas.Quota], config: settings.UserSettings
) -> Mapping[str, Mapping[int, int]]:
    """NVML's bytes for the GPUs with running processes; empty where the library would answer instead of NVML."""
    gpus = {
        gpu.uuid
        for quota in quotas_read
        for process in quota.usage.processes
        for gpu in quota.limits.gpus
        if process.alive and process.used.get(gpu.uuid)
    }
    if not gpus or config.is_limited:
        return {}
    from vcuda import devices  # loads NVML only when something runs

    return devices.process_memory(sorted(gpus))


def _of_process(snapshot: _Snapshot, process: ProcessUsage, uuid: str) -> _Memory:
    measured = snapshot.measured.get(uuid, {}).get(process.pid)
    used = process.used.get(uuid, 0)
    return _Memory(
        used,
        process.declared(uuid),
        process.undeclared.get(uuid, 0),
        0,
        0 if measured is None and not used else measured,
        process.peak.get(uuid, 0),
        process.managed.get(uuid, 0),
    )


def _of_quota(snapshot: _Snapshot, quota: quotas.Quota, gpu: GpuLimit) -> _Memory:
    """All living processes, and what the agent measured beyond them."""
    usage = quota.usage
    each = [_of_process(snapshot, process, gpu.uuid).measured for process in usage.processes if process.alive]
    measurements = [bytes_ for bytes_ in each if bytes_ is not None]
    measured = sum(measurements) if each and len(measurements) == len(each) else None
    used, undeclared = usage.used(gpu.uuid), usage.undeclared(gpu.uuid)
    if (
        measured is not None
    ):  # the container writes the ledger: it counts for no more than the limit or the measurement
        used = min(used, max(gpu.memory_bytes, measured))
        undeclared = min(used, undeclared)
    return _Memory(
        used + gpu.undeclared_bytes,
        used - undeclared,
        undeclared,
        gpu.undeclared_bytes,
        measured,
        usage.peak.get(gpu.uuid, 0),
        min(used, usage.managed(gpu.uuid)),
    )


def _as_json(snapshot: _Snapshot) -> str:
    answer = {
        "version": 1,
        "time": snapshot.time,
        "quotas": [_quota_object(snapshot, quota) for quota in snapshot.quotas],
        "gpus": [
            {
                "uuid": gpu.uuid,
                "memory_bytes": snapshot.memory.get(gpu.uuid),
                "promised_bytes": gpu.promised_bytes,
                "used_bytes": gpu.used_bytes,
            }
            for gpu in snapshot.promises()
        ],
        "errors": [{"directory": str(directory), "error": text} for directory, text in snapshot.errors],
    }
    return json.dumps(answer)


def _quota_object(snapshot: _Snapshot, quota: quotas.Quota) -> dict[str, object]:
    return {
        "directory": str(quota.directory),
        "kind": quota.kind,
        "name": quota.name,
        "allocation_id": quota.limits.allocation_id.hex(),
        "gpus": [
            {
                "uuid": gpu.uuid,
                "limit_bytes": gpu.memory_bytes,
                "physical_bytes": gpu.physical_bytes,
                "cores_percent": gpu.cores_percent,
                "agent_undeclared_bytes": gpu.undeclared_bytes,
                **_of_quota(snapshot, quota, gpu).as_json(),
                "driver_refused": quota.usage.driver_refused.get(gpu.uuid, 0),
                "driver_refused_bytes": quota.usage.driver_refused_bytes.get(gpu.uuid, 0),
            }
            for gpu in quota.limits.gpus
        ],
        "processes": [
            {
                "pid": process.pid,
                "pid_inside": process.pid_inside,
                "name": process.name,
                "refused": process.refused,
                "gpus": [
                    {"uuid": gpu.uuid, **_of_process(snapshot, process, gpu.uuid).as_json()}
                    for gpu in quota.limits.gpus
                ],
            }
            for process in quota.usage.processes
            if process.alive
        ],
    }


def _table(snapshot: _Snapshot, columns: int) -> str:
    """A row for each GPU of a quota, and below it one for each process that uses it."""
    headings = _headings(
        columns, any(gpu.physical_bytes for quota in snapshot.quotas for gpu in quota.limits.gpus)
    )
    widest = min(max(_NAME[0], columns - _width(headings)), _NAME[1])
    rows: list[list[str]] = []
    for quota in snapshot.quotas:
        for gpu in quota.limits.gpus:
            cells = {"LIMIT": format_bytes(gpu.memory_bytes), **_cells(_of_quota(snapshot, quota, gpu))}
            rows.append([quota.name, "", gpu.uuid, *(cells[heading] for heading in headings)])
            for process in quota.usage.processes:
                memory = _of_process(snapshot, process, gpu.uuid)
                if process.alive and (memory.peak or memory.used):
                    cells = {"LIMIT": "", **_cells(memory)}
                    name, pid = f"  {errors.printable(process.name)}", str(process.pid or "?")
                    rows.append([name, pid, gpu.uuid, *(cells[heading] for heading in headings)])
    table = [
        Column("CONTAINER OR COMMAND", most=widest, shorter=_without_directories),
        Column("PID", right=True, least=_PID),
        Column("GPU", least=SHORT, uuids=True),
        *(Column(heading, right=True, least=_SIZE) for heading in headings),
    ]
    return as_table(table, rows)


def _without_directories(name: str, most: int) -> str:
    """A command without the directories of its words, the interpreter's first, until it has MOST characters."""
    words = name.split(" ")
    for number, word in enumerate(words):
        if len(" ".join(words)) <= most:
            break
        if word.startswith(("/", "./", "../")):
            words[number] = word.rstrip("/").rpartition("/")[2] or word
    return " ".join(words)


def _promise_table(snapshot: _Snapshot) -> str:
    """What is promised beside what is used, a row for each GPU and one for all. "": no quota is in use."""
    gpus = snapshot.promises()
    rows = [[gpu.uuid, snapshot.memory.get(gpu.uuid), gpu.promised_bytes, gpu.used_bytes] for gpu in gpus]
    if len(gpus) > 1:
        memory = [snapshot.memory.get(gpu.uuid) for gpu in gpus]
        known = None if None in memory else sum(size for size in memory if size is not None)
        total = (sum(gpu.promised_bytes for gpu in gpus), sum(gpu.used_bytes for gpu in gpus))
        rows.append(["all", known, *total])
    columns = [
        Column("GPU"),
        *(Column(heading, right=True, least=_SIZE) for heading in ("MEMORY", "PROMISED", "USED")),
    ]
    cells = [
        [str(name), *("-" if size is None else format_bytes(int(size)) for size in rest)]
        for name, *rest in rows
    ]
    return as_table(columns, cells) if rows else ""


def _refusals(snapshot: _Snapshot) -> list[str]:
    """Who was refused memory: by the own quota, or by a card that is full of others'."""
    lines = []
    for quota in snapshot.quotas:
        refused = sum(process.refused for process in quota.usage.processes if process.alive)
        if refused:
            limits = {format_bytes(gpu.memory_bytes) for gpu in quota.limits.gpus}
            size = f"quota of {limits.pop()}" if len(limits) == 1 else "quotas"
            lines.append(f"{quota.name}: its {size} had no room for {_allocations(refused)}")
        for uuid, count in quota.usage.driver_refused.items():
            if count:
                lines.append(
                    f"{quota.name}: {uuid} was full at {_allocations(count)} although the quota had room"
                )
    return lines


def _allocations(count: int) -> str:
    return "1 allocation" if count == 1 else f"{count} allocations"


def _headings(columns: int, shared: bool) -> tuple[str, ...]:
    """The size columns for which COLUMNS characters have room. SHARED: a quota includes host memory."""
    everything, few = (_with_managed(headings) if shared else headings for headings in (_ALL, _FEW))
    return everything if columns >= _width(everything) + _NAME[0] else few


def _with_managed(headings: tuple[str, ...]) -> tuple[str, ...]:
    at = headings.index("USED") + 1
    return (*headings[:at], _MANAGED, *headings[at:])


def _width(headings: Sequence[str]) -> int:
    """Characters of all columns but the name."""
    return _PID + SHORT + len(headings) * _SIZE + (len(headings) + 2) * 2


def _cells(memory: _Memory) -> dict[str, str]:
    return {
        "USED": format_bytes(memory.used),
        _MANAGED: format_bytes(memory.managed),
        "DECLARED": format_bytes(memory.declared),
        "MEASURED": "-" if memory.measured is None else format_bytes(memory.measured),
        "DRIFT": format_bytes(memory.drift),
        "PEAK": format_bytes(memory.peak),
    }


def _as_text(snapshot: _Snapshot) -> str:
    if not snapshot.quotas:
        return "" if snapshot.errors else "no container or command has a quota here"
    parts = [
        _table(snapshot, terminal(sys.stdout).columns),
        _promise_table(snapshot),
        "\n".join(_refusals(snapshot)),
    ]
    return "\n\n".join(filter(None, parts))
