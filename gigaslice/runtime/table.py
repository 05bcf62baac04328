"""Tables of plain text for people: one line a row, columns side by side, no borders.

Used by every command that prints a table. Cells are printed as they are: text of others is made harmless before
(`gigaslice.core.text.plain`). Nothing is wrapped. On a terminal a cell that is longer than its column may be ends in
"…"; what goes into a file or to a program is whole.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Column", "as_table"]

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """One column. least, most: its width in characters, at least and at most; most 0: as wide as its longest cell."""

    heading: str
    right: bool = False
    least: int = 0
    most: int = 0


def as_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, whole: bool | None = None) -> str:
    """The headings and ROWS as lines, without blanks at their ends.

    Args:
        columns: The columns.
        rows: A cell for each column.
        whole: Whether no cell is cut; None: unless standard output is a terminal.
    """
    if whole is None:
        whole = not sys.stdout.isatty()
    lines = [[column.heading for column in columns], *rows]
    cells = [
        [_cut(cell, 0 if whole else column.most) for cell, column in zip(line, columns, strict=True)]
        for line in lines
    ]
    widths = [
        max(column.least, *map(_width, each))
        for column, each in zip(columns, zip(*cells, strict=True), strict=True)
    ]
    return "\n".join(
        _GAP.join(map(_padded, line, widths, (column.right for column in columns))).rstrip() for line in cells
    )


def _padded(cell: str, width: int, right: bool) -> str:
    blanks = " " * (width - _width(cell))
    return blanks + cell if right else cell + blanks


def _cut(cell: str, most: int) -> str:
    if not most or _width(cell) <= most:
        return cell
    while _width(cell) > most - 1:
        cell = cell[:-1]
    return cell + "…"


def _width(text: str) -> int:
    """Columns of a terminal that TEXT takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )
