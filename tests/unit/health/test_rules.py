"""Strikes, probation and relapses on a clock that the test holds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.discovery.source import Vitals
from agent.health.rules import Ailment, CardHealth, settled, standing, struck

XID = Ailment("xid-95", "Xid 95: uncontained memory error")
ECC = Ailment("ecc", "1 uncorrectable memory error")
PROBATION = 600.0


def test_a_strike_makes_a_card_sick_at_once():
    card = struck(CardHealth(), [XID], 100.0)
    assert (card.sick, card.since, card.text) == (True, 100.0, XID.text)


def test_it_is_well_when_it_was_quiet_for_the_probation():
    card = struck(CardHealth(), [XID], 100.0)
    assert settled(card, PROBATION, 699.9).sick
    assert not settled(card, PROBATION, 700.0).sick


def test_another_strike_begins_the_probation_anew():
    card = struck(struck(CardHealth(), [XID], 100.0), [ECC], 600.0)
    assert settled(card, PROBATION, 700.0).sick
    assert [one.code for one in card.ailments] == ["xid-95", "ecc"]
    assert card.since == 100.0


def test_each_relapse_waits_twice_as_long():
    card, now, waits = CardHealth(), 100.0, []
    for _ in range(4):
        card = struck(card, [XID], now)
        waits.append(card.probation(PROBATION))
        now += waits[-1]
        card = settled(card, PROBATION, now)
        assert not card.sick
        now += 60
    assert waits == [600, 1200, 2400, 4800]


def test_after_a_day_of_health_it_is_no_relapse():
    card = settled(struck(CardHealth(), [XID], 100.0), PROBATION, 700.0)
    assert struck(card, [XID], 700.0 + 86399).relapses == 1
    assert struck(card, [XID], 700.0 + 86400).relapses == 0


def test_a_clock_that_was_set_back_does_not_keep_a_card_for_ever():
    card = settled(struck(CardHealth(), [XID], 1e9), PROBATION, 1000.0)
    assert card.sick
    assert not settled(card, PROBATION, 1600.0).sick


def test_errors_before_the_first_look_are_no_news():
    card, found = standing(CardHealth(), Vitals(uncorrectable=7))
    assert (found, card.ecc) == ((), 7)


def test_a_counter_that_rises_is_an_ailment_once():
    card, _ = standing(CardHealth(), Vitals(uncorrectable=7))
    card, found = standing(card, Vitals(uncorrectable=9))
    assert [one.text for one in found] == ["2 uncorrectable memory errors"]
    assert standing(card, Vitals(uncorrectable=9))[1] == ()


def test_a_counter_that_falls_was_reset():
    card, _ = standing(CardHealth(), Vitals(uncorrectable=7))
    card, found = standing(card, Vitals(uncorrectable=0))
    assert (found, card.ecc) == ((), 0)
    assert standing(card, Vitals(uncorrectable=1))[1]


@pytest.mark.parametrize(
    ("vitals", "code"),
    [
        (Vitals(lost=True), "lost"),
        (Vitals(remap_failed=True), "remapping"),
        (Vitals(recovery="reset of the GPU"), "recovery"),
    ],
)
def test_a_state_that_lasts_keeps_probation_from_beginning(vitals, code):
    card = CardHealth()
    for now in range(0, 6000, 10):
        card, found = standing(card, vitals)
        card = settled(struck(card, found, float(now)), PROBATION, float(now))
        assert [one.code for one in card.ailments] == [code]
    assert not settled(card, PROBATION, 5990 + PROBATION).sick


@given(st.lists(st.floats(0, 5000), max_size=40))
def test_however_often_it_errs_it_comes_back_seldom(pauses):
    """Between two recoveries lie more than the probation; after n relapses more than 2^n of it."""
    card, now, recoveries = CardHealth(), 0.0, []
    for pause in pauses:
        now += pause
        was = card.sick
        card = settled(card, PROBATION, now)
        if was and not card.sick:
            recoveries.append(now)
        card = struck(card, [XID], now)
    gaps = [later - earlier for earlier, later in pairwise(recoveries)]
    assert all(gap >= PROBATION * 2 for gap in gaps)
