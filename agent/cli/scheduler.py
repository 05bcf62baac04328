"""`gigaslice scheduler`: runs the extender of a kube-scheduler."""

from __future__ import annotations

import argparse

import vcuda
from agent.cli._shared import OK, SETTINGS_DESCRIPTION
from gigaslice.runtime import settings

HELP = "decide for a kube-scheduler which node and which GPUs a pod gets"
DESCRIPTION = SETTINGS_DESCRIPTION
SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every setting of the service."""
    from gigaslice.scheduler.settings import SchedulerSettings

    settings.add_flags(parser, SchedulerSettings)


def run(known: argparse.Namespace) -> int:
    """Runs the service until it is asked to end."""
    from gigaslice.scheduler.settings import SchedulerSettings

    found = settings.load(
        SchedulerSettings,
        settings.flags_of(SchedulerSettings, known),
        settings.environment(),
        mistakes=known.mistakes,
    )
    from agent.config import kubernetes_service
    from gigaslice.scheduler import service

    service.run(found, kubernetes_service(settings.environment()), vcuda.__version__)
    return OK
