# SPDX-License-Identifier: Apache-2.0
"""The bucket of GPU time and what a launch waits for, as the library runs them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vcuda._native import ffi, lib

MS = 1_000_000
START = 5_000 * MS
DEBT_MAX = lib.VC_BUCKET_DEBT_MAX_S * 10**9


def bucket(permille: int = 300):
    """One that was read a moment ago."""
    made = ffi.new("struct vc_bucket *")
    lib.bucket_fill(made, START, permille, 0)
    return made


def test_a_new_bucket_is_neither_full_nor_in_debt():
    assert lib.bucket_level(bucket()) == 0


def test_time_fills_it_at_the_rate_of_the_share():
    made = bucket()
    lib.bucket_fill(made, START + 50 * MS, 300, 0)
    assert lib.bucket_level(made) == 15 * MS


def test_what_is_not_used_within_a_period_is_gone():
    made = bucket()
    lib.bucket_fill(made, START + 60_000 * MS, 300, 0)
    assert lib.bucket_level(made) == 60 * MS
    lib.bucket_fill(made, START + 60_000 * MS + 1, 100, 0)
    assert lib.bucket_level(made) == 20 * MS, "also when the share shrinks"


def test_debt_is_kept_to_the_nanosecond():
    made = bucket()
    lib.bucket_spend(made, 1_000 * MS)
    for step in range(1, 1001):
        lib.bucket_fill(made, START + step * MS, 300, 0)
    assert lib.bucket_level(made) == -700 * MS


@given(st.lists(st.integers(1, 5 * 10**6), max_size=200), st.integers(1, 1000))
def test_looking_often_earns_what_looking_once_does(steps, permille):
    often, once = bucket(permille), bucket(permille)
    for each in (often, once):
        lib.bucket_spend(each, 10**10)
    now = START
    for step in steps:
        now += step
        lib.bucket_fill(often, now, permille, 0)
    lib.bucket_fill(once, now, permille, 0)
    assert 0 <= lib.bucket_level(once) - lib.bucket_level(often) <= len(steps)


def test_credit_counts_once_and_never_backwards():
    made = bucket()
    lib.bucket_spend(made, 100 * MS)
    for credit in (10_000, 10_000, 4_000, 5_000):
        lib.bucket_fill(made, START, 300, credit)
    assert lib.bucket_level(made) == -100 * MS + 10 * MS + 1 * MS


@pytest.mark.parametrize("back", [1, 1_000 * MS])
def test_a_clock_that_steps_back_a_little_earns_nothing(back):
    made = bucket()
    lib.bucket_fill(made, START - back, 300, 0)
    lib.bucket_fill(made, START, 300, 0)
    assert lib.bucket_level(made) == 0


def test_a_clock_that_began_again_is_followed():
    made = ffi.new("struct vc_bucket *")
    lib.bucket_fill(made, START + DEBT_MAX * 2, 300, 0)
    lib.bucket_fill(made, START, 300, 0)
    lib.bucket_fill(made, START + 10 * MS, 300, 0)
    assert lib.bucket_level(made) == 3 * MS


word = st.integers(0, 2**64 - 1)


@given(st.tuples(word, word, word, word), word, st.integers(0, 1000), word)
def test_a_ledger_full_of_nonsense_holds_nobody_for_ever(words, now, permille, paid):
    made = ffi.new("struct vc_bucket *", words)
    lib.bucket_fill(made, now, permille, paid)
    assert -DEBT_MAX <= lib.bucket_level(made) <= max(4 * MS, permille * MS // 5)


def waited(level: int, permille: int, *, late: int = 0) -> int:
    """Nanoseconds that a launch is held when work under way keeps the bucket at LEVEL."""
    pace = ffi.new("struct vc_pace *")
    lib.pace_begin(pace, level, permille, START)
    now = START
    while nap := lib.pace_nap(pace, level, permille, now):
        assert lib.VC_PACE_NAP_MIN_NS <= nap <= lib.VC_PACE_NAP_MAX_NS
        now += nap + late
    return now - START


def test_without_debt_nobody_waits():
    assert waited(0, 1) == waited(5 * MS, 300) == 0


@given(st.integers(1, 2 * 10**9), st.integers(10, 1000), st.integers(0, 50 * MS))
def test_a_launch_waits_for_the_debt_that_it_met_and_little_longer(debt, permille, late):
    wait = waited(-debt, permille, late=late)
    demanded = debt * 1000 // permille + lib.VC_PACE_GATHER_MS * MS
    naps = demanded // lib.VC_PACE_NAP_MAX_NS + 2
    assert demanded - 10**6 <= wait <= demanded + lib.VC_PACE_NAP_MAX_NS + late + naps * 1000 + 10**6


def test_what_others_pay_shortens_a_wait():
    pace = ffi.new("struct vc_pace *")
    lib.pace_begin(pace, -1000 * MS, 500, START)
    assert lib.pace_nap(pace, -1000 * MS, 500, START) == lib.VC_PACE_NAP_MAX_NS
    assert lib.pace_nap(pace, 10 * MS, 500, START + 10 * MS) == 0


def test_a_larger_share_shortens_a_wait_that_has_begun():
    pace = ffi.new("struct vc_pace *")
    lib.pace_begin(pace, -100 * MS, 10, START)
    assert lib.pace_nap(pace, -100 * MS, 10, START) == lib.VC_PACE_NAP_MAX_NS
    now = START
    while nap := lib.pace_nap(pace, -100 * MS, 1000, now):
        now += nap
    assert now - START <= 120 * MS, "at one per cent it would have been ten seconds"


@given(st.integers(0, 2**62))
def test_the_next_poll_is_the_same_for_all_who_ask_before_it(now):
    instant = lib.poll_instant(now)
    assert now < instant < now + 2 * lib.VC_POLL_TICK_NS
    assert lib.poll_instant((now + instant) // 2) == instant
    assert lib.poll_instant(instant) > instant


def test_polls_fall_on_every_part_of_a_tick_once_a_tick():
    """A program whose period is a tick, or a few, is seen as often as it has work."""
    instants, now = [], START
    while len(instants) < 20_000:
        now = lib.poll_instant(now)
        instants.append(now)
    tick = lib.VC_POLL_TICK_NS
    first = instants[0] // tick
    assert [instant // tick - first for instant in instants] == list(range(len(instants)))
    for period in (tick, 2 * tick, 7 * tick // 2):
        busy = sum(instant % period < period // 4 for instant in instants)
        assert busy / len(instants) == pytest.approx(1 / 4, abs=0.02)
