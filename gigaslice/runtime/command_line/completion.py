# SPDX-License-Identifier: Apache-2.0
"""`gigaslice completion`, `vcuda completion`: prints a script that completes the command in a shell."""

from __future__ import annotations

import argparse

from gigaslice.runtime.command_line import manual
from gigaslice.runtime.command_line.command import OK

HELP = "print a script that completes this command in a shell"
DESCRIPTION = "bash and zsh: source <({program} completion bash); fish: {program} completion fish | source"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the shell."""
    parser.add_argument("shell", metavar="SHELL", choices=manual.SHELLS, help=", ".join(manual.SHELLS))


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    from gigaslice.runtime.command_line.fish import fish_completion

    scripts = {
        "bash": manual.bash_completion,
        "fish": fish_completion,
        "zsh": manual.zsh_completion,
    }
    print(scripts[arguments.shell](arguments.frame.make_parser()), end="")
    return OK
