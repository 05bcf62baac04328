# SPDX-License-Identifier: Apache-2.0
"""Preferred device IDs: named after the GPUs that placement would choose, exactly as many as asked."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigaslice.core.deviceplugin.device_id import format_device_id, gpu_device_ids, parse_device_id
from gigaslice.core.deviceplugin.preferred import preferred_device_ids
from gigaslice.core.errors import DeviceIdError
from gigaslice.core.model import NodeState, Placement, Request
from tests.unit.gigaslice.core.placement.nodes import place_slices, placement, uuid, vector_node
from tests.unit.gigaslice.core.placement.test_properties import nodes


def ids(*gpus: int, slices: int = 16) -> list[str]:
    return [format_device_id(uuid(gpu), number) for gpu in gpus for number in range(slices)]


def named(device_ids: tuple[str, ...]) -> dict[int, int]:
    """Return how many device IDs are named after each GPU."""
    return dict(Counter(int(parse_device_id(text).uuid.removeprefix("GPU-")) for text in device_ids))


PIX4 = vector_node("pix4")


def test_ids_come_from_the_fragment_that_placement_would_fill() -> None:
    state = PIX4.with_occupant("a", placement((2, 10)))
    assert preferred_device_ids(state, ids(0, 1, 2, 3), [], 4) == tuple(ids(2, slices=4))
    assert named(preferred_device_ids(state, ids(0, 1, 2, 3), [], 16)) == {3: 16}
    assert named(preferred_device_ids(state, ids(0, 1, 2, 3), [], 32)) == {0: 16, 1: 16}


def test_ids_of_one_gpu_are_taken_in_order_of_number_not_of_text() -> None:
    shuffled = [format_device_id(uuid(0), number) for number in (10, 9, 2, 11, 1)]
    assert preferred_device_ids(PIX4, shuffled, [], 3) == tuple(
        format_device_id(uuid(0), n) for n in (1, 2, 9)
    )


def test_the_request_narrows_the_gpus() -> None:
    only = Request(only=frozenset({uuid(3)}))
    assert named(preferred_device_ids(PIX4, ids(0, 1, 2, 3), [], 4, request=only)) == {3: 4}
    spread = Request(gpus=2)
    assert named(preferred_device_ids(PIX4, ids(0, 1, 2, 3), [], 4, request=spread)) == {0: 2, 1: 2}


def test_only_gpus_with_ids_to_give_are_considered() -> None:
    """One NUMA node's ids: the kubelet asks with a part of what is free."""
    assert named(preferred_device_ids(PIX4, ids(2, 3), [], 8)) == {2: 8}
    assert named(preferred_device_ids(PIX4, [*ids(0, slices=3), *ids(1)], [], 8)) == {1: 8}


def test_included_ids_come_first_and_draw_the_rest_to_their_gpu() -> None:
    must = [format_device_id(uuid(3), 7), format_device_id(uuid(3), 5)]
    chosen = preferred_device_ids(PIX4, ids(0, 1, 2, 3), must, 6)
    assert chosen[:2] == tuple(must)
    assert named(chosen) == {3: 6}
    assert len(set(chosen)) == 6


def test_included_ids_count_towards_the_share_of_their_gpu() -> None:
    chosen = preferred_device_ids(PIX4, ids(0, 1, 2, 3), ids(0, slices=2), 8, request=Request(gpus=2))
    assert named(chosen) == {0: 4, 1: 4}


def test_included_ids_of_two_gpus_keep_the_rest_on_one_of_them() -> None:
    state = PIX4.with_occupant("a", placement((2, 10)))
    must = [*ids(0, slices=1), *ids(3, slices=1)]
    assert named(preferred_device_ids(state, ids(0, 1, 2, 3), must, 4)) == {3: 3, 0: 1}


def test_included_ids_of_a_full_gpu_do_not_hold_the_rest_back() -> None:
    state = PIX4.with_occupant("a", placement((3, 16)))
    chosen = preferred_device_ids(state, [*ids(0, 1), *ids(3, slices=2)], ids(3, slices=2), 6)
    assert chosen[:2] == tuple(ids(3, slices=2))
    assert named(chosen) == {3: 2, 0: 4}


def test_whole_gpus_are_grouped_around_the_included_ones() -> None:
    """The NUMA example of the Inspur paper: GPUs 2 and 3 are fixed, and GPU 0 has the NVLink."""
    state = vector_node("nv4numa")
    must = ids(2, 3, slices=32)
    assert named(preferred_device_ids(state, ids(0, 1, 2, 3, slices=32), must, 96)) == {2: 32, 3: 32, 0: 32}
    mirror = vector_node("nv4numa1")
    assert named(preferred_device_ids(mirror, ids(0, 1, 2, 3, slices=32), must, 96)) == {2: 32, 3: 32, 1: 32}


def test_without_room_the_ids_are_those_of_the_gpu_to_wait_for() -> None:
    state = PIX4.with_occupant("a", placement((0, 14), (1, 15), (2, 12), (3, 16)))
    assert named(preferred_device_ids(state, ids(0, 1, 2, 3), [], 6)) == {2: 6}


def test_missing_ids_are_made_up_from_the_nearest_gpus() -> None:
    state = PIX4.with_occupant("a", placement((0, 16), (1, 15), (2, 12), (3, 16)))
    few = [*ids(0, slices=4), *ids(2, slices=3), *ids(3, slices=4), "GPU-gone/0"]
    chosen = preferred_device_ids(state, few, [], 8)
    assert named(chosen) == {2: 3, 3: 4, 0: 1}
    assert len(preferred_device_ids(state, few, [], 12)) == 12
    assert preferred_device_ids(state, few, [], 12)[-1] == "GPU-gone/0"


@pytest.mark.parametrize(("must", "size"), [([], 0), ([], -1), (ids(0, slices=3), 2)])
def test_a_senseless_options_prefers_nothing(must: list[str], size: int) -> None:
    assert preferred_device_ids(PIX4, ids(0, 1, 2, 3), must, size) == ()


def test_ids_that_are_none_are_refused() -> None:
    with pytest.raises(DeviceIdError):
        preferred_device_ids(PIX4, ["nonsense"], [], 1)


@settings(max_examples=150)
@given(nodes(), st.data())
def test_always_as_many_as_there_are_and_agreeing_with_placement(
    state: NodeState, data: st.DataObject
) -> None:
    everything = [text for gpu in state.gpus for text in gpu_device_ids(gpu)]
    size = data.draw(st.integers(1, 12))
    available = data.draw(st.permutations(everything))
    chosen = preferred_device_ids(state, available, [], size)
    assert len(chosen) == len(set(chosen)) == min(size, len(everything))
    assert set(chosen) <= set(everything)
    answer = place_slices(state, size)
    if isinstance(answer, Placement):
        counts = Counter(parse_device_id(text).uuid for text in chosen)
        assert counts == {share.gpu: share.slices for share in answer.shares}
    some = data.draw(st.lists(st.sampled_from(everything), unique=True, max_size=size))
    kept = preferred_device_ids(state, available, some, size)
    assert kept[: len(some)] == tuple(some)
    assert len(kept) == len(set(kept)) == min(size, len(everything))


def test_no_ids_to_give_means_none() -> None:
    assert preferred_device_ids(PIX4, [], [], 3) == ()
