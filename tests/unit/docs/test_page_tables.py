# SPDX-License-Identifier: Apache-2.0
"""A program's table goes between its two comments, and a page whose comments are gone is said."""

from __future__ import annotations

import pytest

from tests.unit.docs.page_tables import blocks, markdown, rendered

PAGE = "Text.\n\n<!-- table: prices -->\n| old |\n<!-- end -->\n\nMore.\n"


def test_only_the_table_changes() -> None:
    table = markdown(("a", "b"), [("1|2", r"\1")])
    assert table == "| a | b |\n| --- | --- |\n| 1\\|2 | \\1 |\n"
    page = rendered(PAGE, {"prices": lambda: table, "of another page": lambda: ""})
    assert page == PAGE.replace("| old |\n", table)
    assert blocks(page) == {"prices": table}


@pytest.mark.parametrize("page", ["Text.\n", PAGE + PAGE.replace("prices", "sizes")])
def test_a_page_without_the_table_or_with_another_one_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="there can be: prices"):
        rendered(page, {"prices": str})
