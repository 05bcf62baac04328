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
