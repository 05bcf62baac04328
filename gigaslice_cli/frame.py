# SPDX-License-Identifier: Apache-2.0
"""The frame of `gigaslice`: reads the arguments, runs a command, and turns every error into lines and an exit code.

0: done. 1: what was asked failed. 2: a mistake in flags, environment or files, one line each. 3: the machine lacks
something, such as a driver or a permission. Only the frame and the commands print to the user and decide exit codes.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from typing import NoReturn

import vcuda
from gigaslice.core.errors import ConfigError, GigasliceError, MissingError, MistakesError
from gigaslice.runtime.command_line.command import (
    FAILED,
    MISSING,
    MISTAKE,
    Command,
    CommandFrame,
    add_commands,
    did_you_mean,
    loads_settings,
    report,
    speak_as,
)
from gigaslice.runtime.command_line.parser import CommandParser
from gigaslice.runtime.files import remedy
from gigaslice_cli.commands import COMMANDS

__all__ = ["main", "make_parser"]

_EXIT_STATUS = (
    "0: done. 1: what was asked failed. 2: a mistake in flags, environment or files, one line each. 3: the machine "
    "lacks something, such as a driver or a permission."
)


class _Parser(CommandParser):
    """Raises instead of exiting, so that a mistake is one line and is reported with the others."""

    def error(self, message: str) -> NoReturn:
        speak_as(self.prog)
        raise ConfigError([f"{message}; see {self.prog} --help"])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command ARGV (without the program's name; sys.argv if None) and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    speak_as(" ".join(["gigaslice", *(word for word in arguments[:1] if word in COMMANDS)]))
    try:
        return _dispatch(arguments)
    except MistakesError as error:
        return report(MISTAKE, *error.mistakes)
    except MissingError as error:
        return report(MISSING, str(error))
    except GigasliceError as error:
        return report(FAILED, str(error))
    except vcuda.VcudaError as error:
        return report(error.exit_code, str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return FAILED
    except OSError as error:  # of the machine, not of this program
        _log(error, "console" if "debug" in arguments else "")
        name = f"{error.filename}: " if error.filename else ""
        return report(FAILED, f"{name}{error.strerror or error}; {remedy(error)}")
    except ModuleNotFoundError as error:
        from gigaslice.runtime.command_line import extras

        lacking = extras.remedy(error.name)
        return report(MISSING, lacking) if lacking else _internal(error)
    except Exception as error:  # noqa: BLE001  (the outermost border: a user gets a line, a developer the stack)
        return _internal(error)


def make_parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of COMMAND alone, which imports no other; of all commands where none has that name."""
    parser = _Parser(prog="gigaslice", description="Shares NVIDIA GPUs between containers by the gigabyte.")
    parser.add_argument(
        "--version", action="version", version=f"gigaslice {vcuda.__version__}", help="show the version"
    )
    add_commands(parser, COMMANDS, only=command, required=True)
    return parser


def _dispatch(arguments: list[str]) -> int:
    parsed, unknown = make_parser(arguments[0] if arguments else "").parse_known_args(arguments)
    parsed.frame = CommandFrame(vcuda.__version__, _EXIT_STATUS, make_parser)
    speak_as(parsed.parser.prog)
    parsed.mistakes = tuple(_unknown(argument, parsed) for argument in _without_values(unknown, arguments))
    if parsed.mistakes and not loads_settings(parsed.module):
        raise ConfigError(parsed.mistakes)
    command: Command = parsed.module
    return command.run(parsed)


def _without_values(unknown: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The UNKNOWN ones of ARGUMENTS without those that are values of an unknown flag: one slip is one line."""
    flags = {word for word in unknown if word.startswith("--") and "=" not in word}
    values = {
        value for flag, value in itertools.pairwise(arguments) if flag in flags and not value.startswith("-")
    }
    return [word for word in unknown if word not in values]


def _unknown(argument: str, parsed: argparse.Namespace) -> str:
    question = did_you_mean(argument.partition("=")[0], parsed.flags)
    hints = [*filter(None, [question]), f"see {parsed.parser.prog} --help"]
    return f"unrecognized arguments: {argument}; {'; '.join(hints)}"


def _internal(error: Exception) -> int:
    _log(error, "console")
    detail = " ".join(str(error).split())
    return report(
        FAILED, f"internal error: {type(error).__name__}: {detail}; please report it with the lines above"
    )


def _log(error: Exception, style: str) -> None:
    """Logs ERROR with its stack: as the role has set up its log, else in STYLE, if any."""
    from gigaslice.runtime import logs
    from gigaslice.runtime.structlog_lean import structlog

    if not structlog.is_configured():
        if not style:
            return
        logs.set_up("error", style)
    logs.internal_error(error)
