# SPDX-License-Identifier: Apache-2.0
"""What is to be known of the driver's limits of this node, as a file beside the state: for `gigaslice status`.

driver-limits.json   written by the agent when it changes, read by `gigaslice status` and `doctor`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gigaslice.core.errors import StateError, StorageError
from gigaslice.core.kube.json_text import read_json
from gigaslice.runtime.files import os_errors_as, read_file, replace_file

__all__ = ["FILE", "DriverLimitReport", "PodWall", "read_report", "write_report"]

FILE = "driver-limits.json"
_VERSION = 1
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class PodWall:
    """One pod's limit on one GPU that is not what it is to be; sizes are bytes.

    pod: its names, or its UID. wanted: what it is to be. hard: what the driver keeps, None for no limit. used: what
    counts against it, None where that is not told. problem: why; empty where only present use keeps it higher.
    """

    pod: str
    gpu: str
    wanted: int
    hard: int | None = None
    used: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DriverLimitReport:
    """The state of the driver's limits.

    Attributes:
        mode: The setting: "auto", "required" or "off".
        backend: "dmem", "misc", or "none".
        reason: Why there are none; empty otherwise.
        driver: Its version.
        pods: How many pods have a limit because of an allocation.
        excess: By how many bytes all limits of a GPU exceed what it has, by UUID.
        walls: The limits that are not what they are to be.
    """

    mode: str
    backend: str = "none"
    reason: str = ""
    driver: str = ""
    pods: int = 0
    excess: Mapping[str, int] = field(default_factory=dict)
    walls: tuple[PodWall, ...] = ()


def write_report(state_dir: Path, report: DriverLimitReport) -> None:
    """Replaces the file. Not synced: the next agent writes it anew. Raises StorageError."""
    text = json.dumps({"version": _VERSION, **asdict(report)}).encode()
    with os_errors_as(StorageError, str(state_dir / FILE)):
        replace_file(state_dir / FILE, text, mode=0o644, sync=False)


def read_report(state_dir: Path) -> DriverLimitReport | None:
    """The last report; None where no agent has written one. Raises StateError."""
    path = state_dir / FILE
    try:
        text = read_file(path, _MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path}: {error.strerror}") from error
    try:
        document = read_json(text)
        if document.pop("version") != _VERSION:
            raise ValueError("written by another version")
        walls = tuple(PodWall(**_fields_of(PodWall, wall)) for wall in document.pop("walls"))
        return DriverLimitReport(**_fields_of(DriverLimitReport, document), walls=walls)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path} is damaged: {error}; it is written anew when the agent starts") from error


def _fields_of(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """What of DOCUMENT is a field of KIND: an agent of a newer version may say more."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in document.items() if name in names}
