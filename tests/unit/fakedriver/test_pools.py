# SPDX-License-Identifier: Apache-2.0
"""Stream-ordered memory: pools hold more than is in use."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30
CONTEXT = 100 * MIB

TAKE = "handles('cuMemAllocAsync{}', c_size_t({}), {})"
GIVE = "call('cuMemFreeAsync{}', c_uint64({}), {})"
SYNC = "call('cuStreamSynchronize', None)"
ATTRIBUTE = "[v := c_uint64(), good('cuMemPoolGetAttribute', c_void_p({}), {}, byref(v)), v.value][2]"
THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = 4, 5, 6, 7, 8


def test_a_pool_grows_in_chunks_and_shrinks_when_something_synchronises(small):
    peer = small.peer()
    peer("context(0)")
    first = peer(TAKE.format("", MIB, None))
    assert peer("used()") == CONTEXT + 32 * MIB
    second = peer(TAKE.format("_ptsz", 32 * MIB, None))
    assert peer("used()") == CONTEXT + 64 * MIB
    assert peer(GIVE.format("", second, None)) == 0
    assert peer("used()") == CONTEXT + 64 * MIB, "the pool keeps it"
    assert peer(SYNC) == 0
    assert peer("used()") == CONTEXT + 32 * MIB
    assert peer(GIVE.format("_ptsz", first, None)) == 0
    assert peer(SYNC) == 0
    assert peer("used()") == CONTEXT
    assert peer(GIVE.format("", first, None)) == 1


def test_threshold_attributes_and_trim(small):
    peer = small.peer()
    peer("context(0)")
    pool = peer("handles('cuDeviceGetDefaultMemPool', 0)")
    assert peer("handles('cuDeviceGetMemPool', 0)") == pool
    assert peer(f"call('cuMemPoolSetAttribute', c_void_p({pool}), {THRESHOLD}, byref(c_uint64({GIB})))") == 0
    address = peer(TAKE.format("", 100 * MIB, None))
    assert peer(ATTRIBUTE.format(pool, USED)) == 100 * MIB
    assert peer(ATTRIBUTE.format(pool, RESERVED)) == 128 * MIB
    peer(GIVE.format("", address, None))
    peer(SYNC)
    assert peer(ATTRIBUTE.format(pool, USED)) == 0
    assert peer(ATTRIBUTE.format(pool, USED_HIGH)) == 100 * MIB
    assert peer("used()") == CONTEXT + 128 * MIB, "below the threshold"
    assert peer(f"call('cuMemPoolTrimTo', c_void_p({pool}), c_size_t({40 * MIB}))") == 0
    assert peer("used()") == CONTEXT + 64 * MIB
    assert peer(f"call('cuMemPoolSetAttribute', c_void_p({pool}), {USED_HIGH}, byref(c_uint64(0)))") == 0
    assert peer(ATTRIBUTE.format(pool, USED_HIGH)) == 0
    assert peer(f"call('cuMemPoolDestroy', c_void_p({pool}))") == 1, "the default pool stays"


def test_unused_pool_memory_goes_before_anything_is_refused(small):
    peer = small.peer()
    peer("context(0)")
    pool = peer("handles('cuDeviceGetDefaultMemPool', 0)")
    peer(f"good('cuMemPoolSetAttribute', c_void_p({pool}), {THRESHOLD}, byref(c_uint64({64 * GIB})))")
    peer(GIVE.format("", peer(TAKE.format("", 20 * GIB, None)), None))
    peer(SYNC)
    assert peer("used()") == CONTEXT + 20 * GIB
    assert peer(f"alloc({23 * GIB})") > 0
    assert peer(TAKE.format("", 2 * GIB, None)) == -2


def test_own_pools(small):
    peer = small.peer()
    peer("context(0)")
    props = "ctypes.create_string_buffer(bytes([1,0,0,0, 0,0,0,0, 1,0,0,0, {},0,0,0]) + bytes(72), 88)"
    pool = peer(f"handles('cuMemPoolCreate', {props.format(1)})")
    assert pool > 0
    assert peer(f"handles('cuMemPoolCreate', {props.format(9)})") == -101
    address = peer(f"handles('cuMemAllocFromPoolAsync', c_size_t({MIB}), c_void_p({pool}), None)")
    assert small.state()["gpus"][1]["used"] == 32 * MIB, "the pool's GPU, not the context's"
    assert peer(f"write({address}, b'pool')") == 0
    assert peer(f"call('cuMemPoolDestroy', c_void_p({pool}))") == 0
    assert small.state()["gpus"][1]["used"] == 32 * MIB, "something lives in it"
    assert peer(f"free({address})") == 0
    assert small.state()["gpus"][1]["used"] == 0


def test_newer_calls_find_the_same_pools(machine):
    peer = machine("one-h200").peer()
    peer("context(0)")
    pool = peer("handles('cuDeviceGetDefaultMemPool', 0)")
    assert peer("handles('cuMemGetDefaultMemPool', byref(MemLocation(1, 0)), 1)") == pool
    assert peer("handles('cuMemGetMemPool', byref(MemLocation(1, 0)), 1)") == pool
    assert peer("handles('cuMemGetMemPool', byref(MemLocation(1, 5)), 1)") == -101


def test_what_is_freed_in_stream_order_waits_for_the_stream(small):
    peer = small.peer()
    peer("context(0)")
    busy, other = peer("handles('cuStreamCreate', 1)"), peer("handles('cuStreamCreate', 1)")
    pool = peer("handles('cuDeviceGetDefaultMemPool', 0)")
    address = peer(TAKE.format("", 100 * MIB, f"c_void_p({busy})"))
    peer(f"launch(function('work_300ms'), {busy})")
    assert peer(GIVE.format("", address, f"c_void_p({busy})")) == 0
    assert peer(f"call('cuMemPoolTrimTo', c_void_p({pool}), c_size_t(0))") == 0
    assert peer("used()") == CONTEXT + 128 * MIB, "the work before is not done"
    second = peer(TAKE.format("", 100 * MIB, f"c_void_p({other})"))
    assert peer("used()") == CONTEXT + 224 * MIB, "another stream cannot have it yet"
    third = peer(TAKE.format("", 100 * MIB, f"c_void_p({busy})"))
    assert peer("used()") == CONTEXT + 224 * MIB, "the same stream can"
    peer(GIVE.format("", third, f"c_void_p({busy})"))
    peer(GIVE.format("", second, f"c_void_p({other})"))
    assert peer(f"call('cuStreamSynchronize', c_void_p({other}))") == 0
    assert peer("used()") == CONTEXT + 128 * MIB
    assert peer(f"call('cuStreamSynchronize', c_void_p({busy}))") == 0
    assert peer("used()") == CONTEXT


def test_memory_of_the_other_kind_can_be_freed_by_either_call(small):
    peer = small.peer()
    peer("context(0)")
    linear, pooled = peer(f"alloc({MIB})"), peer(TAKE.format("", MIB, None))
    assert peer(GIVE.format("", linear, None)) == 0
    assert peer("used()") == CONTEXT + 32 * MIB
    assert peer(f"free({pooled})") == 0
    assert peer(SYNC) == 0
    assert peer("used()") == CONTEXT


def test_blocks_of_the_default_pool_die_with_the_last_context(small):
    peer = small.peer()
    peer("context(0)")
    address = peer(TAKE.format("", MIB, None))
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == 0
    assert small.state()["gpus"][0]["used"] == 0
    peer("context(0)")
    assert peer(GIVE.format("", address, None)) == 1


def test_pools_and_their_blocks_are_shared_between_processes(small):
    owner = small.peer()
    owner("context(0)")
    props = "ctypes.create_string_buffer(bytes([1,0,0,0, 1,0,0,0, 1,0,0,0, 0,0,0,0]) + bytes(72), 88)"
    pool = owner(f"handles('cuMemPoolCreate', {props})")
    address = owner(f"handles('cuMemAllocFromPoolAsync', c_size_t({MIB}), c_void_p({pool}), None)")
    owner(f"write({address}, b'shared')")
    export = "call('cuMemPoolExportToShareableHandle', byref(fd), c_void_p({}), {}, c_uint64(0))"
    assert owner("[fd := c_int(), " + export.format(pool, 1) + "][1]") == 0
    assert owner("[fd := c_int(), " + export.format(pool, 8) + "][1]") == 801
    fd = owner("[fd := c_int(), " + export.format(pool, 1) + ", fd.value][2]")
    data = owner(
        f"[d := (c_char * 64)(), good('cuMemPoolExportPointer', d, c_uint64({address})), d.raw.hex()][2]"
    )
    peer = small.peer()
    peer("context(0)")
    peer(f"globals().update(fd=os.open('/proc/{owner.pid}/fd/{fd}', os.O_RDONLY))")
    imported = peer("handles('cuMemPoolImportFromShareableHandle', c_void_p(fd), 1, c_uint64(0))")
    assert imported > 0
    assert peer(f"handles('cuMemAllocFromPoolAsync', c_size_t({MIB}), c_void_p({imported}), None)") == -1
    there = peer(f"handles('cuMemPoolImportPointer', c_void_p({imported}), bytes.fromhex('{data}'))")
    assert bytes.fromhex(peer(f"read({there}, 6)")) == b"shared"
    assert small.state()["gpus"][0]["used"] == 2 * CONTEXT + 32 * MIB
    assert peer(GIVE.format("", there, None)) == 0
    assert peer(GIVE.format("", there, None)) == 1


def test_pools_of_host_and_managed_memory(machine):
    here = machine("one-h200")
    peer = here.peer()
    peer("context(0)")
    before = peer("used()")
    props = "ctypes.create_string_buffer(bytes([{},0,0,0, 0,0,0,0, {},0,0,0, 0,0,0,0]) + bytes(72), 88)"
    take = "handles('cuMemAllocFromPoolAsync', c_size_t(1 << 20), c_void_p({}), None)"
    host = peer(f"handles('cuMemPoolCreate', {props.format(1, 2)})")
    assert peer(take.format(host)) > 0
    assert peer("used()") == before
    for where in (0, 1, 2):
        managed = peer(f"handles('cuMemPoolCreate', {props.format(2, where)})")
        assert peer(take.format(managed)) > 0
        before += 32 * MIB
        assert peer("used()") == before
    assert peer("handles('cuMemGetDefaultMemPool', byref(MemLocation(1, 0)), 2)") > 0
    assert peer("handles('cuMemGetDefaultMemPool', byref(MemLocation(0, 0)), 1)") == -1
