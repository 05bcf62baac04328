# SPDX-License-Identifier: Apache-2.0
"""The flag by which every command is told the form of what it prints."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

__all__ = ["add_format", "add_json"]

_FLAGS = ("--format", "-o", "--output")


def add_format(parser: argparse.ArgumentParser, formats: Sequence[str], meaning: str) -> None:
    """Adds the flag with the names that people know it by. The first of FORMATS is the default."""
    parser.add_argument(*_FLAGS, choices=tuple(formats), default=formats[0], help=meaning)


def add_json(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Adds --json, and the same as a format beside "table". What is parsed has `json`. MEANING: of --json."""
    parser.add_argument("--json", action="store_true", help=meaning)
    parser.add_argument(
        *_FLAGS,
        action=_JsonFormat,
        choices=("table", "json"),
        dest="json",
        default=argparse.SUPPRESS,
        help="table (default), or json, which is --json",
    )


class _JsonFormat(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del parser, option_string
        setattr(namespace, self.dest, values == "json")
