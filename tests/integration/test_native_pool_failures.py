# SPDX-License-Identifier: Apache-2.0
"""Pools of a driver that fails: what cannot be asked stays charged, and nothing is given away twice."""

from __future__ import annotations

import pytest

from tests.native.pools import CHUNK, UNKNOWN, unmeasured
from tests.native.running import CONTEXT, INVALID_VALUE, MIB, OUT_OF_MEMORY


def test_a_pool_that_cannot_be_asked_is_charged_whole_chunks(pools):
    here = pools()
    peer = unmeasured(here)
    here.place.fakectl("fail", "cuMemPoolGetAttribute", UNKNOWN, 1)
    block = peer(f"take({MIB})")
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    here.place.fakectl("fail", "cuMemPoolGetAttribute", UNKNOWN, 1)
    more = peer(f"take({MIB})")
    assert here.physical() == CONTEXT + CHUNK
    assert peer("used()") == CONTEXT + 2 * CHUNK, "it may have grown"
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK, "it has not"
    assert peer(f"give({block}) or give({more}) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_a_pool_that_can_never_be_asked_is_refused_before_it_can_hold_too_much(pools):
    here = pools(str(CONTEXT + 3 * CHUNK))
    peer = unmeasured(here)
    here.place.fakectl("fail", "cuMemPoolGetAttribute", UNKNOWN, 10000)
    got = [peer(f"take({MIB})") for _ in range(5)]
    assert [code > 0 for code in got] == [True, True, True, False, False]
    assert got[3:] == [-OUT_OF_MEMORY] * 2
    here.place.fakectl("reset")
    assert peer(f"take({MIB})") > 0, "all of it is in one chunk"
    assert peer("used()") == CONTEXT + CHUNK == here.physical()


@pytest.mark.parametrize("failing", [1, 2])
def test_a_refused_block_that_is_not_freed_at_once_is_not_forgotten(pools, failing):
    here = pools(str(CONTEXT + 10 * MIB))
    peer = unmeasured(here)
    here.place.fakectl("fail", "cuMemFreeAsync", UNKNOWN, 1)
    if failing == 2:
        here.place.fakectl("fail", "cuMemFree_v2", UNKNOWN, 1)
    assert peer(f"take({MIB})") == -OUT_OF_MEMORY
    held = 0 if failing == 1 else CHUNK
    assert here.physical() == CONTEXT + held
    assert peer("used()") == CONTEXT + (10 * MIB if held else 0), "all that there is, and more"
    assert peer("alloc(256) > 0") is (failing == 1)
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == 0
    peer("context()")
    assert here.physical() == CONTEXT == peer("used()")


def test_a_pool_that_cannot_be_asked_after_a_context_stays_charged(pools):
    here = pools()
    peer = unmeasured(here)
    block = peer(f"take({MIB})")
    peer("globals().update(second=handles('cuCtxCreate_v2', 0, 0))")
    here.place.fakectl("fail", "cuMemPoolGetAttribute", UNKNOWN, 10000)
    assert peer("call('cuCtxDestroy_v2', c_void_p(second))") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == 0
    peer("context()")
    assert peer("used()") == CONTEXT + CHUNK, "nothing says that it is gone"
    here.place.fakectl("reset")
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()
    assert peer(f"give({block})") == INVALID_VALUE


@pytest.mark.parametrize("own", [False, True])
def test_a_pool_that_is_not_destroyed_is_one_pool_all_along(pools, own):
    """Another thread allocates from it while the driver makes up its mind."""
    here = pools()
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    peer = here.peer(FAKEDRIVER_LATENCY="cuMemPoolDestroy=1s")
    here.place.fakectl("fail", "cuMemPoolDestroy", INVALID_VALUE, 1)
    peer(f"globals().update(pool={'make_pool()' if own else 'default_pool()'})")
    first = peer(f"take({40 * MIB}, pool=pool)")
    peer("globals().update(thread=threading.Thread(target=destroy, args=(pool,)))")
    assert peer("(thread.start(), thread.join(0.3), thread.is_alive())[2]") is True
    second = peer(f"take({40 * MIB}, pool=pool)")
    assert peer("used()") == CONTEXT + 3 * CHUNK == here.physical()
    peer("thread.join()")
    assert peer("used()") == CONTEXT + 3 * CHUNK
    assert peer(f"give({first}) or give({second}) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()
