# SPDX-License-Identifier: Apache-2.0
"""Stream-ordered memory counts: what a pool holds, not what lives in it."""

from __future__ import annotations

import json

import pytest

from tests.fakedriver.env import write_machine
from tests.native.pools import CHUNK
from tests.native.running import CONTEXT, GIB, INVALID_CONTEXT, INVALID_VALUE, MIB, OUT_OF_MEMORY

DEVICE, HOST, NOWHERE = 1, 2, 0


@pytest.mark.parametrize("twin", ["", "_ptsz"])
def test_a_pool_costs_what_it_holds(pools, twin):
    here = pools()
    peer = here.peer()
    first = peer(f"take({MIB}, twin='{twin}')")
    assert first > 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    second = peer(f"take({100 * MIB}, twin='{twin}')")
    assert peer("used()") == CONTEXT + 4 * CHUNK == here.physical()
    assert peer(f"give({second}, twin='{twin}')") == 0
    assert peer("used()") == CONTEXT + 4 * CHUNK, "the pool holds it until something synchronises"
    assert peer(f"sync(twin='{twin}')") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"give({first}, twin='{twin}')") == 0
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_a_refusal_touches_nothing(pools):
    here = pools(str(CONTEXT + 4 * CHUNK))
    peer = here.peer()
    assert peer(f"take({4 * CHUNK})") > 0
    assert peer("used()") == CONTEXT + 4 * CHUNK
    assert peer("take(1)") == -OUT_OF_MEMORY
    assert peer(f"take({1 << 62})") == -OUT_OF_MEMORY
    assert peer("take(0)") == -INVALID_VALUE
    assert peer(f"call('cuMemAllocAsync', None, c_size_t({MIB}), None)") == INVALID_VALUE
    assert peer("used()") == CONTEXT + 4 * CHUNK == here.physical()
    assert peer("alloc(1)") == -OUT_OF_MEMORY


def test_a_chunk_that_does_not_fit_is_given_back(pools):
    here = pools(str(CONTEXT + CHUNK + 8 * MIB))
    peer = here.peer()
    first = peer(f"take({MIB})")
    assert first > 0
    assert peer(f"take({35 * MIB})") == -OUT_OF_MEMORY, "36 MiB would fit, two chunks do not"
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"take({31 * MIB})") > 0, "what is there can be used to the end"
    assert peer("alloc(8 << 20)") > 0


def test_a_refused_growth_is_given_back_whatever_the_pool_would_keep(pools):
    here = pools(str(CONTEXT + CHUNK + 8 * MIB))
    peer = here.peer()
    assert peer("keep(default_pool(), 2**64 - 1)") == 0
    assert peer(f"take({MIB})") > 0
    for _ in range(3):
        assert peer(f"take({35 * MIB}, make_stream(1))") == -OUT_OF_MEMORY
        assert here.physical() <= CONTEXT + 2 * CHUNK
    assert peer("event_sync(0)") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()


def test_chunks_of_another_size_are_learned(pools, tmp_path):
    here = pools("1GiB", write_machine(tmp_path, gpus=1, pool_granularity="2MiB"))
    peer = here.peer()
    before = peer("used()")
    blocks = [peer(f"take({size})") for size in (1, 3 * MIB, 5 * MIB)]
    assert peer("used()") == before + 10 * MIB == here.physical()
    for block in blocks:
        assert peer(f"give({block})") == 0
    assert peer("call('cuCtxSynchronize')") == 0
    assert peer("used()") == before == here.physical()


@pytest.mark.parametrize("way", ["sync()", "event_sync(0)", "call('cuCtxSynchronize')", "sync(twin='_ptsz')"])
def test_a_synchronisation_gives_back(pools, way):
    here = pools()
    peer, other = here.peer(), here.peer()
    assert peer(f"give(take({800 * MIB}))") == 0
    assert other(f"alloc({500 * MIB})") == -OUT_OF_MEMORY
    assert peer(way) == 0
    assert other(f"alloc({500 * MIB})") > 0
    assert peer("used()") == 2 * CONTEXT + 500 * MIB == here.physical()


def test_what_waits_behind_a_kernel_is_given_back_when_its_own_stream_is_done(pools):
    """The other stream's synchronisation came first, and brought nothing back yet."""
    here = pools()
    peer = here.peer()
    peer("globals().update(s=make_stream(1), t=make_stream(1), kernel=function('work_1s'))")
    block = peer(f"take({28 * CHUNK}, s)")
    assert peer(f"launch(kernel, s) or give({block}, s) or sync(t)") == 0
    assert peer("used()") == CONTEXT + 28 * CHUNK == here.physical()
    assert peer("sync(s)") == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_a_pool_that_has_nothing_to_give_back_is_not_asked_again(pools):
    """Programs synchronise often: only the first time, after something was freed, costs questions to the driver."""
    here = pools()
    peer = here.peer()
    kept = peer(f"take({MIB})")
    assert peer(f"give(take({100 * MIB})) or sync()") == 0
    here.place.fakectl("count", "on")
    assert [peer("sync()") for _ in range(5)] == [0] * 5
    assert "cuMemPoolGetAttribute" not in json.loads(here.place.fakectl("state"))["calls"]
    assert peer(f"give({kept}) or sync()") == 0
    assert "cuMemPoolGetAttribute" in json.loads(here.place.fakectl("state"))["calls"]


def test_what_a_pool_keeps_counts_until_it_is_trimmed(pools):
    here = pools()
    peer, other = here.peer(), here.peer()
    peer("globals().update(pool=default_pool())")
    assert peer("keep(pool, 2**64 - 1)") == 0
    assert peer(f"give(take({800 * MIB}))") == 0
    assert peer("sync()") == 0
    assert peer("used()") == 2 * CONTEXT + 25 * CHUNK == here.physical()
    assert other(f"take({500 * MIB})") == -OUT_OF_MEMORY, "it is another process's to give"
    assert peer(f"trim(pool, {10 * CHUNK})") == 0
    assert peer("used()") == 2 * CONTEXT + 10 * CHUNK == here.physical()
    assert other(f"take({400 * MIB})") > 0
    assert peer("keep(pool, 0)") == 0
    assert peer("sync()") == 0
    assert peer("used()") == 2 * CONTEXT + 13 * CHUNK == here.physical()


def test_own_pools_are_trimmed_before_anything_is_refused(pools):
    here = pools()
    peer = here.peer()
    assert peer("keep(default_pool(), 2**64 - 1)") == 0
    assert peer(f"give(take({800 * MIB}))") == 0
    assert peer("sync()") == 0
    block = peer(f"alloc({500 * MIB})")
    assert block > 0
    assert peer("used()") == CONTEXT + 500 * MIB == here.physical()
    assert peer(f"take({400 * MIB})") > 0
    assert peer(f"free({block})") == 0
    assert peer(f"take({400 * MIB}, pool=make_pool())") > 0
    assert peer("used()") == here.physical()


def test_an_allocation_waits_for_what_its_own_stream_frees(pools):
    here = pools()
    peer = here.peer()
    peer("globals().update(s=make_stream(1), kernel=function('work_200ms'))")
    block = peer(f"take({800 * MIB}, s)")
    assert peer("launch(kernel, s)") == 0
    assert peer(f"give({block}, s)") == 0
    assert peer(f"take({500 * MIB}, s, make_pool())") > 0
    assert peer("used()") == CONTEXT + 16 * CHUNK == here.physical()


@pytest.mark.parametrize("mode", ["GLOBAL", "RELAXED"])
def test_a_capture_is_neither_charged_nor_disturbed(pools, mode):
    here = pools()
    peer = here.peer()
    peer("globals().update(s=make_stream(1), c=make_stream(1), kernel=function('work_100ms'))")
    before = peer(f"[take({500 * MIB}, s), used()][1]")
    assert peer(f"begin_capture(c, {mode})") == 0
    node = peer(f"take({20 * GIB}, c)")
    assert node > 0
    assert peer(f"give({node}, c)") == 0
    assert peer("used()") == before
    assert peer(f"launch(kernel, s) or give(take({350 * MIB}, s), s)") == 0
    assert peer(f"take({600 * MIB}, c)") > 0, "a node, whatever the quota has left"
    assert peer(f"take({450 * MIB}, s, make_pool())") == -OUT_OF_MEMORY
    assert peer("end_capture(c)") > 0, "the refusal has synchronised another stream, and it went unnoticed"
    assert peer("used()") == before == here.physical()


def test_either_call_frees_either_kind(pools):
    here = pools()
    peer = here.peer()
    linear, pooled, twice = peer(f"alloc({MIB})"), peer(f"take({MIB})"), peer(f"take({MIB})")
    assert peer(f"give({linear})") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"give({linear})") == INVALID_VALUE
    assert peer(f"free({pooled})") == 0
    assert peer(f"free({pooled})") == INVALID_VALUE
    assert peer(f"give({pooled})") == INVALID_VALUE
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"[call('cuCtxSetCurrent', None), give({twice})][1]") == INVALID_CONTEXT
    peer("context()")
    assert peer(f"give({twice}) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()
    assert peer("give(0x1234500)") == INVALID_VALUE


def test_the_default_pool_ends_with_its_device(pools):
    here = pools()
    peer = here.peer()
    block = peer(f"take({MIB})")
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == 0
    peer("context()")
    assert peer("used()") == CONTEXT == here.physical()
    assert peer(f"give({block})") == INVALID_VALUE
    blocks = [peer(f"take({MIB})") for _ in range(3)]
    assert peer(f"give({blocks[0]}) or sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()


def test_another_context_of_the_device_ends_nothing(pools):
    here = pools()
    peer = here.peer()
    block = peer(f"take({MIB})")
    peer("globals().update(second=handles('cuCtxCreate_v2', 0, 0))")
    assert peer("call('cuCtxDestroy_v2', c_void_p(second))") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"give({block}) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_a_block_that_was_freed_unseen_is_forgotten_with_a_context(pools):
    """Nothing of the pool is used any more; the next synchronisation brings back what it keeps."""
    here = pools()
    peer = here.peer()
    block = peer(f"take({MIB})")
    unseen = (
        "ctypes.CFUNCTYPE(c_int, c_uint64, c_void_p)(__import__('tests.native.programs.vmm', fromlist=['']"
        ").past_the_hooks(ctypes.CDLL('libcuda.so.1'), 'cuMemFreeAsync'))"
    )
    peer("globals().update(first=context(0), second=handles('cuCtxCreate_v2', 0, 0))")
    assert peer(f"{unseen}({block}, None)") == 0
    assert peer("call('cuCtxDestroy_v2', c_void_p(second))") == 0
    peer("call('cuCtxSetCurrent', c_void_p(first))")
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_a_pool_costs_on_its_own_device(pools):
    here = pools("0=1GiB,1=2GiB")
    peer = here.peer()
    assert peer(f"take({1536 * MIB})") == -OUT_OF_MEMORY
    block = peer(f"take({1536 * MIB}, pool=make_pool(1))")
    assert block > 0
    assert peer("used()") == CONTEXT
    assert peer("take(600 << 20, pool=default_pool(1))") == -OUT_OF_MEMORY, (
        "1536 MiB and 600 do not fit into 2 GiB"
    )
    assert peer(f"give({block})") == 0
    peer("context(1)")
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT == here.physical(1)


def test_the_stream_tells_the_device_and_no_context_is_needed(pools):
    here = pools("0=1GiB,1=2GiB")
    peer = here.peer()
    peer("context(1) and globals().update(s=make_stream())")
    peer("context(0)")
    assert peer(f"take({1536 * MIB}, s)") > 0
    assert peer("used()") == CONTEXT
    peer("call('cuCtxSetCurrent', None)")
    assert peer(f"take({400 * MIB}, s)") == -OUT_OF_MEMORY
    assert peer(f"take({100 * MIB}, s)") > 0
    assert peer("take(1)") == -INVALID_CONTEXT
    peer("context(1)")
    assert peer("used()") == here.physical(1)


def test_a_device_without_a_share_gives_nothing(pools):
    here = pools("0=1GiB")
    peer = here.peer()
    assert peer("take(1, pool=make_pool(1))") == -OUT_OF_MEMORY
    assert peer("take(1, pool=default_pool(1))") == -OUT_OF_MEMORY
    assert here.physical(1) == 0


@pytest.mark.parametrize("twin", ["", "_ptsz"])
def test_a_pool_that_is_named_costs_what_it_holds(pools, twin):
    here = pools(str(CONTEXT + 2 * CHUNK))
    peer = here.peer()
    peer("globals().update(pool=make_pool())")
    assert peer(f"take({3 * CHUNK}, pool=pool, twin='{twin}')") == -OUT_OF_MEMORY
    block = peer(f"take({2 * CHUNK}, pool=pool, twin='{twin}')")
    assert block > 0
    assert peer("used()") == CONTEXT + 2 * CHUNK == here.physical()
    assert peer(f"give({block}, twin='{twin}') or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


MAKE_CURRENT = {
    "cuDeviceSetMemPool": "call('cuDeviceSetMemPool', 0, c_void_p(pool))",
    "cuMemSetMemPool": "call('cuMemSetMemPool', byref(MemLocation(DEVICE, 0)), PINNED, c_void_p(pool))",
}


@pytest.mark.parametrize("call", MAKE_CURRENT)
def test_another_current_pool_is_noticed(pools, call):
    here = pools()
    peer = here.peer()
    assert peer(f"take({MIB})") > 0
    peer("globals().update(pool=make_pool())")
    assert peer("keep(pool, 2**64 - 1)") == 0
    assert peer(MAKE_CURRENT[call]) == 0
    block = peer(f"take({MIB})")
    assert peer("used()") == CONTEXT + 2 * CHUNK == here.physical()
    assert peer(f"give({block}) or destroy(pool) or sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"take({CHUNK})") > 0
    assert peer("used()") == CONTEXT + 2 * CHUNK == here.physical()


def test_host_memory_is_free_and_managed_memory_is_not(pools):
    here = pools("1GiB", "one-h200")
    peer = here.peer()
    before = peer("used()")
    assert peer(f"take({2 * GIB}, pool=make_pool(where=HOST))") > 0
    assert peer("used()") == before == here.physical()
    for where in (DEVICE, HOST, NOWHERE):
        assert peer(f"take({MIB}, pool=make_pool(where={where}, kind=MANAGED))") > 0
        before += CHUNK
        assert peer("used()") == before == here.physical()
    managed = "handles('cuMemGetDefaultMemPool', byref(MemLocation({}, 0)), MANAGED)"
    for where in (DEVICE, NOWHERE):
        assert peer(f"take({MIB}, pool={managed.format(where)})") > 0
        before += CHUNK
        assert peer("used()") == before == here.physical()
    assert peer(f"take({GIB}, pool=make_pool(kind=MANAGED))") == -OUT_OF_MEMORY
    assert peer("call('cuCtxSynchronize_v2', None)") == 0


def test_a_pool_keeps_its_own_maximum(pools):
    here = pools()
    peer = here.peer()
    peer(f"globals().update(pool=make_pool(most={50 * MIB}))")
    assert peer(f"take({40 * MIB}, pool=pool)") > 0
    assert peer(f"take({20 * MIB}, pool=pool)") == -OUT_OF_MEMORY
    assert peer("used()") == CONTEXT + 2 * CHUNK == here.physical()


def test_an_imported_pool_costs_its_owner_alone(pools):
    here = pools()
    owner, peer = here.peer(), here.peer()
    owner("globals().update(pool=make_pool(handle_types=1))")
    block = owner(f"take({MIB}, pool=pool)")
    owner("globals().update(fd=c_int())")
    assert owner("call('cuMemPoolExportToShareableHandle', byref(fd), c_void_p(pool), 1, c_uint64(0))") == 0
    fd = owner("fd.value")
    owner("globals().update(data=(c_char * 64)())")
    assert owner(f"call('cuMemPoolExportPointer', data, c_uint64({block}))") == 0
    data = owner("data.raw.hex()")
    peer(f"globals().update(fd=os.open('/proc/{owner.pid}/fd/{fd}', os.O_RDONLY))")
    peer("globals().update(pool=handles('cuMemPoolImportFromShareableHandle', c_void_p(fd), 1, c_uint64(0)))")
    assert peer("take(1, pool=pool)") == -INVALID_VALUE
    there = peer(f"handles('cuMemPoolImportPointer', c_void_p(pool), bytes.fromhex('{data}'))")
    assert there > 0
    assert peer("used()") == 2 * CONTEXT + CHUNK == here.physical()
    assert peer(f"give({there}) or destroy(pool) or sync()") == 0
    assert owner("used()") == 2 * CONTEXT + CHUNK
    assert owner(f"give({block}) or sync()") == 0
    assert peer("used()") == 2 * CONTEXT == here.physical()


def test_what_the_driver_refuses_is_given_back(pools):
    here = pools()
    peer = here.peer()
    here.outside("context()")
    fill = "any(alloc(size) > 0 and 0 for size in (1 << 30, 1 << 25, 1 << 20) for _ in range(2000))"
    here.outside(fill)
    before = peer("used()")
    assert peer(f"take({100 * MIB})") == -OUT_OF_MEMORY
    assert peer("used()") == before
