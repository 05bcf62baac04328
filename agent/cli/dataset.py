"""`gigaslice dataset`: the dataset service of a node, and what else has to do with datasets as subcommands.

Every module of agent/cli/_dataset is a subcommand of its name and offers what a command of this package does; only the
one that was asked for does more than add its arguments.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from typing import TYPE_CHECKING, cast

import vcuda
from agent.cli import _dataset, _packages
from agent.cli._shared import OK, SETTINGS_DESCRIPTION
from gigaslice.dataset_node.settings import DatasetSettings
from gigaslice.errors import ConfigError
from gigaslice.role_settings import from_command_line
from gigaslice.runtime.settings import add_flags

if TYPE_CHECKING:
    from agent.cli import Command

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
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND")
    for module_info in sorted(pkgutil.iter_modules(_dataset.__path__), key=lambda module: module.name):
        if module_info.name.startswith("_"):
            continue
        module = cast("Command", importlib.import_module(f"{_dataset.__name__}.{module_info.name}"))
        subparser = commands.add_parser(
            module_info.name, help=module.HELP, description=module.DESCRIPTION, allow_abbrev=False
        )
        module.add_arguments(subparser)
        subparser.set_defaults(subcommand_module=module)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand, or the service until it is asked to end."""
    command: Command | None = getattr(arguments, "subcommand_module", None)
    if command is not None and arguments.mistakes and not command.SETTINGS:
        raise ConfigError(arguments.mistakes)
    if command is not None:
        return command.run(arguments)
    config = from_command_line(DatasetSettings, arguments)
    from gigaslice.dataset_node import service

    _packages.need("obstore")  # loaded with the first bucket
    service.run(config, vcuda.__version__)
    return OK
