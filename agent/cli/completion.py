"""`gigaslice completion`: prints a script that completes this command in a shell."""

from __future__ import annotations

import argparse

from agent.cli._shared import OK
from vcuda import manual

HELP = "print a script that completes this command in a shell"
DESCRIPTION = "source <(gigaslice completion bash)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the shell."""
    parser.add_argument("shell", metavar="SHELL", choices=manual.SHELLS, help="bash")


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    from agent.cli import make_parser

    print(manual.bash_completion(make_parser()), end="")
    return OK
