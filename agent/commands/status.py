"""`gigaslice status`: shows the containers and GPUs of this node."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from agent.commands.node_flags import add_state_dir
from gigaslice.runtime.command_line.command import OK

HELP = "show which container holds what on this node"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where the state is and how it is shown."""
    add_state_dir(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Prints two tables, or one JSON document."""
    from agent.commands import status_rows

    state_dir = Path(arguments.state_dir)
    rows, gpus = status_rows.collect(state_dir), status_rows.gpus(state_dir)
    limits = status_rows.driver_limits(state_dir)
    if arguments.json:
        print(json.dumps(status_rows.as_json(rows, gpus, limits), indent=2))
    else:
        parts = [status_rows.as_table(rows)]
        parts += [status_rows.gpus_table(gpus)] if gpus else []
        parts += [status_rows.driver_limits_text(limits)] if limits else []
        print("\n\n".join(parts))
    return OK
