"""`gigaslice version`: shows the version."""

from __future__ import annotations

import argparse

import vcuda
from agent.cli._shared import OK

HELP = "show the version"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing."""


def run(arguments: argparse.Namespace) -> int:
    """Prints one line."""
    print(f"gigaslice {vcuda.__version__}")
    return OK
