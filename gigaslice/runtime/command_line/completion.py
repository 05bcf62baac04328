"""`gigaslice completion`, `vcuda completion`: prints a script that completes the command in a shell."""

from __future__ import annotations

import argparse

from gigaslice.runtime.command_line import manual
from gigaslice.runtime.command_line.command import OK

HELP = "print a script that completes this command in a shell"
DESCRIPTION = "source <({program} completion bash)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the shell."""
    parser.add_argument("shell", metavar="SHELL", choices=manual.SHELLS, help="bash")


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    print(manual.bash_completion(arguments.frame.make_parser()), end="")
    return OK
