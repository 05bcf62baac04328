"""`gigaslice cordon`: keeps new containers away from a GPU."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from agent.cli._shared import add_state_dir
from gigaslice.runtime.command_line.command import OK

HELP = "give a GPU to no new container; what runs on it goes on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the GPU and the reason."""
    parser.add_argument("gpu", metavar="GPU", help="UUID, the beginning of one, or index as in status")
    parser.add_argument("--reason", metavar="TEXT", default="", help="shown wherever the cordon is")
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    """Cordons the GPU."""
    from agent.commands import cordon

    print(cordon.cordon(Path(arguments.state_dir), arguments.gpu, arguments.reason, time.time()))
    return OK
