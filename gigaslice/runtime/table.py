# SPDX-License-Identifier: Apache-2.0
"""Tables of plain text for people: one line a row, columns side by side, no borders.

Used by every command that prints a table. Cells are printed as they are: text of others is made harmless before
(`gigaslice.core.text.plain`). Nothing is wrapped. On a terminal a cell that is longer than its column may be ends in
"…", UUIDs are short, headings are bold and states have colours, as `gigaslice.runtime.terminal` says; what goes into a
file or to a program is whole.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gigaslice.core.uuids import short_uuids
from gigaslice.runtime.terminal import painted, terminal

__all__ = ["Column", "as_table"]

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """One column. least, most: its width in characters, at least and at most; most 0: as wide as its longest cell.

    shorter: what a longer cell is before it is cut, from the cell and MOST. uuids: whether it has UUIDs of GPUs. style:
    the style of a cell, one of `gigaslice.runtime.terminal.STYLES`.
    """

    heading: str
    right: bool = False
    least: int = 0
    most: int = 0
    shorter: Callable[[str, int], str] | None = None
    uuids: bool = False
    style: Callable[[str], str] | None = None


def as_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    whole: bool | None = None,
    colour: bool | None = None,
) -> str:
    """The headings and ROWS as lines, without blanks at their ends.

    Args:
        columns: The columns.
        rows: A cell for each column.
        whole: Whether no cell is cut; None: unless standard output is a terminal.
        colour: Whether it has colours; None: as standard output has.
    """
    if whole is None:
        whole = not sys.stdout.isatty()
    if colour is None:
        colour = terminal(sys.stdout).colour
    styles = [
        ["heading"] * len(columns),
        *([_style(*cell) for cell in zip(row, columns, strict=True)] for row in rows),
    ]
    if not whole:
        rows = _with_short_uuids(columns, rows)
    lines = [[column.heading for column in columns], *rows]
    cells = [
        [cell if whole else _fitted(cell, column) for cell, column in zip(line, columns, strict=True)]
        for line in lines
    ]
    widths = [
        max(column.least, *map(_width, each))
        for column, each in zip(columns, zip(*cells, strict=True), strict=True)
    ]
    rights = [column.right for column in columns]
    return "\n".join(
        _line(line, widths, rights, style if colour else None)
        for line, style in zip(cells, styles, strict=True)
    )


def _line(
    cells: Sequence[str], widths: Sequence[int], rights: Sequence[bool], styles: Sequence[str] | None
) -> str:
    """One line, without blanks at its end; styles go around what is in a cell, and not around its blanks."""
    last = max((number for number, cell in enumerate(cells) if cell), default=-1)
    parts = []
    for number, (cell, width, right) in enumerate(zip(cells, widths, rights, strict=True)):
        if number > last:
            break
        blanks = " " * (width - _width(cell))
        text = painted(cell, styles[number]) if styles is not None else cell
        parts.append(blanks + text if right else text if number == last else text + blanks)
    return _GAP.join(parts).rstrip()


def _style(cell: str, column: Column) -> str:
    return column.style(cell) if column.style is not None else ""


def _with_short_uuids(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """ROWS with the beginnings of UUIDs, where columns have some."""
    places = [number for number, column in enumerate(columns) if column.uuids]
    short = short_uuids(row[number] for row in rows for number in places)
    return [[short[cell] if number in places else cell for number, cell in enumerate(row)] for row in rows]


def _fitted(cell: str, column: Column) -> str:
    most = column.most
    if not most or _width(cell) <= most:
        return cell
    if column.shorter is not None:
        cell = column.shorter(cell, most)
    if _width(cell) <= most:
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
