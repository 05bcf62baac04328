# SPDX-License-Identifier: Apache-2.0
"""`gigaslice status`: shows the containers and GPUs of this node."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from agent.commands.node_flags import add_state_dir
from gigaslice.runtime.command_line.output import add_json
from gigaslice.runtime.command_line.watch import Picture, add_watch, show

HELP = "show which container holds what on this node"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where the state is and how it is shown."""
    add_state_dir(parser)
    add_json(parser, "print JSON instead of a table")
    add_watch(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints two tables, or one JSON document."""
    from agent.commands import status_rows

    state_dir = Path(arguments.state_dir)

    def picture() -> Picture:
        rows, gpus = status_rows.collect(state_dir), status_rows.gpus(state_dir)
        limits = status_rows.driver_limits(state_dir)
        if arguments.json:
            indent = None if arguments.watch is not None else 2
            return Picture(json.dumps(status_rows.as_json(rows, gpus, limits), indent=indent))
        parts = [status_rows.as_table(rows)]
        parts += [status_rows.gpus_table(gpus)] if gpus else []
        parts += [status_rows.driver_limits_text(limits)] if limits else []
        return Picture("\n\n".join(parts))

    return show(picture, arguments.watch, documents=arguments.json)
