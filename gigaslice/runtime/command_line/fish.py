# SPDX-License-Identifier: Apache-2.0
"""Completion for fish, made from a command's own parser: one `complete` line for each word that may be written."""

from __future__ import annotations

import argparse

from gigaslice.runtime.command_line.manual import arguments_of, commands_of, values_of

__all__ = ["fish_completion"]


def fish_completion(parser: argparse.ArgumentParser) -> str:
    """A script for fish: `COMMAND completion fish | source`."""
    name = parser.prog
    lines = [f"# fish completion of {name}; made by `{name} completion fish`", f"complete -c {name} -f"]
    for words, command in [("", parser), *((word, command) for word, _, command in commands_of(parser))]:
        below = [(word, text) for word, text, _ in commands_of(command) if " " not in word]
        condition = _condition(words, [word for word, _ in below])
        start = f"complete -c {name} -n {_quoted(condition)}"
        lines += [f"{start} -a {_quoted(word)} -d {_quoted(text)}" for word, text in below]
        for action in arguments_of(command):
            lines.append(" ".join(filter(None, [start, *_argument(command, action)])))
    return "\n".join(lines) + "\n"


def _condition(words: str, below: list[str]) -> str:
    """Where a command's own words may stand: after WORDS, its name, and before the commands BELOW it."""
    seen = [f"__fish_seen_subcommand_from {word}" for word in words.split()]
    if below:
        seen.append(f"not __fish_seen_subcommand_from {' '.join(below)}")
    return "; and ".join(seen) or "true"


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    """What follows the condition in the line of ACTION."""
    kind, values = values_of(action)
    if not action.option_strings:
        return [f"-a {_quoted(values)}"] if kind == "words" else ["-F"] if kind else [""]
    names = [
        f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in action.option_strings
    ]
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    value = ""
    if action.nargs != 0:
        value = f"-x -a {_quoted(values)}" if kind == "words" else "-r -F" if kind else "-x"
    return [*names, value, f"-d {_quoted(text)}" if text else ""]


def _quoted(text: str) -> str:
    return "'" + " ".join(text.split()).replace("\\", "\\\\").replace("'", "\\'") + "'"
