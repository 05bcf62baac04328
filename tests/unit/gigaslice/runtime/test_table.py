# SPDX-License-Identifier: Apache-2.0
"""Columns side by side, whatever is in them."""

import re

from gigaslice.runtime.table import Column, as_table


def test_columns_are_as_wide_as_their_longest_cell():
    rows = [("a", "1", "x"), ("longer", "1000", "")]
    assert as_table([Column("NAME"), Column("N", right=True), Column("NOTE")], rows).splitlines() == [
        "NAME       N  NOTE",
        "a          1  x",
        "longer  1000",
    ]


def test_headings_alone_are_a_table():
    assert as_table([Column("A", least=3), Column("B")], []) == "A    B"


def test_a_long_cell_is_cut_and_a_narrow_column_widened():
    columns = [Column("NAME", most=8), Column("PID", right=True, least=5)]
    rows = [("exactly8", "1"), ("more than8", "22")]
    assert as_table(columns, rows, whole=False).splitlines() == [
        "NAME        PID",
        "exactly8      1",
        "more th…     22",
    ]


def test_nothing_is_cut_where_no_terminal_is(monkeypatch):
    columns, rows = [Column("NAME", most=8)], [("more than8",)]
    assert as_table(columns, rows) == "NAME\nmore than8"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert as_table(columns, rows) == "NAME\nmore th…"


A, B = "GPU-6e1b0a2c-0f3d-4a5b-8c7d-0123456789ab", "GPU-9f020000-0f3d-4a5b-8c7d-0123456789ab"


def test_uuids_are_short_on_a_terminal_and_nowhere_else(monkeypatch):
    columns, rows = [Column("GPU", uuids=True), Column("UUID")], [(A, A), (B, "-")]
    assert as_table(columns, rows).splitlines()[1] == f"{A}  {A}"
    assert as_table(columns, rows, whole=False).splitlines()[1:] == [f"GPU-6e1b0a2c  {A}", "GPU-9f020000  -"]
    assert as_table(columns, rows, whole=True).splitlines()[1] == f"{A}  {A}"


def test_colours_go_around_cells_and_leave_columns_as_they_are(monkeypatch):
    columns = [
        Column("NAME"),
        Column("STATE", style=lambda cell: "bad" if cell == "lost" else ""),
        Column("N", right=True),
    ]
    rows = [("a", "lost", "1"), ("longer", "fine", ""), ("", "lost", "22")]
    plain = as_table(columns, rows, colour=False)
    painted = as_table(columns, rows, colour=True)
    assert re.sub(r"\x1b\[[0-9]*m", "", painted) == plain
    heading, first, second, _ = painted.splitlines()
    assert heading == "\x1b[1mNAME\x1b[0m    \x1b[1mSTATE\x1b[0m   \x1b[1mN\x1b[0m"
    assert first == "a       \x1b[31mlost\x1b[0m    1" and "\x1b" not in second
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert as_table(columns, rows) == painted
    monkeypatch.setenv("NO_COLOR", "1")
    assert as_table(columns, rows) == plain


def test_wide_and_combining_characters_take_their_room():
    lines = as_table(
        [Column("N", most=5), Column("X")], [("模型模型", "1"), ("e\u0301a", "2")], whole=False
    ).splitlines()
    assert lines == ["N      X", "模型…  1", "e\u0301a     2"]


def test_a_cell_is_made_shorter_before_it_is_cut():
    column = Column("A", most=6, shorter=lambda cell, most: cell.removeprefix("/long/"))
    rows = [["/long/it"], ["/long/than that"], ["short"]]
    assert as_table([column], rows, whole=False, colour=False).splitlines() == ["A", "it", "than …", "short"]
    assert as_table([column], rows, whole=True, colour=False).splitlines()[1] == "/long/it"
