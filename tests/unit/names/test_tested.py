# SPDX-License-Identifier: Apache-2.0
"""The check for names without a test sees what it looks for."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.native import check_library
from tests.unit.names import tested


@cache
def all_words() -> set[str]:
    """Of all tests. Not read when this module is imported, which every process of `make test` does."""
    return tested.words_of_tests(tested.files_of_tests())


def test_every_metric_and_hook_is_named_in_a_test() -> None:
    names = tested.metric_names() | check_library.listed_symbols()
    assert len(names) > 400
    assert list(tested.mistakes(names, all_words())) == []


def test_a_new_name_needs_a_test() -> None:
    """Also one that only begins like a name that has one: each ABI version is a symbol of its own."""
    names = {"cuMemAlloc_v2", "cuMemAlloc_v9", "gigaslice_new_total"}
    new, metric = tested.mistakes(names, all_words() - {"cuMemAlloc_v9", "gigaslice_new_total"})
    assert new.startswith("cuMemAlloc_v9 is named in no test: ")
    assert metric.startswith("gigaslice_new_total is named in no test: ")


def test_remarks_are_no_tests(tmp_path: Path) -> None:
    python, c = tmp_path / "test_it.py", tmp_path / "client.c"
    python.write_text(
        '"""of_module."""\n'
        "def test():\n"
        '    """of_function."""\n'
        "    # of_comment\n"
        '    run("driver.in_program(1)", b"in_bytes", f"{x} in_f_string", api.attribute)\n'
        '    assert seen["a_histogram_bucket"]\n'
    )
    c.write_text("/* of_remark */ int f(void) { return cuCalled(); } // of_line\n")
    table = tmp_path / "calls.def"
    table.write_text("/* of_table */\nCALL(cuListed, (1))\n")
    words = tested.words_of_tests([python, c, table])
    assert words >= {
        "in_program",
        "in_bytes",
        "in_f_string",
        "attribute",
        "a_histogram",
        "cuCalled",
        "cuListed",
    }
    assert not words & {"of_module", "of_function", "of_comment", "of_remark", "of_line", "of_table"}
