"""The modules of a package as commands: what each offers, and how they become commands of a parser."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Iterable
from typing import Protocol, cast

__all__ = ["Command", "add_commands", "loads_settings"]


class Command(Protocol):
    """What a module of a command offers.

    It may have a DESCRIPTION too, and SETTINGS = True where it loads settings.
    """

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments to PARSER."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Runs the command with ARGUMENTS; the exit code."""


def loads_settings(command: Command) -> bool:
    """Whether COMMAND loads settings, and reports unknown arguments together with their mistakes (`mistakes`)."""
    return bool(getattr(command, "SETTINGS", False))


def add_commands(
    parser: argparse.ArgumentParser,
    package: str,
    path: Iterable[str],
    *,
    only: str = "",
    required: bool = False,
) -> None:
    """Adds the modules of PACKAGE, which is at PATH, as commands; those that begin with an underscore are none.

    A command's name has a dash where its module's has an underscore.

    ONLY is imported alone where there is a command of that name. What is parsed has `module`, which is the command, and
    its `flags`.
    """
    modules = sorted(module.name for module in pkgutil.iter_modules(path))
    names = [name.replace("_", "-") for name in modules if not name.startswith("_")]
    commands = parser.add_subparsers(dest="command", required=required, metavar="COMMAND")
    for name in [only] if only in names else names:
        module = cast(Command, importlib.import_module(f"{package}.{name.replace('-', '_')}"))
        description = getattr(module, "DESCRIPTION", None)
        subparser = commands.add_parser(name, help=module.HELP, description=description, allow_abbrev=False)
        module.add_arguments(subparser)
        flags = [
            flag for action in subparser._actions for flag in action.option_strings if flag.startswith("--")
        ]
        subparser.set_defaults(flags=flags, module=module)
