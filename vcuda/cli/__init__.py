"""The command ``vcuda``: arguments in, exit code out; each subcommand is a module of this package.

Exit codes: 0 done, 1 what was asked failed, 2 a mistake in usage or configuration, 3 the machine lacks something (no
driver, no permission); ``vcuda run`` passes on the program's own, 128 + n for signal n. Every mistake is one line on
stderr. Heavy imports (tables, NVML) happen in the subcommand that needs them.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from vcuda import errors, manual
from vcuda.cli import doctor, limits, ps, run
from vcuda.version import VERSION

__all__ = ["main"]

_EXIT_STATUS = (
    "0: done. 1: what was asked failed. 2: a mistake in usage or configuration. 3: the machine lacks something, such "
    "as a driver or a permission. vcuda run passes on the program's own, 128 + n for signal n."
)


class _Parser(argparse.ArgumentParser):
    """Mistakes as one line, without the usage text around them."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {errors.printable(message)}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; ARGV without the program's name. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    own, command = run.split_command(words)
    parsed = _parsed(own)
    parsed.tail = command
    try:
        code: int = parsed.action(parsed)
        sys.stdout.flush()
    except errors.VcudaError as error:
        print(f"vcuda {parsed.subcommand}: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader (head, less) has ended
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # an error that no command expects: still one line
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"vcuda {parsed.subcommand}: error: {errors.printable(f'{where}{error.strerror}')}",
            file=sys.stderr,
        )
        return 3 if isinstance(error, PermissionError) else 1
    except KeyboardInterrupt:
        return 130
    return code


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. A mistake ends the process, with one line that names what may have been meant."""
    parser = _parser()
    commands = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    if words and not words[0].startswith("-") and words[0] not in commands:
        parser.error(f"there is no command {words[0]!r}{_nearest(words[0], commands)}")
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        flags = [flag for action in commands[parsed.subcommand]._actions for flag in action.option_strings]
        hint = _nearest(unknown[0].partition("=")[0], flags)
        commands[parsed.subcommand].error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return parsed


def _nearest(word: str, among: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, [*among], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="vcuda",
        description="Limits the GPU memory of commands, and shows their usage.",
        epilog="exit codes: 0 done, 1 failed, 2 wrong usage, 3 the machine lacks something",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"vcuda {VERSION}")
    subparsers = parser.add_subparsers(
        dest="subcommand", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for module in (run, ps, doctor, limits):
        module.configure(subparsers)
    page = subparsers.add_parser(
        "man", help="print the manual page", description="vcuda man | man -l -", allow_abbrev=False
    )
    page.set_defaults(action=lambda _: _shown(manual.man_page(parser, VERSION, _EXIT_STATUS)))
    script = subparsers.add_parser(
        "completion",
        help="print a script that completes this command in a shell",
        description="source <(vcuda completion bash)",
        allow_abbrev=False,
    )
    script.add_argument("shell", metavar="SHELL", choices=manual.SHELLS, help="bash")
    script.set_defaults(action=lambda _: _shown(manual.bash_completion(parser)))
    return parser


def _shown(text: str) -> int:
    print(text, end="")
    return 0
