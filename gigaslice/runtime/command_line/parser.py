# SPDX-License-Identifier: Apache-2.0
"""The parser of both commands: argparse, with mistakes in one line that names what may have been meant."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from gigaslice.runtime.command_line.command import did_you_mean

__all__ = ["CommandParser"]


class CommandParser(argparse.ArgumentParser):
    """Says of a value that is none of the choices which one may be meant. What becomes of a mistake is its heir's."""

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses ARGS, as argparse does."""
        self._words = () if args is None else args
        return super().parse_known_args(args, namespace)

    def _parse_known_args(self, arg_strings: Any, namespace: Any, *more: Any) -> Any:
        if self._subparsers is not None and arg_strings:
            self._check_flag(arg_strings[0].partition("=")[0])
        return super()._parse_known_args(arg_strings, namespace, *more)

    def _check_flag(self, word: str) -> None:
        """Names an unknown flag that stands before the command, of which argparse would say that a command lacks."""
        flags = self._option_string_actions
        if word[:2] == "--" and word != "--" and not any(flag.startswith(word) for flag in flags):
            meant = did_you_mean(word, flags)
            raise argparse.ArgumentError(
                None, f"unrecognized arguments: {word}" + (f"; {meant}" if meant else "")
            )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        question = did_you_mean(str(value), map(str, action.choices))
        question = question or f"write one of {', '.join(map(str, action.choices))}"
        if isinstance(action, argparse._SubParsersAction):
            raise argparse.ArgumentError(None, f"there is no command {value!r}; {question}")
        known = self._option_string_actions
        for word in (
            () if action.option_strings else self._words
        ):  # it may be the value of an option with a slip in it
            if word[:2] == "--" and word != "--" and word.partition("=")[0] not in known:
                meant = did_you_mean(word.partition("=")[0], known)
                raise argparse.ArgumentError(
                    None, f"unrecognized arguments: {word}" + (f"; {meant}" if meant else "")
                )
        raise argparse.ArgumentError(action, f"cannot be {value!r}; {question}")
