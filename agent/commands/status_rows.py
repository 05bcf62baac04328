# SPDX-License-Identifier: Apache-2.0
"""Which container holds what on this node, and how its GPUs are: read from the state directory alone.

Changes nothing and takes no lock. Which processes live is asked of the kernel, so PIDs are those of the caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.health.health_files import GpuRecord, read_report
from agent.ledgers.usage import Reading
from agent.limits.driver_limit_report import DriverLimitReport
from agent.limits.driver_limit_report import read_report as read_driver_limits
from agent.persistence.store import read_only
from agent.roles.records import CODEC
from gigaslice.core import units
from gigaslice.core.allocation.consumer import common_names
from gigaslice.core.allocation.table import Allocation, Hold
from gigaslice.core.claims.origin import claim_of
from gigaslice.core.errors import StateError
from gigaslice.core.text import plain
from gigaslice.runtime import table
from gigaslice.runtime.table import Column

__all__ = [
    "StatusRow",
    "as_json",
    "as_table",
    "collect",
    "driver_limits",
    "driver_limits_text",
    "gpus",
    "gpus_table",
]

_STYLES = {
    **dict.fromkeys(("healthy", "running", "whole"), "good"),
    **dict.fromkeys(("waiting", "cordoned"), "doubtful"),
    **dict.fromkeys(("unhealthy", "unreadable"), "bad"),
}
_STATE = Column("STATE", style=lambda state: _STYLES.get(state, ""))
_GPU = Column("GPU", uuids=True)


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One container on one GPU; sizes are bytes. state: "running", "idle", "waiting", "ended",
    "unreadable", or "whole": the GPU is given out as such (slices: 1), and what runs on it is not counted. claim: the
    claim to devices that it was given out for; None: by the device-plugin API. consumers: who uses it; several share
    its limit, and namespace, pod and container are what all of them have in common.
    """

    allocation: str
    namespace: str | None
    pod: str | None
    container: str | None
    state: str
    gpu: str
    slices: int
    limit_bytes: int
    used_bytes: int
    undeclared_bytes: int
    peak_bytes: int
    pids: tuple[int, ...]
    claim: str | None = None
    consumers: tuple[str, ...] = ()


def collect(state_dir: Path) -> tuple[StatusRow, ...]:
    """One row per container and GPU, in order of allocation. Raises StorageError or CheckpointError."""
    slices: dict[str, int] = {}
    with contextlib.suppress(StateError):  # `gpus` raises it for its caller
        slices = {gpu.uuid: gpu.slices for gpu in gpus(state_dir)}
    allocations, readings = read_only(state_dir, CODEC, slices)
    return tuple(
        _row(allocation, hold, readings[allocation.id])
        for allocation in allocations.allocations
        for hold in allocation.holds
    )


def gpus(state_dir: Path) -> tuple[GpuRecord, ...]:
    """The GPUs as the agent has last seen them; none before it did. Raises StateError."""
    report = read_report(state_dir)
    return report.gpus if report else ()


def as_json(
    rows: tuple[StatusRow, ...],
    gpus: tuple[GpuRecord, ...] = (),
    driver_limits: DriverLimitReport | None = None,
) -> dict[str, object]:
    """Rows, GPUs and the driver's limits for programs."""
    return {
        "version": 1,
        "allocations": [asdict(row) for row in rows],
        "gpus": [asdict(gpu) for gpu in gpus],
        "driverLimits": None if driver_limits is None else asdict(driver_limits),
    }


def gpus_table(gpus: tuple[GpuRecord, ...]) -> str:
    """The GPUs for people."""
    rows = []
    for gpu in gpus:
        state = "healthy" if gpu.healthy else "cordoned" if gpu.cordoned else "unhealthy"
        rows.append((str(gpu.index), gpu.uuid, str(gpu.slices), state, gpu.detail or "-"))
    columns = (Column("GPU"), Column("UUID"), Column("SLICES"), _STATE, Column("WHY"))
    return _table(columns, rows)


def driver_limits(state_dir: Path) -> DriverLimitReport | None:
    """The driver's own limits as the agent has last seen them; None before it did.

    A report that cannot be read is one of unknown limits: containers and GPUs are shown all the same.
    """
    try:
        return read_driver_limits(state_dir)
    except StateError as error:
        return DriverLimitReport("unknown", "unknown", str(error))


def driver_limits_text(report: DriverLimitReport) -> str:
    """The driver's own limits for people: what keeps them, and which are not as they are to be."""
    if report.backend == "unknown":
        return f"driver limits: unknown ({plain(report.reason)})"
    if report.backend == "none":
        return (
            f"driver limits: none ({plain(report.reason)})" if report.mode != "off" else "driver limits: off"
        )
    lines = [f"driver limits: {report.backend}, for {report.pods} pods"]
    lines += [
        f"the limits on {gpu} exceed its memory by {units.format_bytes(count)}"
        for gpu, count in report.excess.items()
    ]
    rows = [
        (
            wall.pod,
            wall.gpu,
            units.format_bytes(wall.wanted),
            "-" if wall.hard is None else units.format_bytes(wall.hard),
            "-" if wall.used is None else units.format_bytes(wall.used),
            wall.problem or "follows what is in use",
        )
        for wall in report.walls
    ]
    if rows:
        columns = (Column("POD"), _GPU, *(Column(title) for title in ("TO BE", "IS", "USED", "WHY")))
        lines.append(_table(columns, rows))
    return "\n".join(lines)


def as_table(rows: tuple[StatusRow, ...]) -> str:
    """The rows for people."""
    if not rows:
        return "no container holds a GPU slice"
    columns = (
        Column("CONTAINER"),
        _STATE,
        _GPU,
        *(Column(title) for title in ("LIMIT", "USED", "PEAK", "PIDS")),
    )
    return _table(columns, [_cells(row) for row in rows])


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Names of pods come from an API server, and those of GPUs from a driver: they act on no terminal."""
    return table.as_table(columns, [[plain(cell) for cell in row] for row in rows])


def _cells(row: StatusRow) -> tuple[str, ...]:
    name = ", ".join(row.consumers) or f"allocation {row.allocation[:8]}"
    if row.claim and len(row.consumers) != 1:
        name = f"claim {row.claim}: {name}" if row.consumers else f"claim {row.claim}"
    pids = ",".join(str(pid) for pid in row.pids) or "-"
    used = row.used_bytes + row.undeclared_bytes
    sizes = (units.format_bytes(size) for size in (row.limit_bytes, used, row.peak_bytes))
    return (name, row.state, row.gpu, *sizes, pids)


def _row(allocation: Allocation, hold: Hold, reading: Reading) -> StatusRow:
    namespace, pod, container = common_names(allocation.consumers)
    pids = tuple(process.pid for process in reading.processes if process.pid and process.used.get(hold.gpu))
    return StatusRow(
        allocation=allocation.id,
        namespace=namespace or None,
        pod=pod or None,
        container=container or None,
        state=_state(allocation, reading),
        gpu=hold.gpu,
        slices=hold.kept_bytes // hold.slice_bytes,
        limit_bytes=reading.limits.get(hold.gpu, allocation.quota()[hold.gpu]),
        used_bytes=reading.used.get(hold.gpu, 0),
        undeclared_bytes=reading.undeclared.get(hold.gpu, 0),  # of processes without the library too
        peak_bytes=reading.peak.get(hold.gpu, 0),
        pids=pids or reading.pids,
        claim=str(claim) if (claim := claim_of(allocation)) is not None else None,
        consumers=tuple(str(consumer.ref) for consumer in allocation.consumers),
    )


def _state(allocation: Allocation, reading: Reading) -> str:
    if reading.problem:
        return "unreadable"
    if allocation.ended:
        return "ended"
    if allocation.waiting:
        return "waiting"
    if allocation.whole:
        return "whole"
    return "running" if reading.alive else "idle"
