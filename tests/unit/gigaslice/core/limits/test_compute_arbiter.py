# SPDX-License-Identifier: Apache-2.0
"""The arbiter of a GPU's time: credit for what neighbours had, and lending of what owners leave."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.limits.compute_arbiter import ComputeArbiter, ComputeSample, lend


def passes(arbiter: ComputeArbiter, count: int, **containers: tuple[ComputeSample, float]):
    """COUNT passes, five milliseconds apart, at containers that are charged at a constant rate."""
    allowances = {}
    for step in range(1, count + 1):
        seen = {
            name: ComputeSample(
                each.share, each.flying, step * 0.005 * rate, each.waiting, each.elastic, each.weight
            )
            for name, (each, rate) in containers.items()
        }
        allowances = arbiter.decide(step * 0.005, seen)
    return allowances


def test_alone_on_a_gpu_nothing_is_given_back():
    assert passes(ComputeArbiter(), 201, a=(ComputeSample(300, 1, 0), 1.0))["a"].credit == 0


def test_the_gpu_goes_round_among_processes():
    got = passes(ComputeArbiter(), 201, a=(ComputeSample(300, 1, 0), 1.0), b=(ComputeSample(700, 3, 0), 1.0))
    assert got["a"].credit == pytest.approx(0.75)
    assert got["b"].credit == pytest.approx(0.25)


def test_who_says_it_is_busy_all_the_time_only_raises_the_credit_of_others():
    honest = passes(
        ComputeArbiter(), 201, a=(ComputeSample(300, 1, 0), 1.0), b=(ComputeSample(700, 1, 0), 1.0)
    )
    liar = passes(
        ComputeArbiter(), 201, a=(ComputeSample(300, 1, 0), 1.0), b=(ComputeSample(700, 1000, 0), 1.0)
    )
    assert liar["a"].credit > honest["a"].credit
    assert liar["b"].credit < honest["b"].credit


def test_a_claim_to_have_been_charged_more_than_the_time_that_passed_is_cut():
    got = passes(ComputeArbiter(), 201, a=(ComputeSample(300, 1, 0), 1e9), b=(ComputeSample(700, 1, 0), 1.0))
    assert got["a"].credit <= 0.5 + 1e-6


def test_an_account_that_grows_in_lumps_is_credited_in_full():
    """Polls charge a tick at a time: an account can grow by more than the time since the sample before."""
    arbiter, got = ComputeArbiter(), {}
    for step in range(1, 401):
        now = step * 0.005
        seen = {
            "a": ComputeSample(300, 1, now + (0.003 if step % 2 else 0.0)),
            "b": ComputeSample(700, 1, now),
        }
        got = arbiter.decide(now, seen)
    assert got["a"].credit == pytest.approx(1.0, abs=0.01)


def test_what_neighbours_do_while_a_container_has_nothing_is_not_what_they_had_of_its_time():
    """Three processes of one container work together, half of the time, beside one that always does."""
    arbiter, got = ComputeArbiter(), {}
    for step in range(1, 801):
        now = step * 0.005
        seen = {
            "a": ComputeSample(300, 3 if step % 2 else 0, now / 2),
            "b": ComputeSample(700, 1, now),
        }
        got = arbiter.decide(now, seen)
    assert got["a"].credit == pytest.approx(2.0 / 4, abs=0.02)
    assert got["b"].credit == pytest.approx(4.0 * (0.5 * 3 / 4), abs=0.05)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_newcomer_counts_at_once_and_one_that_is_held_back_stays(waiting):
    """While a neighbour's launches wait it has no work for a moment, and the mean goes on. One that was away is new."""
    arbiter, credit = ComputeArbiter(), []
    for step in range(1, 401):
        now = step * 0.005
        away = 100 < step <= 200
        neighbour = ComputeSample(700, 0 if away else 1, now, waiting=away and waiting)
        credit.append(arbiter.decide(now, {"a": ComputeSample(300, 1, now), "b": neighbour})["a"].credit)
    lately = credit[201 + 20] - credit[201]
    assert lately == (pytest.approx(0.05, abs=0.002) if not waiting else pytest.approx(0.016, abs=0.005))


def test_a_successor_goes_on_where_the_pages_are():
    arbiter, seen = ComputeArbiter(), {"a": ComputeSample(300, 1, 5.0), "b": ComputeSample(700, 1, 5.0)}
    assert arbiter.decide(1.0, seen, {"a": 12.5})["a"].credit == 12.5
    assert arbiter.decide(0.5, seen)["a"].credit == 12.5, "also when its clock is another"


def test_a_long_silence_is_nobodys_credit():
    arbiter = ComputeArbiter()
    arbiter.decide(1.0, {"a": ComputeSample(300, 1, 0.0), "b": ComputeSample(700, 1, 0.0)})
    got = arbiter.decide(3601.0, {"a": ComputeSample(300, 1, 3600.0), "b": ComputeSample(700, 1, 3600.0)})
    assert got["a"].credit == 0


def test_a_hard_share_is_what_it_is():
    got = passes(ComputeArbiter(), 100, a=(ComputeSample(300, 1, 0), 1.0), b=(ComputeSample(700, 0, 0), 0.0))
    assert got["a"].allowed == 300


def test_an_idle_gpu_is_lent_and_taken_back_within_a_period():
    arbiter = ComputeArbiter()
    a, b = ComputeSample(300, 1, 0, elastic=True), ComputeSample(600, 0, 0)
    assert passes(arbiter, 100, a=(a, 1.0), b=(b, 0.0))["a"].allowed >= 900
    now, spent = 0.5, 0.0
    for _ in range(20):
        now, spent = now + 0.005, spent + 0.005
        got = arbiter.decide(
            now, {"a": ComputeSample(300, 1, spent, elastic=True), "b": ComputeSample(600, 1, spent)}
        )
    assert got["a"].allowed <= 420


def test_idle_time_goes_by_weight():
    got = passes(
        ComputeArbiter(),
        100,
        a=(ComputeSample(100, 1, 0, elastic=True, weight=3), 1.0),
        b=(ComputeSample(100, 1, 0, elastic=True, weight=1), 1.0),
        c=(ComputeSample(800, 0, 0), 0.0),
    )
    assert got["a"].allowed - 100 == pytest.approx(3 * (got["b"].allowed - 100), abs=5)


names = st.sampled_from("abcdef")


@given(st.dictionaries(names, st.integers(0, 1000), min_size=1), st.dictionaries(names, st.integers(1, 100)))
def test_never_more_is_lent_than_there_is(demands, weights):
    weights = {name: weight for name, weight in weights.items() if name in demands}
    lent = lend(demands, weights)
    assert set(lent) == set(weights)
    assert all(part >= 0 for part in lent.values())
    assert sum(lent.values()) <= max(0, 1000 - sum(demands.values()))
    assert all(demands[name] + part <= 1000 for name, part in lent.items())
