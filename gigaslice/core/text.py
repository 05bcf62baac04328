# SPDX-License-Identifier: Apache-2.0
"""Makes text from outside fit to be shown: one line without anything that a terminal, a log or an event would act on.

Annotations, names and messages of tenants and peers reach terminals through `kubectl describe`, `journalctl` and the
commands of this project. Every place that hands such text on passes it through here: events, log lines, errors of
calls and the output of commands.
"""

from __future__ import annotations

import re

__all__ = ["plain", "plural", "whole_characters"]

_HALVES = re.compile("[\ud800-\udfff]")


def plain(text: str) -> str:
    """TEXT in one line: white space as single blanks, everything else that does not print as its escape.

    That goes for escape sequences, other control characters, marks that turn the direction of writing, and halves of
    surrogate pairs, which no encoding takes.
    """
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)


def whole_characters(text: str) -> str:
    """TEXT with U+FFFD for every half of a surrogate pair, which no encoding takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _HALVES.sub("\ufffd", text)
    return text


def plural(count: int, what: str) -> str:
    """COUNT and the word for it: "1 node", "3 nodes"."""
    return f"{count} {what}{'' if count == 1 else 's'}"
