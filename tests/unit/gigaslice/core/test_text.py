# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.text import plain


@pytest.mark.parametrize("text, shown", [
    ("as it is: ünïcode, 8 GiB", "as it is: ünïcode, 8 GiB"), ("two\nlines\tand\r\nmore", "two lines and more"),
    ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"), ("\x9b31m", "\\x9b31m"), ("a\x00b", "a\\x00b"),
    ("\u202elie", "\\u202elie"),
    ("half \udcff", "half \\udcff"), ("", ""), ("\n", ""),
])  # fmt: skip
def test_nothing_is_left_that_a_terminal_would_act_on(text, shown):
    assert plain(text) == shown


@given(st.text(st.characters(codec=None)))
def test_anything_becomes_one_printable_line(text):
    assert plain(text).isprintable()
    plain(text).encode()
    assert plain(plain(text)) == plain(text)
