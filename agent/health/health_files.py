# SPDX-License-Identifier: Apache-2.0
"""Two small files in the state directory: the cordons, and the health of each GPU as the agent has found it.

    cordon.json   written by `gigaslice cordon` and `uncordon`, read by the agent: works while no agent runs
    health.json   written by the agent, read by it at its next start, by `gigaslice status` and by the two commands

Both have a version and are replaced in one step. A file that cannot be read is an error in the log, never a reason to
stop.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from agent.health.conditions import Condition, GpuHealth
from gigaslice.core.errors import StateError, StorageError
from gigaslice.core.kube.json_text import read_json
from gigaslice.runtime.files import is_directory, open_file, os_errors_as, read_file, remedy, replace_file

__all__ = [
    "CORDON",
    "HEALTH",
    "Cordon",
    "GpuRecord",
    "Report",
    "change_cordons",
    "read_cordons",
    "read_report",
    "write_report",
]

CORDON, HEALTH = "cordon.json", "health.json"
_VERSION = 1
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Cordon:
    """An administrator has taken a GPU out of service. since: Unix time in seconds."""

    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """A GPU as the agent last saw it. healthy: whether it gets new containers. detail: why not, for people."""

    uuid: str
    index: int
    model: str
    slices: int
    healthy: bool
    cordoned: bool
    detail: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The content of health.json. boot: the kernel's boot id; another one means that the GPUs were reset."""

    boot: str
    gpus: tuple[GpuRecord, ...]
    health: Mapping[str, GpuHealth]


def read_cordons(state_dir: Path) -> dict[str, Cordon]:
    """The cordons by UUID; none when there is no file. Raises StateError."""
    path = state_dir / CORDON
    document = _read(path)
    try:
        return {
            str(uuid): Cordon(str(cordon.get("reason", "")), float(cordon.get("since", 0.0)))
            for uuid, cordon in (document or {}).get("cordons", {}).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise _damaged(path) from error


def change_cordons(
    state_dir: Path, change: Callable[[dict[str, Cordon]], Mapping[str, Cordon]]
) -> Mapping[str, Cordon]:
    """Replaces the cordons by what CHANGE makes of them; two commands at once both count. Raises StateError."""
    if not is_directory(state_dir):
        raise StorageError(f"{state_dir} is no directory; name the agent's with --state-dir")
    with _locked(state_dir / f".{CORDON}.lock"):
        after = change(read_cordons(state_dir))
        _write(
            state_dir / CORDON,
            {"cordons": {uuid: asdict(cordon) for uuid, cordon in after.items()}},
            sync=True,
        )
    return after


def read_report(state_dir: Path) -> Report | None:
    """The last report of the agent; None where there is none. Raises StateError."""
    path = state_dir / HEALTH
    document = _read(path)
    if document is None:
        return None
    try:
        return Report(
            str(document["boot"]),
            tuple(_gpu_record(record) for record in document["gpus"]),
            {str(uuid): _gpu_health(health) for uuid, health in document["health"].items()},
        )
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise _damaged(path) from error


def write_report(state_dir: Path, report: Report) -> None:
    """Replaces health.json. Not synced: after a power failure the GPUs are as new. Raises StorageError."""
    health: Mapping[str, Any] = {uuid: asdict(health_of_gpu) for uuid, health_of_gpu in report.health.items()}
    gpus: Sequence[Any] = [asdict(gpu) for gpu in report.gpus]
    _write(state_dir / HEALTH, {"boot": report.boot, "gpus": gpus, "health": health}, sync=False)


def _gpu_record(record: Mapping[str, Any]) -> GpuRecord:
    """What a later agent adds is left out."""
    names = {field.name for field in fields(GpuRecord)}
    return GpuRecord(**{name: value for name, value in record.items() if name in names})


def _gpu_health(record: Mapping[str, Any]) -> GpuHealth:
    conditions = tuple(
        Condition(str(condition["code"]), str(condition["text"])) for condition in record["conditions"]
    )
    times = {name: float(record[name]) for name in ("since", "last", "recovered")}
    ecc = record["ecc"]
    return GpuHealth(
        conditions, relapses=int(record["relapses"]), ecc=None if ecc is None else int(ecc), **times
    )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = read_json(read_file(path, _MAX_BYTES + 1))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; {remedy(error)}") from error
    except ValueError as error:
        raise _damaged(path) from error
    if not isinstance(document, dict) or not isinstance(document.get("version"), int):
        raise _damaged(path)
    if document["version"] != _VERSION:
        raise StateError(
            f"{path} has version {document['version']}, this is {_VERSION}; use the newer gigaslice"
        )
    return document


def _write(path: Path, content: Mapping[str, Any], *, sync: bool) -> None:
    """Replaces a file that has one writer at a time: the agent, or the process that holds the cordons' lock."""
    text = json.dumps({"version": _VERSION, **content}, indent=1)
    with os_errors_as(StorageError, f"cannot write {path}"):
        replace_file(path, text.encode(), mode=0o644, sync=sync)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with os_errors_as(StorageError, f"cannot open {path}"):
        fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _damaged(path: Path) -> StateError:
    return StateError(f"{path} is damaged; move it away, then cordon again what it should say")
