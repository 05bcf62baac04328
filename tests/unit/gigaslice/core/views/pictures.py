# SPDX-License-Identifier: Apache-2.0
"""Clusters to draw."""

from __future__ import annotations

import random

from gigaslice.core.views.cluster_picture import (
    ClassView,
    ClusterPicture,
    GpuView,
    HolderView,
    LinkGroup,
    NodeView,
    WaitingPodView,
)

GIB = 1 << 30
EVIL = 'a<b>&"c\u202e\x1b[31m'
SPACES = ("research", "team-a", "team-b", "serving")
MODELS = (("NVIDIA H100 80GB HBM3", 79), ("NVIDIA L4", 22), ("NVIDIA A100-SXM4-80GB", 79))


def gpu(
    index: int, *held: HolderView, slices: int = 12, unhealthy: str = "", model: str = "NVIDIA L4"
) -> GpuView:
    return GpuView(f"GPU-{index:04}", index, model, slices, GIB, unhealthy, 0, held)


NOW = 1795413600.0
"""2026-11-23 06:00:00 UTC, which is 107 minutes after the waiting pod was made."""


def cluster(nodes: int = 6, seed: int = 1) -> ClusterPicture:
    """A used cluster: nodes of 4 and 8 GPUs, of which some are unhealthy, and a node that says nothing.

    Of every second node it was measured what pods use.
    """
    rng = random.Random(seed)
    found = [_node(rng, number) for number in range(nodes)]
    found.append(NodeView("no-gpus", problem="no inventory: its agent is of another version"))
    waiting = WaitingPodView(
        "team-a",
        "trainer-0",
        "2026-11-23T04:12:09Z",
        "8 GiB on one GPU",
        "no GPU has 8 GiB free together",
        ("gpu-node-00: 6 + 6 GiB free, 8 wanted on one GPU",),
        ("ask for 6 GiB",),
    )
    classes = (
        ClassView("nvidia.h100", 16, 5, 2, "model = NVIDIA H100"),
        ClassView("big", 0, 0, 0, "", "matches no GPU"),
    )
    return ClusterPicture(
        tuple(found), (waiting,), classes, ("restart team-a/job-3: frees GPU3 of gpu-node-01",)
    )


def _node(rng: random.Random, number: int) -> NodeView:
    model, slices = rng.choice(MODELS)
    count = 8 if number % 3 else 4
    gpus = []
    for index in range(count):
        held, left = [], slices
        for _ in range(rng.choice([0, 0, 1, 2, 3])):
            size = rng.randint(1, max(1, left // 2))
            used = size * GIB * (index + 1) // (count + 1) if number % 2 == 0 else None
            held.append(
                HolderView(
                    rng.choice(SPACES), f"job-{rng.randint(1, 40)}", size, rng.choice([0, 0, 30]), used
                )
            )
            left -= size
        unhealthy = "Xid 79: fell off the bus" if rng.random() < 0.06 else ""
        gpus.append(
            GpuView(
                f"GPU-{number:04}{index:04}",
                index,
                model,
                slices,
                GIB,
                unhealthy,
                index * 2 // count,
                tuple(held),
            )
        )
    half = count // 2
    pairs = tuple(LinkGroup("PIX", (one, one + 1)) for one in range(0, count, 2))
    sockets = tuple(LinkGroup("NODE", tuple(range(at, at + half))) for at in (0, half))
    return NodeView(
        f"gpu-node-{number:02}", tuple(gpus), pairs + sockets, schedulable=number != 1, ready=number != 2
    )
