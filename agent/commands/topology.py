# SPDX-License-Identifier: Apache-2.0
"""`gigaslice topology`: draws how the GPUs of this node are connected."""

from __future__ import annotations

import argparse

from agent import config
from agent.commands.node_flags import setting
from gigaslice.runtime import settings
from gigaslice.runtime.command_line.command import OK, report
from gigaslice.runtime.command_line.output import add_format

HELP = "show how the GPUs are joined and what that costs"
DESCRIPTION = "The resource-access-cost tree by which GPUs are chosen: the farther apart, the higher."
FORMATS = ("text", "dot", "svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where GPUs come from and the format."""
    for row in (setting("inventory"), setting("slice")):
        parser.add_argument(f"--{row.flag}", metavar=row.metavar, help=f"{row.help} (default: {row.default})")
    add_format(parser, FORMATS, "text (default), Graphviz dot, or SVG")


def run(arguments: argparse.Namespace) -> int:
    """Prints the drawing, and what is odd about the hardware on standard error."""
    from agent.commands import topology_drawing
    from agent.roles import discovery

    flags = {"inventory": arguments.inventory, "slice": arguments.slice}
    loaded = config.load(flags, settings.environment())
    inventory = discovery.scan_once(loaded)
    report(OK, *loaded.warnings, *inventory.warnings)
    print(topology_drawing.FORMATS[arguments.format](topology_drawing.draw(inventory)))
    return OK
