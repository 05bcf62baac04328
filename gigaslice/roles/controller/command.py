# SPDX-License-Identifier: Apache-2.0
"""`gigaslice controller`: runs the cluster's controller."""

from __future__ import annotations

import argparse

from gigaslice.role_settings import SETTINGS_DESCRIPTION, from_command_line
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.runtime.command_line.command import OK
from gigaslice.runtime.settings import add_flags

HELP = "keep classes, GPU objects and events of the cluster; serve admission and the web page"
DESCRIPTION = SETTINGS_DESCRIPTION
SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every setting of the controller."""
    add_flags(parser, ControllerConfig)


def run(arguments: argparse.Namespace) -> int:
    """Runs the controller until it is asked to end."""
    config = from_command_line(ControllerConfig, arguments)
    from gigaslice.roles.controller import role

    role.run(config)
    return OK
