# SPDX-License-Identifier: Apache-2.0
"""What a context was last measured to take of each GPU: kept to refuse a quota that has no room for one.

A process measures it and writes it into its ledger, which ends with the quota. `vcuda run` keeps the number, of its own
command and of the quotas that it finds when it starts, with the driver's version: another driver's number says nothing.
Nothing is charged by it. Only this user's files are read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from gigaslice.runtime.files import read_file, replace_file

__all__ = ["LARGEST", "keep", "measured"]

LARGEST = 2 << 30
"""No context is taken to cost more."""

_FILE = "contexts.json"
_MOST_JSON = 1 << 16


def measured(base: Path, driver: str) -> dict[str, int]:
    """Bytes by GPU UUID, as far as they were measured under this DRIVER."""
    try:
        record = json.loads(read_file(base / _FILE, _MOST_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    if (
        not isinstance(record, dict)
        or record.get("driver") != driver
        or not isinstance(record.get("gpus"), dict)
    ):
        return {}
    return {
        uuid: cost
        for uuid, cost in record["gpus"].items()
        if isinstance(cost, int) and not isinstance(cost, bool) and 0 < cost <= LARGEST
    }


def keep(base: Path, driver: str, costs: Mapping[str, int]) -> None:
    """Adds COSTS to what is kept. Nothing depends on it, so no error is one."""
    before = measured(base, driver)
    gpus = before | {uuid: cost for uuid, cost in costs.items() if 0 < cost <= LARGEST}
    if gpus != before:
        with contextlib.suppress(OSError):
            text = json.dumps({"version": 1, "driver": driver, "gpus": gpus})
            replace_file(base / _FILE, text.encode())
