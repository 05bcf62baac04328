# SPDX-License-Identifier: Apache-2.0
"""A command is a module: what it offers, how a table of such modules becomes commands of a parser, and exit codes.

Only the command that was asked for is imported, and its `run` imports what does the work: a role is half a thousand
modules and takes a second on a slow machine, which a command that reads one file, or a mistake in a flag, should not
wait for. So a command's module must be cheap to import: --help imports all of them.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from gigaslice.core.text import plain

__all__ = [
    "FAILED",
    "MISSING",
    "MISTAKE",
    "OK",
    "Command",
    "CommandFrame",
    "add_commands",
    "did_you_mean",
    "loads_settings",
    "report",
    "speak_as",
    "speaker",
]

OK, FAILED, MISTAKE, MISSING = 0, 1, 2, 3
"""0: done. 1: what was asked failed. 2: a mistake in flags, environment or files. 3: the machine lacks something."""


class Command(Protocol):
    """What a module of a command offers.

    It may have a DESCRIPTION too, in which {program} is the program's name, and SETTINGS = True if it loads settings.
    """

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments to PARSER."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Runs the command with ARGUMENTS, whose `frame` is a CommandFrame; the exit code."""


@dataclass(frozen=True, slots=True)
class CommandFrame:
    """What a command may ask of the frame that runs it: the program's version, and the parser of all its commands.

    exit_status: a paragraph of the manual page.
    """

    version: str
    exit_status: str
    make_parser: Callable[[], argparse.ArgumentParser]


def loads_settings(command: Command) -> bool:
    """Whether COMMAND loads settings, and reports unknown arguments together with their mistakes (`mistakes`)."""
    return bool(getattr(command, "SETTINGS", False))


def add_commands(
    parser: argparse.ArgumentParser, modules: Mapping[str, str], *, only: str = "", required: bool = False
) -> None:
    """Adds commands in the order of MODULES: name -> module.

    ONLY is imported alone where there is a command of that name. What is parsed has `subcommand`, the name; `module`,
    which is the command; its `flags`; and its `parser`.
    """
    commands = parser.add_subparsers(dest="subcommand", required=required, metavar="COMMAND")
    for name in [only] if only in modules else modules:
        module = cast(Command, importlib.import_module(modules[name]))
        description = getattr(module, "DESCRIPTION", None)
        if description is not None:
            description = description.replace("{program}", parser.prog)
        subparser = commands.add_parser(name, help=module.HELP, description=description, allow_abbrev=False)
        module.add_arguments(subparser)
        flags = [
            flag for action in subparser._actions for flag in action.option_strings if flag.startswith("--")
        ]
        subparser.set_defaults(flags=flags, module=module, parser=subparser)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """A question for the one of NAMES that WORD resembles; empty where none does.

    A name of the same letters comes first: "nodse" is closer to "node" than to "nodes" by what they have in common.
    """
    choices = [*names]
    mixed_up = [name for name in choices if sorted(name) == sorted(word)]
    near = mixed_up or difflib.get_close_matches(word, choices, n=1)
    return f"did you mean {near[0]}?" if near else ""


class _Speaker:
    """Which command the lines on standard error are of."""

    name = "gigaslice"


def speak_as(name: str) -> None:
    """Has lines on standard error begin with the name of a command, such as "gigaslice top"."""
    _Speaker.name = name


def speaker() -> str:
    """The name with which lines on standard error begin."""
    return _Speaker.name


def report(code: int, *lines: str) -> int:
    """Prints LINES of a command on standard error, as errors unless CODE is OK; returns CODE."""
    for line in lines:
        print(f"{_Speaker.name}: {'' if code == OK else 'error: '}{plain(line)}", file=sys.stderr)
    return code
