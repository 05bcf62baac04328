"""The table of Xids, and the rule for numbers that it does not have."""

import pytest

from agent.health.xids import XIDS, Verdict, judge


@pytest.mark.parametrize("number", [8, 13, 31, 43, 45, 68, 69, 94, 109])
def test_a_program_cannot_take_a_card_from_its_neighbours(number):
    assert not judge(number).verdict.fatal


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143, 149, 158])
def test_a_card_that_errs_gets_no_new_containers(number):
    assert judge(number).verdict.fatal


def test_a_card_off_the_bus_needs_the_machine():
    assert judge(79).verdict is Verdict.REBOOT


def test_an_unknown_number_makes_a_card_sick_for_a_while():
    assert judge(9999).verdict is Verdict.SICK


def test_the_verdict_is_the_catalogues_unless_a_note_says_why_not():
    usual = {
        "RESTART_APP": Verdict.APPLICATION,
        "IGNORE": Verdict.NOTICE,
        "RESET_GPU": Verdict.RESET,
        "RESTART_BM": Verdict.REBOOT,
    }
    assert [
        row.number for row in XIDS.values() if row.verdict is not usual.get(row.action) and not row.note
    ] == []


def test_no_number_is_there_twice():
    from agent.health import xids

    numbers = [row.number for row in xids._ROWS]
    assert len(numbers) == len(set(numbers)) > 100
