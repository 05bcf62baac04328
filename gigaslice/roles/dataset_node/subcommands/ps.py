# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset ps`: the datasets of this node, and the pods that wait for some."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gigaslice.runtime.command_line.output import add_json
from gigaslice.runtime.command_line.watch import Picture, add_watch, show

HELP = "the datasets of this node: where they are from, how large, who uses them, how far they are"
DESCRIPTION = "Asks the dataset service of this node, on the socket in its state directory."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the directory and the form."""
    parser.add_argument(
        "--state-dir", metavar="DIR", default="/var/lib/gigaslice-dataset", help="of the service"
    )
    add_json(parser, "everything there is, for programs")
    add_watch(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints what the service says."""
    from gigaslice.roles.dataset_node.subcommands import service_requests

    def picture() -> Picture:
        listing = service_requests.listed(Path(arguments.state_dir))
        if arguments.json:
            return Picture(json.dumps(listing, indent=None if arguments.watch is not None else 2))
        return Picture(service_requests.as_lines(listing))

    return show(picture, arguments.watch, documents=arguments.json)
