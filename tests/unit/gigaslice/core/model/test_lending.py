# SPDX-License-Identifier: Apache-2.0
"""Which GPU is lent how much host memory."""

from __future__ import annotations

import pytest

from gigaslice.core.model import Lending, lend
from tests.fakes.gpus import make_gpu

GIB = 1 << 30


def gpu(number, memory=16 * GIB, unit=GIB):
    return make_gpu(number, memory // unit, uuid=f"GPU-{number}", memory_bytes=memory, slice_bytes=unit)


def test_the_example_of_a_gpu_of_16_gib_with_8_gib_of_host_memory():
    (found,) = lend([gpu(0, unit=8 * GIB)], Lending(8 * GIB), {})
    assert (found.slices, found.own_slices, found.host_bytes) == (3, 2, 8 * GIB)


def test_nothing_lent_changes_nothing():
    gpus = (gpu(0), gpu(1))
    assert lend(gpus, Lending(), {}) == gpus


def test_what_completes_a_slice_with_the_fewest_bytes_comes_first():
    gpus = [gpu(0, 16 * GIB, 8 * GIB), gpu(1, 15 * GIB, 8 * GIB), gpu(2, 15 * GIB + 512, 8 * GIB)]
    found = lend(gpus, Lending(2 * GIB), {})
    assert [one.slices for one in found] == [2, 2, 2]
    assert sum(one.host_bytes for one in found) == 2 * GIB - 512


def test_equal_gpus_get_equal_parts():
    assert [one.host_bytes // GIB for one in lend([gpu(n) for n in range(4)], Lending(10 * GIB), {})] == [
        3,
        3,
        2,
        2,
    ]


def test_a_gpu_of_its_own_lending_has_it_on_top():
    found = lend([gpu(0), gpu(1)], Lending(2 * GIB, {"GPU-1": 4 * GIB + 5}), {})
    assert [one.host_bytes // GIB for one in found] == [2, 4]
    assert [one.slices for one in found] == [18, 20]


def test_what_was_given_stays_and_a_new_gpu_gets_what_is_left():
    lending = Lending(4 * GIB)
    first = lend([gpu(0)], lending, {})
    given = {one.uuid: one.host_bytes for one in first}
    assert given == {"GPU-0": 4 * GIB}
    assert [one.host_bytes for one in lend([gpu(0), gpu(1)], lending, given)] == [4 * GIB, 0]
    assert [one.host_bytes for one in lend([gpu(1)], lending, given)] == [0], "the GPU may come back"


@pytest.mark.parametrize("unit", [GIB, 3 * GIB, 8 * GIB])
@pytest.mark.parametrize("host", [0, 1, GIB, 8 * GIB, 100 * GIB])
def test_never_more_than_is_lent_and_every_slice_is_covered(unit, host):
    gpus = [gpu(n, (10 + 3 * n) * GIB + n * 12345, unit) for n in range(5)]
    found = lend(gpus, Lending(host), {})
    assert sum(one.host_bytes for one in found) <= host
    for one in found:
        assert one.slices * unit <= one.memory_bytes + one.host_bytes
        assert one.own_slices * unit <= one.memory_bytes
