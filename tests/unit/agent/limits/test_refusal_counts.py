# SPDX-License-Identifier: Apache-2.0
"""What counts as risen: not what another agent has counted, not a number that fell, and nothing twice."""

from __future__ import annotations

from agent.ledgers.usage import Reading
from agent.limits.refusal_counts import RefusalCounts
from gigaslice.core.allocation.table import Allocation
from tests.fakes.nodes import allocation, table

FIRST, SECOND = allocation(1, (0, range(8))), allocation(2, (0, range(8, 12)))


class Ledgers:
    """Ledgers of allocations, and what is counted in them."""

    def __init__(self, *present: Allocation) -> None:
        self.table = table(*present)
        self.readings: dict[str, Reading] = {}
        self.counts = RefusalCounts(
            lambda: self.table, lambda: self.readings, lambda ledger: ledger.driver_refused
        )

    def say(self, one: Allocation, problem: str | None = None, **numbers: int) -> None:
        self.readings[one.id] = Reading({}, {}, problem=problem, driver_refused=numbers)

    def rises(self) -> dict[str, dict[str, int]]:
        return {one.id: risen for one, _, risen in self.counts.rises()}


def test_an_allocation_that_was_there_before_begins_with_what_its_ledger_has() -> None:
    ledgers = Ledgers(FIRST)
    ledgers.table = table(FIRST, SECOND)
    ledgers.say(FIRST, gpu=5)
    ledgers.say(SECOND, gpu=2)
    assert ledgers.rises() == {FIRST.id: {}, SECOND.id: {"gpu": 2}}
    ledgers.say(FIRST, gpu=6, other=1)
    assert ledgers.rises() == {FIRST.id: {"gpu": 1, "other": 1}, SECOND.id: {}}


def test_what_cannot_be_read_goes_on_where_it_was() -> None:
    ledgers = Ledgers()
    ledgers.table = table(FIRST)
    assert ledgers.rises() == {}, "it was not read yet"
    ledgers.say(FIRST, gpu=2)
    assert ledgers.rises() == {FIRST.id: {"gpu": 2}}
    ledgers.say(FIRST, problem="damaged", gpu=9)
    assert ledgers.rises() == {}
    ledgers.say(FIRST, gpu=3)
    assert ledgers.rises() == {FIRST.id: {"gpu": 1}}


def test_a_number_that_falls_or_goes_is_no_rise_and_begins_anew() -> None:
    ledgers = Ledgers()
    ledgers.table = table(FIRST)
    for number, risen in ((4, 4), (1, 0), (3, 2)):
        ledgers.say(FIRST, gpu=number)
        assert ledgers.rises()[FIRST.id].get("gpu", 0) == risen
    ledgers.say(FIRST)
    assert ledgers.rises() == {FIRST.id: {}}
    ledgers.say(FIRST, gpu=3)
    assert ledgers.rises() == {FIRST.id: {"gpu": 3}}


def test_an_allocation_that_has_ended_is_forgotten() -> None:
    ledgers = Ledgers()
    ledgers.table = table(FIRST)
    ledgers.say(FIRST, gpu=4)
    ledgers.rises()
    ledgers.table = table()
    assert ledgers.rises() == {}
    ledgers.table = table(FIRST)
    assert ledgers.rises() == {FIRST.id: {"gpu": 4}}
