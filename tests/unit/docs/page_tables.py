# SPDX-License-Identifier: Apache-2.0
"""Tables of a page of docs that a program writes: each stands between a comment with its name and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

_BLOCK = re.compile(r"(<!-- table: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; a bar in a cell would end it."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def blocks(text: str) -> dict[str, str]:
    """The tables that a page has, by name."""
    return {match[2]: match[3] for match in _BLOCK.finditer(text)}


def rendered(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """The page with its tables made anew.

    Args:
        text: The page.
        tables: Name -> what makes the table; it may have more than the page.

    Raises:
        ValueError: The page has no table, or one that TABLES lacks.
    """
    found = blocks(text)
    if not found or found.keys() - tables.keys():
        there = ", ".join(sorted(found)) or "none"
        raise ValueError(f"tables of the page: {there}; there can be: {', '.join(sorted(tables))}")
    return _BLOCK.sub(lambda match: match[1] + tables[match[2]]() + match[4], text)
