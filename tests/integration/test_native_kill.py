# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random instants of a program's life: loading, cuInit, context, allocating from two threads.

The processes left get the whole quota at once, never a byte more, and never wait. The instants inside a charge are in
tests/native/test_ledger_kill.c, one by one.
"""

from __future__ import annotations

import random
import time

import pytest

from tests.native.running import CONTEXT, GIB, KIB, OUT_OF_MEMORY, SUCCESS, Place

TRIALS, VICTIMS = 170, 3


@pytest.mark.parametrize("seed", [1, 2])
def test_no_kill_loses_or_adds_quota(tmp_path, seed):
    place, rng = Place(tmp_path), random.Random(seed)
    whole = GIB - CONTEXT
    with place.client("1GiB") as survivor:
        survivor.ready()
        for trial in range(TRIALS):
            victims = [place.client("1GiB") for _ in range(VICTIMS)]
            for victim in victims:
                for command, values in (
                    ("init", ()),
                    ("retain z", (0,)),
                    ("current z", ()),
                    ("threads 2", (1000000, 64 * KIB)),
                ):
                    victim.tell(command, *values)
            time.sleep(rng.uniform(0, 0.03))
            for victim in victims:
                victim.kill()
            assert survivor.do("alloc a", whole).code == SUCCESS, trial
            assert survivor.do("alloc b", 256).code == OUT_OF_MEMORY, trial
            assert survivor.do("free a").code == SUCCESS
        assert survivor.free() == whole
