# SPDX-License-Identifier: Apache-2.0
"""Within a folder of the library nothing goes round: a file can be read after those that it uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.native.circles import calls, circles, folder, includes, reachable
from tests.native.running import LIBRARY

ROOT = Path(__file__).resolve().parents[3]
OBJECTS = LIBRARY.parent / "native" / "release"


@pytest.mark.parametrize("name", ["base", "shm", "table", "hooks", "cuda", "nvml"])
def test_no_circle_of_includes(name: str) -> None:
    graph = includes(folder(name))
    assert len(graph) > 1, "the sources were not found"
    assert list(circles(graph)) == []


@pytest.mark.parametrize("name", ["base", "shm", "table", "hooks", "cuda", "nvml"])
def test_no_circle_of_calls(name: str) -> None:
    graph = calls(folder(name), OBJECTS)
    assert len(graph) > 1, "the objects were not found: make native"
    assert list(circles(graph)) == []


def test_a_new_allocator_is_named_by_the_list_alone() -> None:
    """What the list of native/init.c is for: allocators.c asks all of them and uses none."""
    assert calls(folder("cuda"), OBJECTS)["allocators"] == set()


def test_the_ledger_is_in_layers() -> None:
    """Locks, then slots, then charges, then views: none leads to a later one."""
    graph = calls(folder("shm"), OBJECTS)
    layers = ["ledger_hold", "ledger_slots", "ledger_charge", "ledger_view"]
    for number, layer in enumerate(layers):
        assert not reachable(graph, layer) & set(layers[number + 1 :])


def test_a_circle_is_seen() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e"}}
    assert list(circles(graph)) == [["b", "c"]]
    assert list(circles({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == [["a", "b", "c"]]


def test_tests_that_headers_name_exist() -> None:
    """ "Tests: ..." in the first comment of a source; a name alone is of the folder that was named before it."""
    sources = [
        path for top in ("native", "tests/fakedriver") for path in sorted((ROOT / top).rglob("*.[ch]"))
    ]
    assert len(sources) > 100
    for source in sources:
        folder = ROOT
        for name in re.findall(r"((?:tests/[\w/]+/)?test_\w+\.(?:py|c))", source.read_text()):
            path = ROOT / name if "/" in name else folder / name
            assert path.is_file(), f"{source.relative_to(ROOT)} names {name}"
            folder = path.parent
