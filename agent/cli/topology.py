"""`gigaslice topology`: draws how the GPUs of this node are connected."""

from __future__ import annotations

import argparse

from agent import config
from agent.cli._shared import OK, report, setting
from gigaslice.runtime import settings

HELP = "show how the GPUs are joined and what that costs"
DESCRIPTION = "The resource-access-cost tree by which GPUs are chosen: the farther apart, the higher."
SETTINGS = False
FORMATS = ("text", "dot", "svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where GPUs come from and the format."""
    for one in (setting("inventory"), setting("slice")):
        parser.add_argument(f"--{one.flag}", metavar=one.metavar, help=f"{one.help} (default: {one.default})")
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="text (default), Graphviz dot, or SVG"
    )


def run(known: argparse.Namespace) -> int:
    """Prints the drawing, and what is odd about the hardware on standard error."""
    from agent.commands import topology
    from agent.roles import discovery

    flags = {"inventory": known.inventory, "slice": known.slice}
    loaded = config.load(flags, settings.environment())
    inventory = discovery.scan_once(loaded)
    report(OK, *loaded.warnings, *inventory.warnings)
    print(topology.FORMATS[known.format](topology.draw(inventory)))
    return OK
