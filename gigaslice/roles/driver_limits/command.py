# SPDX-License-Identifier: Apache-2.0
"""`gigaslice driver-limits`: runs the role that sets the driver's own memory limits for the node agent."""

from __future__ import annotations

import argparse

from gigaslice.role_settings import SETTINGS_DESCRIPTION
from gigaslice.roles.driver_limits.settings import DriverLimitSettings
from gigaslice.runtime import settings
from gigaslice.runtime.command_line.command import OK

HELP = "set the driver's own memory limits of pods, for the node agent"
DESCRIPTION = SETTINGS_DESCRIPTION
SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every setting of the role."""
    settings.add_flags(parser, DriverLimitSettings)


def run(arguments: argparse.Namespace) -> int:
    """Runs the role until it is asked to end."""
    config = settings.load(
        DriverLimitSettings,
        settings.flags_of(DriverLimitSettings, arguments),
        settings.environment(),
        mistakes=arguments.mistakes,
    )
    from gigaslice.roles.driver_limits import service

    service.run(config, arguments.frame.version)
    return OK
