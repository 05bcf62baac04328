# SPDX-License-Identifier: Apache-2.0
"""`gigaslice man`, `vcuda man`: prints the manual page of all commands."""

from __future__ import annotations

import argparse

from gigaslice.runtime.command_line.command import OK

HELP = "print the manual page"
DESCRIPTION = "{program} man | man -l -"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing."""


def run(arguments: argparse.Namespace) -> int:
    """Prints the page."""
    from gigaslice.runtime.command_line import manual

    frame = arguments.frame
    print(manual.man_page(frame.make_parser(), frame.version, frame.exit_status), end="")
    return OK
