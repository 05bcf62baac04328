"""What several commands need: exit codes, lines on standard error, arguments that mean the same everywhere."""

from __future__ import annotations

import argparse
import sys

from agent import config
from gigaslice.core.text import plain
from gigaslice.runtime import settings

__all__ = [
    "EXIT_STATUS",
    "FAILED",
    "MISSING",
    "MISTAKE",
    "OK",
    "SETTINGS_DESCRIPTION",
    "add_state_dir",
    "report",
    "setting",
]

OK, FAILED, MISTAKE, MISSING = 0, 1, 2, 3
EXIT_STATUS = (
    "0: done. 1: what was asked failed. 2: a mistake in flags, environment or files, one line each. 3: the machine "
    "lacks something, such as a driver or a permission."
)
SETTINGS_DESCRIPTION = (
    "Flags can also be set in the environment (GIGASLICE_STATE_DIR) or in the file (stateDir)."
)


def report(code: int, *lines: str) -> int:
    """Prints LINES on standard error; returns CODE."""
    for line in lines:
        print(f"gigaslice: {plain(line)}", file=sys.stderr)
    return code


def setting(flag: str) -> settings.Setting:
    """The node agent's setting of the name FLAG."""
    return next(row for row in config.SETTINGS if row.flag == flag)


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """Adds --state-dir with the node agent's default."""
    default = setting("state-dir").default
    parser.add_argument("--state-dir", metavar="DIR", default=default, help=f"default: {default}")
