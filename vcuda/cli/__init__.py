# SPDX-License-Identifier: Apache-2.0
"""The command ``vcuda``: arguments in, exit code out; each subcommand is a module, found by its name in a table.

Exit codes: 0 done, 1 what was asked failed, 2 a mistake in usage or configuration, 3 the machine lacks something (no
driver, no permission); ``vcuda run`` passes on the program's own, 128 + n for signal n. Every mistake is one line on
stderr. Heavy imports (tables, NVML) happen in the subcommand that needs them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from gigaslice.runtime.command_line.command import (
    FAILED,
    MISSING,
    MISTAKE,
    OK,
    Command,
    CommandFrame,
    add_commands,
    did_you_mean,
    speak_as,
)
from gigaslice.runtime.command_line.parser import CommandParser
from vcuda import errors
from vcuda.version import VERSION

__all__ = ["main", "make_parser", "split_command"]

COMMANDS = {
    "run": "vcuda.cli.run",
    "ps": "vcuda.cli.ps",
    "doctor": "vcuda.cli.doctor",
    "limits": "vcuda.cli.limits",
    "jupyter": "vcuda.cli.jupyter",
    "man": "gigaslice.runtime.command_line.man",
    "completion": "gigaslice.runtime.command_line.completion",
}
"""The commands in the order of --help: name -> module."""

_EXIT_STATUS = (
    "0: done. 1: what was asked failed. 2: a mistake in usage or configuration. 3: the machine lacks something, such "
    "as a driver or a permission. vcuda run passes on the program's own, 128 + n for signal n."
)


class _Parser(CommandParser):
    """Mistakes as one line, without the usage text around them."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISTAKE, f"{self.prog}: error: {errors.printable(message)}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; ARGV without the program's name. Returns the exit code."""
    words, tail = split_command(list(sys.argv[1:] if argv is None else argv))
    parsed = _parsed(words)
    parsed.tail, parsed.frame = tail, CommandFrame(VERSION, _EXIT_STATUS, make_parser)
    command: Command = parsed.module
    speak_as(f"vcuda {parsed.subcommand}")
    try:
        code = command.run(parsed)
        sys.stdout.flush()
    except errors.VcudaError as error:
        print(f"vcuda {parsed.subcommand}: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader (head, less) has ended
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:  # an error that no command expects: still one line
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"vcuda {parsed.subcommand}: error: {errors.printable(f'{where}{error.strerror}')}",
            file=sys.stderr,
        )
        return MISSING if isinstance(error, PermissionError) else FAILED
    except KeyboardInterrupt:
        return 130
    return code


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the command line of ``vcuda run`` at its first "--"; leaves other subcommands whole."""
    if list(words[:1]) == ["run"] and "--" in words:
        at = list(words).index("--")
        return list(words[:at]), list(words[at:])
    return list(words), []


def make_parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of COMMAND alone, which imports no other; of all commands where none has that name."""
    parser = _Parser(
        prog="vcuda",
        description="Limits the GPU memory of commands, and shows their usage.",
        epilog="exit codes: 0 done, 1 failed, 2 wrong usage, 3 the machine lacks something",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"vcuda {VERSION}")
    add_commands(parser, COMMANDS, only=command, required=True)
    return parser


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. A mistake ends the process, with one line that names what may have been meant."""
    parser = make_parser(words[0] if words else "")
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        parser.error(f"there is no command {words[0]!r}{_hint(words[0], COMMANDS)}")
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        hint = _hint(unknown[0].partition("=")[0], parsed.flags)
        parsed.parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return parsed


def _hint(word: str, names: Iterable[str]) -> str:
    question = did_you_mean(word, names)
    return f"; {question}" if question else ""
