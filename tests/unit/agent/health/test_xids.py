# SPDX-License-Identifier: Apache-2.0
"""The table of Xids, and the rule for numbers that it does not have."""

import pytest

from agent.health.xids import XIDS, XidEffect, xid_row

CATALOGUE = {
    "RESTART_APP": (8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), 75, 76, 77, 80, *range(82, 87), 88, 89, 94,
                    *range(96, 106), *range(126, 136), 139),
    "IGNORE": (14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161),
    "RESET_GPU": (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    "RESTART_BM": (79,), "RESTART_VM": (151,), "CHECK_MECHANICALS": (54,), "UPDATE_SWFW": (78,), "CHECK_UVM": (159,),
    "WORKFLOW_XID_45": (45,), "WORKFLOW_XID_48": (48,), "XID_154": (154,), "WORKFLOW_NVLINK_ERR": (74,),
    "WORKFLOW_NVLINK5_ERR": tuple(range(144, 151)), "CONTACT_SUPPORT": (142,), "": tuple(range(162, 173)),
}  # fmt: skip
"""The numbers of NVIDIA's catalogue by their immediate action, as published in September 2026, the unused left out."""


def test_every_row_of_the_catalogue_is_there_with_its_action():
    wanted = {number: action for action, numbers in CATALOGUE.items() for number in numbers}
    assert sum(len(numbers) for numbers in CATALOGUE.values()) == len(wanted) == 111
    found = {row.number: row.action for row in XIDS.values()}
    assert {number: found.get(number) for number in wanted} == wanted
    assert set(found) - set(wanted) == {47, 65, 73}  # encoders of GPUs that the catalogue is not about


def test_what_asks_for_a_restart_of_the_program_or_for_nothing_never_makes_a_gpu_unhealthy():
    harmless = [*CATALOGUE["RESTART_APP"], *CATALOGUE["IGNORE"]]
    assert [number for number in harmless if xid_row(number).effect.fatal] == []
    assert [number for number in CATALOGUE["RESET_GPU"] if not xid_row(number).effect.fatal] == [109]


@pytest.mark.parametrize("number", [8, 13, 31, 43, 45, 47, 65, 68, 69, 94, 109, 142, 159])
def test_a_program_cannot_take_a_gpu_from_its_neighbours(number):
    assert not xid_row(number).effect.fatal


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143, 149, 158, 167, 169])
def test_a_gpu_that_errs_gets_no_new_containers(number):
    assert xid_row(number).effect.fatal


def test_a_gpu_off_the_bus_needs_the_machine():
    assert xid_row(79).effect is XidEffect.REBOOT


def test_an_unknown_number_makes_a_gpu_unhealthy_for_a_while():
    assert xid_row(9999).effect is XidEffect.UNHEALTHY


def test_the_verdict_is_the_catalogues_unless_a_note_says_why_not():
    usual = {
        "RESTART_APP": XidEffect.APPLICATION,
        "IGNORE": XidEffect.NOTICE,
        "RESET_GPU": XidEffect.RESET,
        "RESTART_BM": XidEffect.REBOOT,
    }
    assert [
        row.number for row in XIDS.values() if row.effect is not usual.get(row.action) and not row.note
    ] == []


def test_no_number_is_there_twice():
    from agent.health import xids

    numbers = [row.number for row in xids._ROWS]
    assert len(numbers) == len(set(numbers)) > 100


@pytest.mark.parametrize("number", sorted(XIDS))
def test_a_text_says_what_mends_it_and_not_that_time_does(number):
    row = XIDS[number]
    assert row.text.startswith(f"Xid {number}: {row.meaning}")
    assert ("reset" in row.text.partition(row.meaning)[2]) == (row.effect is XidEffect.RESET)
    assert ("new start of the machine" in row.text) == (row.effect is XidEffect.REBOOT)
    assert "until" not in row.text and "quiet" not in row.text
