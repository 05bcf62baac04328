"""`gigaslice dataset`: what has to do with datasets, one subcommand each.

Every module of agent/cli/_dataset is a subcommand of its name and offers what a command of this package does; only the
one that was asked for does more than add its arguments.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import pkgutil
from typing import TYPE_CHECKING, cast

from agent.cli import _dataset
from gigaslice.errors import ConfigError, MissingError

if TYPE_CHECKING:
    from agent.cli import Command

HELP = "datasets on this node: pack them, see them, evict them"
DESCRIPTION = "Datasets are fetched to a node once, as one image each, and mounted where pods ask for them."
SETTINGS = True  # a subcommand's own word counts; see run

_LIBRARIES = ("blake3", "obstore")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommands."""
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    for found in sorted(pkgutil.iter_modules(_dataset.__path__), key=lambda one: one.name):
        if found.name.startswith("_"):
            continue
        module = cast("Command", importlib.import_module(f"{_dataset.__name__}.{found.name}"))
        one = commands.add_parser(
            found.name, help=module.HELP, description=module.DESCRIPTION, allow_abbrev=False
        )
        module.add_arguments(one)
        one.set_defaults(subcommand_module=module)


def run(known: argparse.Namespace) -> int:
    """Runs the subcommand."""
    command: Command = known.subcommand_module
    if known.mistakes and not command.SETTINGS:
        raise ConfigError(known.mistakes)
    if not all(map(importlib.util.find_spec, _LIBRARIES)):
        raise MissingError("this command needs the libraries of datasets; pip install 'gigaslice[dataset]'")
    return command.run(known)
