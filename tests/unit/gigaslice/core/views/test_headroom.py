# SPDX-License-Identifier: Apache-2.0
"""The page's first sentence says what could still be placed, on a full cluster too."""

from __future__ import annotations

import pytest

from gigaslice.core.views.cluster_picture import ClusterPicture, HolderView, NodeView, Sums
from gigaslice.core.views.headroom import headline, held_share
from tests.unit.gigaslice.core.views.pictures import GIB, gpu


def held(slices: int) -> HolderView:
    return HolderView("team", f"job-{slices}", slices)


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([], "No node reports a GPU."),
        ([NodeView("a", problem="no inventory")], "No node reports a GPU."),
        ([NodeView("a", (gpu(0),))], "1 whole GPU is free (1 × L4)."),
        (
            [NodeView("a", (gpu(0), gpu(1, model="Tesla T4"), gpu(2), gpu(3, held(5))))],
            "3 whole GPUs are free (2 × L4, 1 × T4). Beside other pods, up to 7 GiB fit on one GPU.",
        ),
        (
            [NodeView("a", (gpu(0, held(11)), gpu(1, held(9)), gpu(2, held(12))))],
            "No whole GPU is free. A pod still gets up to 3 GiB on one GPU; 4 GiB in all are free, on 2 GPUs.",
        ),
        (
            [NodeView("a", (gpu(0, held(12)), gpu(1, unhealthy="x")))],
            "Nothing is free on any node that takes pods.",
        ),
        (
            [NodeView("a", (gpu(0, held(12)),)), NodeView("b", (gpu(1), gpu(2, held(2))), schedulable=False)],
            "Nothing is free on any node that takes pods. 22 GiB more are free on nodes that take no pods now.",
        ),
        (
            [NodeView("a", (gpu(0, held(12)),)), NodeView("b", (gpu(1),), ready=False)],
            "Nothing is free on any node that takes pods. 12 GiB more are free on nodes that take no pods now.",
        ),
    ],
)
def test_what_could_still_be_placed(nodes: list[NodeView], text: str) -> None:
    assert headline(ClusterPicture(tuple(nodes))) == text


@pytest.mark.parametrize(
    ("held_bytes", "free", "text"),
    [
        (0, 0, "0%"),
        (0, 100, "0%"),
        (100, 0, "100%"),
        (50, 50, "50%"),
        (997, 3, "99.7%"),
        (99_999, 1, "99.9%"),
        (1, 99_999, "0.1%"),
        (5, 995, "0.5%"),
    ],
)
def test_it_is_100_per_cent_only_where_all_is_held(held_bytes: int, free: int, text: str) -> None:
    assert held_share(Sums(held_bytes=held_bytes * GIB, free_partly_bytes=free * GIB)) == text
