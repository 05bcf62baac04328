# SPDX-License-Identifier: Apache-2.0
"""What is deleted for a new dataset: the vectors, and an oracle that tries every set."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.eviction import EvictionCandidate, idle_since, room_for, to_evict

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", VECTORS["cache_eviction"], ids=lambda vector: vector["id"])
def test_vectors(vector):
    cached = [EvictionCandidate(**one) for one in vector["entries"]]
    free = vector["capacity"] - sum(one.size for one in cached)
    chosen = to_evict(free, cached, vector["need"])
    result = "refuse" if chosen is None else "evicted" if chosen else "fits"
    assert (result, list(chosen or ())) == (vector["result"], vector["evicted"])


@given(st.integers(0, 1 << 62))
def test_the_room_is_a_fifth_more_than_the_size_and_no_float_rounds_it(size):
    assert room_for(size) == math.ceil(Fraction(12, 10) * size)


ENTRIES = st.lists(
    st.builds(EvictionCandidate, st.uuids().map(str), st.integers(0, 50), st.integers(0, 4), st.booleans()),
    max_size=7,
)


@given(st.integers(-20, 100), ENTRIES, st.integers(0, 100))
def test_it_is_the_shortest_run_of_the_longest_unused_that_is_enough(free, cached, size):
    idle = sorted((one for one in cached if not one.in_use), key=lambda one: (one.last_used, one.name))
    runs = [idle[:count] for count in range(len(idle) + 1)]
    enough = [run for run in runs if free + sum(one.size for one in run) >= room_for(size)]
    expected = tuple(one.name for one in enough[0]) if enough else None
    assert to_evict(free, cached, size) == expected
    subsets = itertools.chain.from_iterable(itertools.combinations(idle, n) for n in range(len(idle) + 1))
    possible = any(free + sum(one.size for one in some) >= room_for(size) for some in subsets)
    assert (expected is not None) == possible, "where any choice is enough, one is made"


def test_what_has_not_been_used_for_long_is_named_the_oldest_first():
    cached = [
        EvictionCandidate("b", 1, 20),
        EvictionCandidate("a", 1, 10),
        EvictionCandidate("used", 1, 5, in_use=True),
        EvictionCandidate("new", 1, 90),
    ]
    assert idle_since(cached, 50) == ("a", "b")
