# SPDX-License-Identifier: Apache-2.0
"""`gigaslice scheduler`: runs the extender of a kube-scheduler."""

from __future__ import annotations

import argparse

from gigaslice.role_settings import SETTINGS_DESCRIPTION, from_command_line
from gigaslice.roles.scheduler.settings import SchedulerSettings
from gigaslice.runtime.command_line.command import OK
from gigaslice.runtime.settings import add_flags

HELP = "decide for a kube-scheduler which node and which GPUs a pod gets"
DESCRIPTION = SETTINGS_DESCRIPTION
SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every setting of the service."""
    add_flags(parser, SchedulerSettings)


def run(arguments: argparse.Namespace) -> int:
    """Runs the service until it is asked to end."""
    config = from_command_line(SchedulerSettings, arguments)
    from gigaslice.roles.scheduler import service

    service.run(config, arguments.frame.version)
    return OK
