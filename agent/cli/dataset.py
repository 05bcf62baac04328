"""`gigaslice dataset`: the dataset service of a node, and what else has to do with datasets as subcommands.

Every module of agent/cli/_dataset is a subcommand of its name and offers what a command of this package does; only the
one that was asked for does more than add its arguments.
"""

from __future__ import annotations

import argparse

import vcuda
from agent.cli import _dataset, _packages
from agent.cli._commands import add_commands
from agent.cli._shared import OK, SETTINGS_DESCRIPTION
from gigaslice.role_settings import from_command_line
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.runtime.settings import add_flags

HELP = (
    "fetch datasets to this node and mount them where pods ask; with a subcommand: see, pack and delete them"
)
DESCRIPTION = (
    "Without a subcommand: the dataset service of a node, a CSI driver of the kubelet. "
    + SETTINGS_DESCRIPTION
)
SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the settings of the service, and the subcommands."""
    add_flags(parser, DatasetSettings)
    add_commands(parser, _dataset.__name__, _dataset.__path__)


def run(arguments: argparse.Namespace) -> int:
    """Runs the service until it is asked to end."""
    config = from_command_line(DatasetSettings, arguments)
    from gigaslice.roles.dataset_node import service

    _packages.need("obstore")  # loaded with the first bucket
    service.run(config, vcuda.__version__)
    return OK
