"""`gigaslice controller`: runs the cluster's controller."""

from __future__ import annotations

import argparse

from agent.cli._shared import OK, SETTINGS_DESCRIPTION
from gigaslice.runtime import settings

HELP = "keep classes, GPU objects and events of the cluster; serve admission and the web page"
DESCRIPTION = SETTINGS_DESCRIPTION
SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every setting of the controller."""
    from gigaslice.controller.config import ControllerConfig

    settings.add_flags(parser, ControllerConfig)


def run(known: argparse.Namespace) -> int:
    """Runs the controller until it is asked to end."""
    from gigaslice.controller import config, role

    flags = settings.flags_of(config.ControllerConfig, known)
    role.run(config.load(flags, settings.environment(), mistakes=known.mistakes))
    return OK
