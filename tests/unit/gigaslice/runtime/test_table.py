"""Columns side by side, whatever is in them."""

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
    assert as_table(columns, rows) == "NAME\nmore th…"


def test_wide_and_combining_characters_take_their_room():
    lines = as_table(
        [Column("N", most=5), Column("X")], [("模型模型", "1"), ("e\u0301a", "2")], whole=False
    ).splitlines()
    assert lines == ["N      X", "模型…  1", "e\u0301a     2"]
