# SPDX-License-Identifier: Apache-2.0
"""``vcuda limits``: shows the contents of a limits page."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from gigaslice.core.units import exact_size, format_bytes
from gigaslice.runtime.command_line.output import add_json
from vcuda import contract
from vcuda.limits import read_limits

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "show a limits page"
DESCRIPTION = "Shows the limits page PATH, or the one in the directory PATH."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("path", type=Path, metavar="PATH", help="a quota directory or a limits page")
    add_json(parser, "print JSON instead of text; sizes in bytes")


def run(parsed: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    path: Path = parsed.path
    page = read_limits(path / contract.LIMITS_FILE if path.is_dir() else path)
    if parsed.json:
        gpus = [asdict(gpu) for gpu in page.gpus]
        identity = page.allocation_id.hex()
        print(
            json.dumps(
                {"version": page.version, "allocation_id": identity, "changes": page.changes, "gpus": gpus}
            )
        )
        return 0
    print(f"version {page.version}, allocation {page.allocation_id.hex()}, changed {page.changes} times")
    for gpu in page.gpus:
        cores = f", {gpu.cores_percent} % of its time" if gpu.cores_percent else ""
        undeclared = f", {format_bytes(gpu.undeclared_bytes)} undeclared" if gpu.undeclared_bytes else ""
        own = f", {exact_size(gpu.physical_bytes)} of it on the GPU" if gpu.physical_bytes else ""
        print(f"{gpu.uuid}  {exact_size(gpu.memory_bytes)}{own}{cores}{undeclared}")
    return 0
