# SPDX-License-Identifier: Apache-2.0
"""Which DatasetNodes count: whatever the clocks of machines show."""

import pytest

from gigaslice.core.dataset.objects import CachedDataset, DatasetNode, parse_dataset_node
from gigaslice.core.dataset.renewals import STALE_SECONDS, Renewals, is_stale

UNIX = 1_700_000_000.0


@pytest.mark.parametrize("wrong", [-3000.0, -600.0, 0.0, 600.0, 10 * 86400.0])
def test_who_is_renewed_counts_and_who_is_not_is_stale(wrong):
    """WRONG: how far the clock of the node is ahead of the reader's."""
    seen, now = Renewals(), 5000.0
    for number in range(10):
        seen.note("a", UNIX + wrong + 300 * number, now, UNIX + 300 * number)
        seen.note("b", UNIX + wrong, now, UNIX + 300 * number)  # a watch that lists again
        now += 300
    assert seen.all_stale(now) == ["b"] and seen.stale("b", now) and not seen.stale("a", now)
    assert seen.unchanged("b", now) == 3000
    seen.note("b", UNIX + wrong + 1, now, UNIX)
    assert seen.all_stale(now) == []


def test_a_clock_that_jumps_back_is_a_change_too():
    seen = Renewals()
    seen.note("a", UNIX, 0.0, UNIX)
    seen.note("a", UNIX - 86400, 800.0, UNIX)
    assert not seen.stale("a", 1600.0) and seen.stale("a", 1701.0)


def test_what_is_old_when_it_is_first_seen_is_stale_at_once():
    seen = Renewals()
    seen.note("day", UNIX - 86400, 10.0, UNIX)
    seen.note("hour", UNIX - 3600, 10.0, UNIX)
    assert seen.all_stale(10.0) == ["day"]
    assert seen.unchanged("day", 10.0) == 86400 - 3600
    seen.note("day", UNIX, 11.0, UNIX)
    assert seen.all_stale(11.0) == []
    assert is_stale(UNIX - 86400, UNIX) and not is_stale(UNIX - 3600, UNIX)


def test_a_service_that_tells_no_time_is_never_stale():
    seen = Renewals()
    seen.note("old", 0.0, 0.0, UNIX)
    assert seen.all_stale(10 * STALE_SECONDS) == [] and not seen.stale("old", 10 * STALE_SECONDS)
    assert not is_stale(0.0, UNIX)
    seen.drop("old")
    seen.drop("old")


def test_the_time_is_in_the_object():
    node = DatasetNode("a", 5, 3, (CachedDataset("k", "s3://b/x", "d", 5),), renewed=UNIX)
    document = node.document()
    assert document["status"]["renewTime"] == "2023-11-14T22:13:20Z"
    assert parse_dataset_node(document) == node
    for wrong in ("yesterday", "", 5, None, "2023-11-14 22:13:20"):
        document["status"]["renewTime"] = wrong
        assert parse_dataset_node(document).renewed == 0.0
