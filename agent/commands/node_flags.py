# SPDX-License-Identifier: Apache-2.0
"""Flags that mean the same for several commands of the node agent."""

from __future__ import annotations

import argparse

from agent import config
from gigaslice.runtime import settings

__all__ = ["add_state_dir", "setting"]


def setting(flag: str) -> settings.Setting:
    """The node agent's setting of the name FLAG."""
    return next(row for row in config.SETTINGS if row.flag == flag)


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """Adds --state-dir with the node agent's default."""
    default = setting("state-dir").default
    parser.add_argument("--state-dir", metavar="DIR", default=default, help=f"default: {default}")
