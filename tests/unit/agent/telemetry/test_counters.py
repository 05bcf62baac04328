# SPDX-License-Identifier: Apache-2.0
"""Sums that only rise, whatever becomes of what they are made of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.telemetry.counters import Totals

NAME, WHO = "gigaslice_container_oom_errors_total", ("default", "a", "c0")


def value(totals):
    return {labels: total for _, labels, total in totals}


def test_what_ends_stays_counted():
    totals = Totals()
    for parts, total in (({"p": 3}, 3), ({"p": 5, "q": 1}, 6), ({"q": 1}, 6), ({}, 6), ({"q": 1}, 7)):
        totals.note(NAME, WHO, "g", parts)
        assert value(totals) == {WHO: total}


def test_what_is_given_back_and_spent_again_counts_once():
    totals = Totals()
    for spent, total in ((5.0, 5.0), (4.0, 5.0), (4.5, 5.0), (6.0, 6.0)):
        totals.note(NAME, WHO, "g", {"": spent})
        assert value(totals) == {WHO: total}


def test_what_was_there_before_the_agent_does_not_count_and_what_comes_does():
    totals = Totals()
    totals.note(NAME, WHO, "g", {"p": 7}, begin=True)
    assert value(totals) == {WHO: 0}
    totals.note(NAME, WHO, "g", {"p": 8, "q": 2})
    assert value(totals) == {WHO: 3}


def test_a_pod_that_follows_one_of_its_name_goes_on_with_its_sum():
    totals = Totals()
    totals.note(NAME, WHO, "old", {"p": 4})
    totals.note(NAME, WHO, "new", {"p": 1})
    totals.keep({"new"})
    assert value(totals) == {WHO: 5}
    totals.keep({"new"})
    totals.note(NAME, WHO, "new", {"p": 2})
    assert value(totals) == {WHO: 6}
    totals.keep(())
    assert value(totals) == {}


rounds = st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 9), max_size=4), max_size=12)


@given(rounds)
def test_no_order_of_numbers_makes_it_fall(seen):
    totals, before = Totals(), 0.0
    for parts in seen:
        totals.note(NAME, WHO, "g", parts)
        now = value(totals)[WHO]
        assert now >= before and now >= max(parts.values(), default=0)
        before = now
