# SPDX-License-Identifier: Apache-2.0
"""What was freed by a call that no hook sees stays charged until the driver gives its address or handle out again."""

from __future__ import annotations

import pytest

from tests.native.running import CONTEXT, GIB, MIB, SUCCESS, Place

PART = 2 * MIB


@pytest.fixture
def program(tmp_path):
    with Place(tmp_path).program("8GiB") as running:
        running("d.current(0)")
        yield running


def used(program) -> int:
    """The context is current again."""
    answer = program("[d.used(), d.current(0)]")
    return answer[0] - CONTEXT


@pytest.mark.parametrize(
    ("make", "free"),
    [
        (f"d.make('cuMemAlloc_v2', {PART})", "d.{}('cuMemFree_v2', {})"),
        (f"d.create({PART})", "d.{}('cuMemRelease', {})"),
    ],
    ids=["linear", "handle"],
)
def test_an_address_or_handle_that_comes_again(program, make, free):
    code, first = program(make)
    assert (code, used(program)) == (SUCCESS, PART)
    assert program(free.format("past", first)) == SUCCESS
    assert used(program) == PART, "nobody knows"
    assert program(make) == [SUCCESS, first], "the driver gives it out again"
    assert used(program) == PART
    assert program(free.format("past", first)) == SUCCESS
    assert program(make) == [SUCCESS, first]
    assert program(free.format("call", first)) == SUCCESS
    assert used(program) == 0


def test_a_larger_block_at_an_address_that_comes_again(program):
    """What is given back is what the old one cost."""
    code, first = program(f"d.make('cuMemAlloc_v2', {PART - MIB // 2})")
    assert code == SUCCESS
    assert program(f"d.past('cuMemFree_v2', {first})") == SUCCESS
    assert program(f"d.make('cuMemAlloc_v2', {PART})") == [SUCCESS, first]
    assert used(program) == PART


def test_an_address_that_is_mapped_again(program):
    address = program(f"d.reserve({PART})")
    for _ in range(3):
        code, handle = program(f"d.create({PART})")
        assert code == SUCCESS
        assert program(f"d.map({address}, {PART}, {handle})") == SUCCESS
        assert program(f"d.release({handle})") == SUCCESS
        assert used(program) == PART, "paid once, however often it was mapped"
        assert program(f"d.past('cuMemUnmap', {address}, {PART})") == SUCCESS
    code, handle = program(f"d.create({PART})")
    assert code == SUCCESS
    assert program(f"d.map({address}, {PART}, {handle})") == SUCCESS
    assert program(f"d.release({handle})") == SUCCESS
    assert program(f"d.unmap({address}, {PART})") == SUCCESS
    assert used(program) == 0


def test_a_block_of_a_pool_that_comes_again(program):
    make = f"d.make('cuMemAllocAsync', {GIB}, 0)"
    code, first = program(make)
    assert (code, used(program)) == (SUCCESS, GIB)
    assert program(f"d.past('cuMemFreeAsync', {first}, 0)") == SUCCESS
    assert program(make) == [SUCCESS, first]
    assert program(f"d.call('cuMemFreeAsync', {first}, 0)") == SUCCESS
    assert program("d.call('cuCtxSynchronize')") == SUCCESS
    code, _ = program(f"d.make('cuMemAlloc_v2', {8 * GIB - CONTEXT})")
    assert code == SUCCESS, "all that the pool held comes back"


def test_a_context_whose_handle_comes_again(program):
    make = "d.make('cuCtxCreate_v2', 0, 0)"
    code, first = program(make)
    cost = used(program)
    assert code == SUCCESS and cost > 0
    assert program(f"d.past('cuCtxDestroy_v2', {first})") == SUCCESS
    assert program(make) == [SUCCESS, first]
    assert used(program) == cost
    assert program(f"d.call('cuCtxDestroy_v2', {first})") == SUCCESS
    assert used(program) == 0
