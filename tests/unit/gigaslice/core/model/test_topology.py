# SPDX-License-Identifier: Apache-2.0
"""Raw pair matrices: what is repaired with a warning and what is refused."""

import pytest

from gigaslice.core.errors import TopologyError
from gigaslice.core.model import LinkLevel, Topology


def test_good_matrix_has_no_warnings_and_ignores_the_diagonal() -> None:
    topology = Topology.build([[50, 10], [10, None]], [[7, 4], [4, None]])
    assert topology.levels == ((0, 10), (10, 0))
    assert topology.nvlinks == ((0, 4), (4, 0))
    assert topology.degraded == ()
    assert topology.size == 2


@pytest.mark.parametrize(
    ("one", "other", "level"),
    [(10, 40, 40), (None, 20, 20), (20, None, 20), (None, None, 50)],
)
def test_contradicting_levels_mean_the_farther(one: int | None, other: int | None, level: int) -> None:
    topology = Topology.build([[0, one], [other, 0]])
    assert topology.levels[0][1] == topology.levels[1][0] == level
    (warning,) = topology.degraded
    assert warning.startswith(f"GPU0-GPU1: link level taken as {LinkLevel(level).word}: ")


@pytest.mark.parametrize(("one", "other"), [(4, 2), (4, None), (None, 0), (None, None)])
def test_contradicting_link_counts_mean_none(one: int | None, other: int | None) -> None:
    topology = Topology.build([[0, 10], [10, 0]], [[0, one], [other, 0]])
    assert topology.nvlinks == ((0, 0), (0, 0))
    (warning,) = topology.degraded
    assert warning.startswith("GPU0-GPU1: NVLinks ignored: ")


@pytest.mark.parametrize(
    ("levels", "links", "words"),
    [
        ([[0, 10]], None, "GPU0 has 2 of 1"),
        ([[0, 10], [10]], None, "GPU1 has 1 of 2"),
        ([[0, 10], [10, 0]], [[0, 1]], "1 rows for 2"),
        ([[0, 15], [15, 0]], None, "link level 15 does not exist"),
        ([[0, 10], [10, 0]], [[0, -1], [-1, 0]], "-1 NVLinks"),
    ],
)
def test_impossible_matrix_is_refused(levels: list[list[int]], links: list[list[int]], words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        Topology.build(levels, links)


def test_reordered_moves_rows_and_columns_together() -> None:
    topology = Topology.build([[0, 10, 50], [10, 0, 40], [50, 40, 0]])
    moved = topology.reordered([2, 0, 1])
    assert moved.levels == ((0, 50, 40), (50, 0, 10), (40, 10, 0))
    assert moved.reordered([1, 2, 0]) == topology


def test_soc_is_the_old_word_for_sys() -> None:
    assert LinkLevel.from_word("SOC") is LinkLevel.from_word("SYS") is LinkLevel.SYSTEM
    with pytest.raises(TopologyError, match="'sys' is no link level"):
        LinkLevel.from_word("sys")
