"""`gigaslice man`: prints the manual page of all commands."""

from __future__ import annotations

import argparse

import vcuda
from agent.cli._shared import EXIT_STATUS, OK

HELP = "print the manual page"
DESCRIPTION = "gigaslice man | man -l -"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing."""


def run(arguments: argparse.Namespace) -> int:
    """Prints the page."""
    from agent.cli import make_parser
    from vcuda import manual

    print(manual.man_page(make_parser(), vcuda.__version__, EXIT_STATUS), end="")
    return OK
