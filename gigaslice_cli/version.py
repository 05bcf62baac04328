# SPDX-License-Identifier: Apache-2.0
"""`gigaslice version`: shows the version."""

from __future__ import annotations

import argparse

from gigaslice.runtime.command_line.command import OK

HELP = "show the version"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing."""


def run(arguments: argparse.Namespace) -> int:
    """Prints one line."""
    print(f"gigaslice {arguments.frame.version}")
    return OK
