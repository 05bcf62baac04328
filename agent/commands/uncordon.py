# SPDX-License-Identifier: Apache-2.0
"""`gigaslice uncordon`: gives a GPU to new containers again."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent.commands.cordon import uncordon
from agent.commands.node_flags import add_state_dir
from gigaslice.runtime.command_line.command import OK

HELP = "give a GPU to new containers again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the GPU."""
    parser.add_argument("gpu", metavar="GPU", help="UUID, the beginning of one, or index as in status")
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ends the GPU's cordon."""
    print(uncordon(Path(arguments.state_dir), arguments.gpu))
    return OK
