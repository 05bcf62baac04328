# SPDX-License-Identifier: Apache-2.0
"""Node states: allocating and releasing as values, and records that contradict each other."""

import pytest

from gigaslice.core.deviceplugin.device_id import DeviceId, format_device_id, gpu_device_ids, parse_device_id
from gigaslice.core.errors import (
    DeviceIdError,
    DuplicateOccupantError,
    OvercommitError,
    StateError,
    UnknownGpuError,
    UnknownOccupantError,
)
from gigaslice.core.model import NodeState, Occupant, Placement, Share, Topology, count_slices, matches_model
from tests.fakes.gpus import node_state
from tests.unit.gigaslice.core.placement.nodes import make_gpu, placement, uuid


def node(size: int = 2) -> NodeState:
    return node_state([make_gpu(index) for index in range(size)])


def test_allocate_and_release_leave_the_old_state_alone() -> None:
    idle = node()
    busy = idle.with_occupant("a", placement((0, 4), (1, 16)))
    assert busy.occupant("a") == Occupant("a", (Share(uuid(0), 4), Share(uuid(1), 16)))
    assert (busy.free(uuid(0)), busy.free(uuid(1)), idle.free(uuid(0))) == (12, 0, 16)
    assert busy.without("a") == idle


def test_a_state_depends_on_its_jobs_only_not_on_their_order() -> None:
    one = node().with_occupant("b", placement((0, 4))).with_occupant("a", placement((0, 2)))
    other = node().with_occupant("a", placement((0, 2))).with_occupant("b", placement((0, 4)))
    assert one == other
    assert one.usage().holders == (("a", "b"), ())


def test_gpus_may_come_in_any_order() -> None:
    far, near = Topology.build([[0, 50, 50], [50, 0, 10], [50, 10, 0]]), [2, 0, 1]
    state = NodeState.build([make_gpu(index) for index in near], far)
    assert [gpu.index for gpu in state.gpus] == [0, 1, 2]
    assert state.topology.levels[0][1] == 10
    assert state.topology.levels[0][2] == state.topology.levels[1][2] == 50


def test_an_unhealthy_gpu_has_nothing_free_and_keeps_its_holders() -> None:
    unhealthy = node().with_occupant("a", placement((0, 4))).with_health(uuid(0), healthy=False)
    assert unhealthy.free(uuid(0)) == 0
    assert unhealthy.usage().slices == (4, 0)
    assert unhealthy.with_health(uuid(0), healthy=True).free(uuid(0)) == 12


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (Share(uuid(0), 13), "13 slices and 0% of GPU-00, which has 12 slices"),
        (Share(uuid(0), 1, 61), "60% left"),
    ],
)
def test_more_than_is_left_is_refused_unless_it_waits(share: Share, words: str) -> None:
    state = node().with_occupant("a", Placement((Share(uuid(0), 4, 40),)))
    with pytest.raises(OvercommitError, match=words):
        state.with_occupant("b", Placement((share,)))
    waiting = state.with_occupant("b", Placement((share,)), overcommit=True)
    assert waiting.usage().slices[0] == 4 + share.slices
    assert waiting.free(uuid(0)) >= 0


def test_contradictions_are_errors_that_name_the_culprit() -> None:
    state = node().with_occupant("a", placement((0, 4)))
    with pytest.raises(DuplicateOccupantError, match="occupant a already"):
        state.with_occupant("a", placement((1, 4)))
    with pytest.raises(UnknownOccupantError, match="occupant z"):
        state.without("z")
    with pytest.raises(UnknownOccupantError, match="occupant z"):
        state.occupant("z")
    with pytest.raises(UnknownGpuError, match="GPU-09"):
        state.with_occupant("b", placement((9, 4)), overcommit=True)
    with pytest.raises(UnknownGpuError, match="GPU-09"):
        state.with_health(uuid(9), healthy=False)
    with pytest.raises(StateError, match="topology of 1 GPUs for a node of 2"):
        NodeState.build([make_gpu(0), make_gpu(1)], Topology.flat(1))
    with pytest.raises(StateError, match="same UUID"):
        NodeState.build([make_gpu(0), make_gpu(0)], Topology.flat(2))
    with pytest.raises(DuplicateOccupantError, match="occupant a is recorded twice"):
        NodeState.build([], Topology.flat(0), [Occupant("a", ()), Occupant("a", ())])


def test_recorded_allocations_survive_a_vanished_gpu_and_smaller_gpus() -> None:
    lost = Occupant("a", (Share(uuid(7), 4),))
    large = Occupant("b", (Share(uuid(0), 20),))
    state = NodeState.build([make_gpu(0)], Topology.flat(1), [large, lost])
    assert state.free(uuid(0)) == 0
    assert state.usage().slices == (20,)
    assert state.without("b").free(uuid(0)) == 16


def test_pools_are_by_model_and_size_smallest_gpus_first() -> None:
    gpus = [make_gpu(0, 40, "b"), make_gpu(1, 16, "z"), make_gpu(2, 40, "a"), make_gpu(3, 16, "z")]
    pools = node_state(gpus).pools()
    assert [(pool.model, pool.slices, pool.members) for pool in pools] == [
        ("z", 16, (1, 3)),
        ("a", 40, (2,)),
        ("b", 40, (0,)),
    ]


def test_slices_count_host_memory_and_round_down() -> None:
    gib = 1 << 30
    assert count_slices(16 * gib, 8 * gib, 8 * gib) == 3
    assert count_slices(int(22.5 * gib), gib) == 22
    assert make_gpu(0).bytes_of(3) == 3 * gib


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("A100", True),
        ("a100-sxm4", True),
        ("NVIDIA A100", True),
        ("A10", False),
        ("SXM4 A100", False),
        ("", False),
    ],
)
def test_models_match_by_whole_words(pattern: str, matches: bool) -> None:
    assert matches_model("NVIDIA A100-SXM4-80GB", pattern) is matches


def test_device_ids_are_read_as_written_and_sort_by_number() -> None:
    device_ids = [parse_device_id(text) for text in gpu_device_ids(make_gpu(0, 11))]
    assert device_ids == sorted(device_ids)
    assert device_ids[10] == DeviceId(uuid(0), 10)
    assert parse_device_id(format_device_id("MIG-a/b", 3)) == DeviceId("MIG-a/b", 3)


@pytest.mark.parametrize(
    "text", ["", "GPU-0", "/3", "GPU-0/", "GPU-0/x", "GPU-0/-1", "GPU-0/01", "GPU-0/٣", "GPU-0/1 "]
)
def test_anything_else_is_no_device_id(text: str) -> None:
    with pytest.raises(DeviceIdError, match="is not"):
        parse_device_id(text)
