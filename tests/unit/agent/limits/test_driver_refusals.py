# SPDX-License-Identifier: Apache-2.0
"""A refusal of the driver is told once, with its cause, to the pod that it has met."""

from __future__ import annotations

import pytest

from agent.apiserver.consumer_pods import ConsumerPods
from agent.ledgers.usage import Reading
from agent.limits.driver_refusals import DriverRefusals, refused_by_limit
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.limits.driver_limit_messages import GpuLimitState
from gigaslice.core.model import Pod
from tests.fakes.cluster import MemoryCluster
from tests.fakes.nodes import GIB, allocation, uuid

GPU = uuid(0)
LIMIT, FULL = "DriverLimitReached", "GPUMemoryExhausted"


@pytest.mark.parametrize(
    ("hard", "used", "room", "limit"),
    [
        (8 * GIB, 8 * GIB, 0, True),
        (8 * GIB, 7 * GIB, 2 * GIB, True),
        (8 * GIB, 7 * GIB, GIB, True),
        (8 * GIB, 7 * GIB, GIB - 1, False),
        (8 * GIB, GIB, 0, False),
        (None, 7 * GIB, GIB, False),
        (8 * GIB, None, GIB, False),
    ],
)
def test_a_refusal_is_the_limits_where_that_leaves_less_room_than_the_gpu(hard, used, room, limit):
    assert refused_by_limit(GpuLimitState(hard, used), room) is limit


class Scene:
    def __init__(self, *, before=0):
        self.cluster = MemoryCluster()
        self.cluster.put(Pod("default", "p", "u"))
        share = allocation(1, (0, range(8)), container=ContainerRef("default", "p", "main"))
        self.table = AllocationTable().with_allocation(share)
        self.states = [GpuLimitState(8 * GIB, 4 * GIB)]
        self.room = GIB
        self.readings = {}
        self.share = share
        self.refuse(before)
        early = self.table if before else AllocationTable()
        tables = iter([early])
        self.refusals = DriverRefusals(
            lambda: next(tables, self.table),
            lambda: self.readings,
            lambda allocation, gpu: self.states,
            room=lambda gpu: self.room,
            pods=ConsumerPods(self.cluster),
            interval=1.0,
        )

    def refuse(self, count, asked=GIB, problem=None):
        self.readings = {
            self.share.id: Reading(
                {GPU: 3 * GIB},
                {},
                limits={GPU: 8 * GIB},
                driver_refused={GPU: count},
                driver_refused_bytes={GPU: asked},
                problem=problem,
            )
        }

    def said(self):
        self.refusals.look()
        return [(reason, text) for _, reason, text, _ in self.cluster.events]


def test_it_is_told_once_and_names_the_containers_own_numbers():
    scene = Scene()
    assert scene.said() == []
    scene.refuse(2)
    ((reason, text),) = scene.said()
    assert reason == FULL and "1 GiB" in text and "3 GiB of its 8 GiB" in text
    assert len(scene.said()) == 1
    scene.room = 5 * GIB
    scene.refuse(3)
    assert [reason for reason, _ in scene.said()] == [FULL, LIMIT]


def test_what_was_counted_before_the_agent_started_is_not_told_again():
    scene = Scene(before=5)
    assert scene.said() == []
    scene.refuse(6)
    assert len(scene.said()) == 1


def test_a_ledger_that_cannot_be_read_for_a_while_is_not_begun_anew():
    scene = Scene()
    scene.refuse(2)
    scene.said()
    scene.refuse(0, problem="damaged")
    scene.said()
    scene.refuse(2)
    assert len(scene.said()) == 1
