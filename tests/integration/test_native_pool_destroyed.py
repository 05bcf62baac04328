# SPDX-License-Identifier: Apache-2.0
"""A pool that is destroyed counts until its last block is free, and no longer than its streams need."""

from __future__ import annotations

import pytest

from tests.native.pools import CHUNK, UNKNOWN, charged, destroyed_while_a_free_waits
from tests.native.running import CONTEXT, GIB, INVALID_VALUE, MIB, OUT_OF_MEMORY, eventually


def test_a_destroyed_pool_costs_until_its_last_block_is_freed(pools):
    here = pools()
    peer = here.peer()
    peer("globals().update(pool=make_pool())")
    blocks = [peer(f"take({40 * MIB}, pool=pool)") for _ in range(2)]
    assert peer("used()") == CONTEXT + 3 * CHUNK
    assert peer("destroy(pool)") == 0
    assert peer("destroy(pool)") == INVALID_VALUE
    assert peer("take(1, pool=pool)") == -INVALID_VALUE
    assert peer(f"give({blocks[0]}) or sync()") == 0
    assert peer("used()") == CONTEXT + 3 * CHUNK == here.physical()
    assert peer(f"give({blocks[1]}) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()
    peer("globals().update(pool=make_pool())")
    peer(f"globals().update(block=take({MIB}, pool=pool))")
    assert peer("destroy(pool) or free(block)") == 0
    assert peer("used()") == CONTEXT == here.physical()
    assert peer(f"give(take({MIB}, pool=(pool := make_pool()))) or destroy(pool) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


@pytest.mark.parametrize("stream", ["s", "0"])
@pytest.mark.parametrize(
    "way", ["sync(t)", "event_sync(t)", "sync(t, '_ptsz')", "in_second(0)", "in_second(1)"]
)
def test_another_synchronisation_frees_nothing_of_a_destroyed_pool(pools, stream, way):
    here = pools("0=2GiB,1=2GiB")
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    peer = destroyed_while_a_free_waits(here, stream)
    if way.startswith("in_second"):
        own = peer("context(0)")
        peer(f"globals().update(second=handles('cuCtxCreate_v2', 0, {way[-2]}))")
        assert peer("call('cuCtxSynchronize') or sync()") == 0
        peer(f"call('cuCtxSetCurrent', c_void_p({own}))")
    else:
        assert peer(way) == 0
    contexts = 2 * CONTEXT if way == "in_second(0)" else CONTEXT
    assert peer("used()") == contexts + 28 * CHUNK == here.physical()


@pytest.mark.parametrize(
    ("stream", "way"),
    [
        ("s", "sync(s)"),
        ("s", "call('cuCtxSynchronize')"),
        ("0", "sync()"),
        ("0", "sync(1)"),
        ("0", "call('cuCtxSynchronize')"),
        ("2", "sync(2)"),
        ("2", "sync(0, '_ptsz')"),
    ],
)
def test_what_its_stream_has_freed_is_paid_no_longer(pools, stream, way):
    here = pools()
    peer = destroyed_while_a_free_waits(here, stream)
    assert peer(f"take({20 * CHUNK}, t)") == -OUT_OF_MEMORY, "another stream's allocation frees nothing"
    assert peer("used()") == CONTEXT + 28 * CHUNK
    assert peer(way) == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_frees_in_two_streams_are_over_when_their_context_is(pools):
    here = pools()
    peer = here.peer()
    peer("globals().update(s=make_stream(1), t=make_stream(1), kernel=function('work_1s'), pool=make_pool())")
    blocks = [peer(f"take({10 * CHUNK}, {stream}, pool)") for stream in ("s", "t")]
    assert peer(f"launch(kernel, t) or give({blocks[1]}, t) or give({blocks[0]}, s) or destroy(pool)") == 0
    assert peer("sync(s)") == 0
    assert peer("used()") == CONTEXT + 20 * CHUNK == here.physical()
    assert peer("call('cuCtxSynchronize')") == 0
    assert peer("used()") == CONTEXT == here.physical()


@pytest.mark.parametrize("way", ["0", "event_sync(s)", "call('cuStreamQuery', c_void_p(s)) and 0"])
def test_a_destroyed_pool_is_paid_for_some_seconds_at_most(pools, way):
    here = pools("2GiB")
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    peer = destroyed_while_a_free_waits(here, "s")
    other = here.peer()
    assert other(f"alloc({GIB})") == -OUT_OF_MEMORY
    assert peer(way) == 0
    assert eventually(lambda: other(f"alloc({GIB})") > 0), "whatever the other process does"
    assert peer("used()") == 2 * CONTEXT + GIB
    assert peer(f"give(take({CHUNK}, t), t) or sync(t)") == 0
    assert peer("used()") == 2 * CONTEXT + GIB


@pytest.mark.parametrize("kept", [0, 2**64 - 1])
def test_a_refused_growth_is_charged_while_it_waits_for_its_stream(pools, kept):
    """It is taken from the others, whether it fits or not."""
    here = pools(str(2 * CONTEXT + CHUNK + 20 * MIB))
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    peer, other = here.peer(), here.peer()
    peer("globals().update(s=make_stream(1), t=make_stream(1))")
    assert peer(f"keep(default_pool(), {kept}) or 0 * take({MIB}, s)") == 0
    assert peer(f"take({35 * MIB}, s)") == -OUT_OF_MEMORY
    assert charged(here) == 2 * CONTEXT + 2 * CHUNK == here.physical()
    assert other(f"alloc({8 * MIB})") == -OUT_OF_MEMORY
    assert peer("sync(s)") == 0
    assert charged(here) == 2 * CONTEXT + CHUNK == here.physical()
    assert other(f"alloc({8 * MIB})") > 0
    assert peer(f"take({35 * MIB}, s)") == -OUT_OF_MEMORY
    assert peer(f"take({MIB}, s)") > 0, "an allocation waits for its own stream"
    assert charged(here) == 2 * CONTEXT + CHUNK + 8 * MIB == here.physical()


def test_a_refused_growth_may_stay_when_there_is_room_again(pools):
    here = pools(str(2 * CONTEXT + 3 * CHUNK))
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    peer, other = here.peer(), here.peer()
    peer("globals().update(s=make_stream(1), t=make_stream(1))")
    block = other(f"alloc({CHUNK + 12 * MIB})")
    assert peer(f"0 * take({MIB}, s)") == 0
    assert peer(f"take({35 * MIB}, s)") == -OUT_OF_MEMORY
    assert charged(here) == 2 * CONTEXT + 3 * CHUNK + 12 * MIB == here.physical()
    assert other(f"free({block})") == 0
    assert peer(f"take({40 * MIB}, t)") > 0
    assert charged(here) == 2 * CONTEXT + 2 * CHUNK == here.physical()


def test_a_thousand_pools_come_and_go(pools):
    peer = pools().peer()
    for _ in range(5):
        assert (
            peer(f"any(give(take({MIB}, pool=(p := make_pool()))) or destroy(p) for _ in range(1000))")
            is False
        )
        assert peer("sync()") == 0
    assert peer("used()") == CONTEXT
