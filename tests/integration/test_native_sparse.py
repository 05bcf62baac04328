# SPDX-License-Identifier: Apache-2.0
"""Sparse and deferred arrays hold the physical memory that is mapped into them, tile by tile."""

from __future__ import annotations

import pytest

from tests.native.running import CONTEXT, MIB, SUCCESS

PART = 2 * MIB
MAKE = (
    "[s := __import__('tests.native.programs.vmm_sparse', fromlist=['Array']), d.current(0), "
    "a := s.Array(d.cuda, '{shape}'), a.handle][3]"
)
MAP = "s.operate(d, a, s.MAP, {pool})"
UNMAP = "s.operate(d, a, s.UNMAP)"


@pytest.mark.parametrize("seed", range(3))
def test_random_tiles_against_the_driver(place, python, seed):
    command = [python, "-m", "tests.native.programs.vmm_sparse", str(seed)]
    done = place.run(*command, limit="20GiB", **place.python_env())
    assert (done.returncode, done.stdout) == (0, "nothing is left\n"), done.stdout + done.stderr


@pytest.mark.parametrize("shape", ["2d", "deferred", "mipmap"])
def test_a_released_pool_is_paid_until_its_tiles_are_unmapped(place, shape):
    with place.program("1GiB") as program:
        program(MAKE.format(shape=shape))
        _, pool = program(f"d.create({2 * PART}, prop(0, usage=TILE_POOL))")
        assert program(MAP.format(pool=pool)) == SUCCESS
        assert program(f"d.release({pool})") == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT + 2 * PART] * 2
        place.fakectl("fail", "cuMemMapArrayAsync", 999, 1, "--pid", program.pid)
        assert program(UNMAP) == 999
        assert program("d.used()") == CONTEXT + 2 * PART
        assert program(UNMAP) == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2


@pytest.mark.parametrize("call", ["cuArrayDestroy", "cuMipmappedArrayDestroy"])
def test_a_destroyed_array_holds_nothing_and_one_that_stays_does(place, call):
    with place.program("1GiB") as program:
        program(MAKE.format(shape="2d" if call == "cuArrayDestroy" else "mipmap"))
        _, pool = program(f"d.create({2 * PART}, prop(0, usage=TILE_POOL))")
        assert program(MAP.format(pool=pool)) == SUCCESS
        assert program(f"d.release({pool})") == SUCCESS
        place.fakectl("fail", call, 999, 1, "--pid", program.pid)
        assert program("[d.current(0), a.destroy()][1]") == 999
        assert program("d.used()") == CONTEXT + 2 * PART
        assert program("[d.current(0), a.destroy()][1]") == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2
        assert program("[d.current(0), a.destroy()][1]") != SUCCESS
        assert program("d.used()") == CONTEXT
