# SPDX-License-Identifier: Apache-2.0
"""Strikes, cooldown and relapses on a clock that the test holds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.health.conditions import Condition, GpuHealth, after_cooldown, observed_conditions, with_conditions
from agent.inventory.source import Vitals

XID = Condition("xid-95", "Xid 95: uncontained memory error")
ECC = Condition("ecc", "1 uncorrectable memory error")
COOLDOWN = 600.0


def test_a_strike_makes_a_gpu_unhealthy_at_once():
    gpu = with_conditions(GpuHealth(), [XID], 100.0)
    assert (gpu.unhealthy, gpu.since, gpu.text) == (True, 100.0, XID.text)


def test_it_is_well_when_it_was_quiet_for_the_cooldown():
    gpu = with_conditions(GpuHealth(), [XID], 100.0)
    assert after_cooldown(gpu, COOLDOWN, 699.9).unhealthy
    assert not after_cooldown(gpu, COOLDOWN, 700.0).unhealthy


def test_another_strike_begins_the_cooldown_anew():
    gpu = with_conditions(with_conditions(GpuHealth(), [XID], 100.0), [ECC], 600.0)
    assert after_cooldown(gpu, COOLDOWN, 700.0).unhealthy
    assert [one.code for one in gpu.conditions] == ["xid-95", "ecc"]
    assert gpu.since == 100.0


def test_each_relapse_waits_twice_as_long():
    gpu, now, waits = GpuHealth(), 100.0, []
    for _ in range(4):
        gpu = with_conditions(gpu, [XID], now)
        waits.append(gpu.cooldown(COOLDOWN))
        now += waits[-1]
        gpu = after_cooldown(gpu, COOLDOWN, now)
        assert not gpu.unhealthy
        now += 60
    assert waits == [600, 1200, 2400, 4800]


def test_after_a_day_of_health_it_is_no_relapse():
    gpu = after_cooldown(with_conditions(GpuHealth(), [XID], 100.0), COOLDOWN, 700.0)
    assert with_conditions(gpu, [XID], 700.0 + 86399).relapses == 1
    assert with_conditions(gpu, [XID], 700.0 + 86400).relapses == 0


def test_a_clock_that_was_set_back_does_not_keep_a_gpu_for_ever():
    gpu = after_cooldown(with_conditions(GpuHealth(), [XID], 1e9), COOLDOWN, 1000.0)
    assert gpu.unhealthy
    assert not after_cooldown(gpu, COOLDOWN, 1600.0).unhealthy


def test_errors_before_the_first_look_are_no_news():
    gpu, found = observed_conditions(GpuHealth(), Vitals(uncorrectable=7))
    assert (found, gpu.ecc) == ((), 7)


def test_a_counter_that_rises_is_a_condition_once():
    gpu, _ = observed_conditions(GpuHealth(), Vitals(uncorrectable=7))
    gpu, found = observed_conditions(gpu, Vitals(uncorrectable=9))
    assert [one.text for one in found] == ["2 uncorrectable memory errors"]
    assert observed_conditions(gpu, Vitals(uncorrectable=9))[1] == ()


def test_a_counter_that_falls_was_reset():
    gpu, _ = observed_conditions(GpuHealth(), Vitals(uncorrectable=7))
    gpu, found = observed_conditions(gpu, Vitals(uncorrectable=0))
    assert (found, gpu.ecc) == ((), 0)
    assert observed_conditions(gpu, Vitals(uncorrectable=1))[1]


@pytest.mark.parametrize(
    ("vitals", "code"),
    [
        (Vitals(lost=True), "lost"),
        (Vitals(remap_failed=True), "remapping"),
        (Vitals(recovery="reset of the GPU"), "recovery"),
    ],
)
def test_a_state_that_lasts_keeps_cooldown_from_beginning(vitals, code):
    gpu = GpuHealth()
    for now in range(0, 6000, 10):
        gpu, found = observed_conditions(gpu, vitals)
        gpu = after_cooldown(with_conditions(gpu, found, float(now)), COOLDOWN, float(now))
        assert [one.code for one in gpu.conditions] == [code]
    assert not after_cooldown(gpu, COOLDOWN, 5990 + COOLDOWN).unhealthy


@given(st.lists(st.floats(0, 5000), max_size=40))
def test_however_often_it_errs_it_comes_back_seldom(pauses):
    """Between two recoveries lie more than the cooldown; after n relapses more than 2^n of it."""
    gpu, now, recoveries = GpuHealth(), 0.0, []
    for pause in pauses:
        now += pause
        was = gpu.unhealthy
        gpu = after_cooldown(gpu, COOLDOWN, now)
        if was and not gpu.unhealthy:
            recoveries.append(now)
        gpu = with_conditions(gpu, [XID], now)
    gaps = [later - earlier for earlier, later in pairwise(recoveries)]
    assert all(gap >= COOLDOWN * 2 for gap in gaps)
