# SPDX-License-Identifier: Apache-2.0
"""No function of the driver is overlooked: each has a decision, and the library is what the decisions say."""

from __future__ import annotations

import re

import pytest

from tests.native import check_library
from tests.unit.native import surface

# A name like this takes memory, or may: one that is let pass has its reason here.
TAKES = re.compile(r"Alloc|Create|Import|Map|Instantiate|Load|Retain|Reserve|Register|Bind|Launch|SetLimit")

TABLES = [("cuda", surface.declared_cuda), ("nvml", surface.declared_nvml)]


def undecided(declared: set[str], table: dict[str, surface.Entry]) -> list[str]:
    return sorted(declared - set(table))


@pytest.mark.parametrize(("name", "declared"), TABLES, ids=["cuda", "nvml"])
def test_every_declared_function_has_a_decision(name, declared):
    names = declared()
    assert len(names) > 400, "the headers were not understood"
    assert undecided(names, surface.table(name)) == [], f"decide in tests/unit/native/{name}.csv"


def test_a_new_header_with_another_allocator_is_noticed():
    """As the next CUDA would bring it: a new name, and a new ABI version of an old one behind a macro."""
    text = """
    #define cuMemAllocFaster cuMemAllocFaster_v2
    #define cuMemCreate cuMemCreate_v9
    typedef int CUresult;
    CUresult cuMemAllocFaster(void **p, unsigned long n);
    CUresult cuMemCreate(void **p);
    CUresult cuMemFree_v2(unsigned long long p);
    """
    declared = surface.declared_in(text)
    assert undecided(declared, surface.table("cuda")) == ["cuMemAllocFaster_v2", "cuMemCreate_v9"]


@pytest.mark.parametrize("name", ["cuda", "nvml"])
def test_the_library_hooks_what_was_decided_and_nothing_else(name):
    decided = {entry.symbol for entry in surface.table(name).values() if entry.decision == "hook"}
    prefix = {"cuda": "cu", "nvml": "nvml"}[name]
    hooked = {symbol for symbol in check_library.listed_symbols() if re.match(rf"{prefix}[A-Z]", symbol)}
    table, lists = f"tests/unit/native/{name}.csv", {"cuda": "cuda/*.def", "nvml": "nvml.def"}[name]
    assert sorted(decided - hooked) == [], f"`hook` in {table}, and not in native/hooks/{lists}"
    assert sorted(hooked - decided) == [], f"in native/hooks/{lists}, and not `hook` in {table}"


@pytest.mark.parametrize("name", ["cuda", "nvml"])
def test_tables_are_well_formed(name):
    entries = list(surface.table(name).values())
    table = f"tests/unit/native/{name}.csv"
    symbols = [entry.symbol for entry in entries]
    assert symbols == sorted(symbols), f"{table} is sorted by symbol"
    assert {entry.decision for entry in entries} <= set(surface.DECISIONS), table
    assert [entry.symbol for entry in entries if not entry.family] == [], f"{table}: without a family"


def test_whatever_may_take_memory_and_passes_has_a_reason():
    entries = surface.table("cuda").values()
    bare = [e.symbol for e in entries if TAKES.search(e.symbol) and e.decision != "hook" and not e.why]
    assert bare == [], "say in tests/unit/native/cuda.csv why they pass"


def test_all_versions_of_a_hooked_function_are_hooked():
    """Old ABIs and per-thread-stream twins take memory as well as the newest one."""
    entries = surface.table("cuda")
    families: dict[str, set[str]] = {}
    for entry in entries.values():
        base = re.sub(r"(_v\d+)?(_pt[ds]s|_ptsz)?$", "", entry.symbol)
        families.setdefault(base, set()).add(entry.decision)
    assert sorted(base for base, found in families.items() if "hook" in found and "pass" in found) == []
