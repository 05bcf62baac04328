# SPDX-License-Identifier: Apache-2.0
"""Plain device memory in all its ABIs."""

from __future__ import annotations

import itertools

GIB = 1 << 30
CONTEXT = 100 << 20


def test_bytes_survive_the_way_there_and_back(small):
    peer = small.peer()
    peer("context(0)")
    address = peer("alloc(100000)")
    assert peer(f"write({address + 50000}, b'\\x01\\x02\\x03')") == 0
    assert peer(f"read({address + 49999}, 5)") == "0001020300"


def test_large_memory_costs_the_host_nothing(small):
    peer = small.peer()
    peer("context(0)")
    address = peer(f"alloc({20 * GIB})")
    assert peer(f"write({address + 19 * GIB}, b'far')") == 0
    assert peer(f"read({address + 19 * GIB}, 3)") == b"far".hex()
    assert peer(f"call('cuMemsetD8_v2', c_uint64({address}), 0, c_size_t({20 * GIB}))") == 0
    assert peer(f"read({address + 19 * GIB}, 3)") == "000000"
    assert peer("int(open('/proc/self/statm').read().split()[1]) * 4096") < 256 << 20


def test_what_cannot_be_allocated_or_freed(small):
    peer = small.peer()
    assert peer("alloc(4096)") == -3, "not initialised"
    peer("good('cuInit', 0)")
    assert peer("alloc(4096)") == -201, "no context"
    assert peer("free(4096)") == 201, "no context"
    peer("context(0)")
    assert peer("alloc(0)") == -1
    assert peer("call('cuMemAlloc_v2', None, c_size_t(1))") == 1
    assert peer(f"alloc({25 * GIB})") == -2
    assert peer("alloc(1 << 60)") == -2
    assert peer("free(0)") == 0
    address = peer("alloc(4096)")
    assert peer(f"free({address + 256})") == 1
    assert peer(f"free({address})") == 0
    assert peer(f"free({address})") == 1
    assert peer(f"write({address}, b'x')") == 1
    assert peer("free(12345678)") == 1
    assert peer("used()") == CONTEXT


def test_a_refusal_leaves_the_output_alone(small):
    peer = small.peer()
    peer("context(0)")
    assert peer(
        f"[p := c_uint64(77), call('cuMemAlloc_v2', byref(p), c_size_t({30 * GIB})), p.value][1:]"
    ) == [2, 77]


def test_addresses_are_aligned_and_apart(small):
    peer = small.peer()
    peer("context(0)")
    sizes = [1, 511, 512, 513, 4096, 70000, 1 << 20, (1 << 30) + 1, 3 << 30, 1 << 30, 5]
    found = sorted((peer(f"alloc({size})"), size) for size in sizes)
    for (first, size), (second, _) in itertools.pairwise(found):
        assert first % 512 == 0
        assert first + size <= second
    assert peer("used()") == CONTEXT + sum(sizes)
    for address, size in found:
        assert peer(
            f"[b := c_uint64(), s := c_size_t(), good('cuMemGetAddressRange_v2', byref(b), byref(s), "
            f"c_uint64({address + size - 1})), b.value, s.value][3:]"
        ) == [address, size]
        assert peer(f"free({address})") == 0
    assert peer("used()") == CONTEXT


def test_large_addresses_are_used_again(small):
    peer = small.peer()
    peer("context(0)")
    # Many times the address space the driver reserves, if it never used any of it twice.
    assert peer(f"[free(alloc({20 * GIB})) for _ in range(3000)].count(0)") == 3000


def test_pitch(small):
    peer = small.peer()
    peer("context(0)")
    assert peer(
        "[a := c_uint64(), p := c_size_t(), good('cuMemAllocPitch_v2', byref(a), byref(p), "
        "c_size_t(1000), c_size_t(10), c_uint(4)), p.value, used()][3:]"
    ) == [1024, CONTEXT + 10240]
    assert (
        peer(
            "call('cuMemAllocPitch_v2', byref(c_uint64()), byref(c_size_t()), c_size_t(9), c_size_t(9), c_uint(3))"
        )
        == 1
    )


def test_managed(small):
    peer = small.peer()
    peer("context(0)")
    address = peer("handles('cuMemAllocManaged', c_size_t(8192), 1)")
    assert peer(f"[ctypes.memset({address}, 7, 10), read({address}, 3)][1]") == "070707"
    assert (
        peer(
            f"[v := c_int(), good('cuPointerGetAttribute', byref(v), 8, c_uint64({address})), v.value][2] & 255"
        )
        == 1
    )
    assert peer("call('cuMemAllocManaged', byref(c_uint64()), c_size_t(8192), 3)") == 1
    assert peer(f"call('cuMemPrefetchAsync', c_uint64({address}), c_size_t(8192), 0, None)") == 0
    assert peer(f"call('cuMemPrefetchAsync', c_uint64({address}), c_size_t(8193), 0, None)") == 1
    assert peer(f"free({address})") == 0
    assert peer("used()") == CONTEXT


def test_managed_ranges_in_batches(small):
    peer = small.peer()
    peer("context(0)")
    address = peer("handles('cuMemAllocManaged', c_size_t(8192), 1)")
    stream = f"c_void_p({peer('handles(' + repr('cuStreamCreate') + ', 0)')})"
    ranges = f"(c_uint64 * 2)({address}, {address + 4096}), (c_size_t * 2)(4, {{}}), c_size_t(2)"
    places = "(c_int * 4)(1, 0, 1, {}), (c_size_t * 2)(0, {}), c_size_t({})"
    tail = f"c_uint64({{}}), {stream}"
    prefetch = f"call('cuMemPrefetchBatchAsync', {ranges}, {places}, {tail})"
    assert peer(prefetch.format(4096, 1, 1, 2, 0)) == 0
    assert peer(prefetch.format(4097, 1, 1, 2, 0)) == 1, "beyond its end"
    assert peer(prefetch.format(4096, 7, 1, 2, 0)) == 101, "no such device"
    assert peer(prefetch.format(4096, 1, 0, 2, 0)) == 1, "the second place begins where the first does"
    assert peer(prefetch.format(4096, 1, 1, 3, 0)) == 1, "more places than ranges"
    assert peer(prefetch.format(4096, 1, 1, 2, 1)) == 1, "no flags yet"
    peer(f"ctypes.memset({address}, 7, 8192)")
    assert peer(f"call('cuMemDiscardBatchAsync', {ranges}, {tail})".format(2, 0)) == 0
    assert peer(f"[read({address}, 6), read({address + 4096}, 3)]") == ["000000000707", "000007"]
    peer(f"ctypes.memset({address}, 7, 8192)")
    both = f"call('cuMemDiscardAndPrefetchBatchAsync', {ranges}, {places}, {tail})"
    assert peer(both.format(2, 1, 2, 2, 0)) == 1, "a place for a range that there is not"
    assert peer(f"read({address}, 6)") == "070707070707"
    assert peer(both.format(2, 1, 1, 2, 0)) == 0
    assert peer(f"read({address}, 6)") == "000000000707"


def test_the_first_abi_has_addresses_of_32_bits(small):
    peer = small.peer()
    peer("context(0)")
    assert (
        peer(
            "[a := c_uint64(~0 & (1 << 64) - 1), good('cuMemAlloc', byref(a), c_uint(4096)), a.value >> 32][2]"
        )
        == 0xFFFFFFFF
    )
    low = peer("[a := c_uint(), good('cuMemAlloc', byref(a), c_uint(1 << 20)), a.value][2]")
    assert 0 < low < 1 << 32
    assert (
        peer(f"[good('cuMemcpyHtoD', c_uint({low}), b'old', c_uint(3)), read({low}, 3)][1]") == b"old".hex()
    )
    assert peer(f"call('cuMemFree', c_uint({low}))") == 0
    assert peer(f"call('cuMemFree', c_uint({low}))") == 1
    assert (
        peer("[f := c_uint(), t := c_uint(), good('cuMemGetInfo', byref(f), byref(t)), t.value][3]")
        == (1 << 32) - 1
    )
    assert peer("used()") == CONTEXT + 4096


def test_granularity_rounds_what_is_taken(written):
    peer = written("gpu 0:\n memory: 1GiB\ngranularity: 2MiB\ncontext_memory: 1MiB\n").peer()
    peer("context(0)")
    assert peer("used()") == 2 << 20
    address = peer("alloc(1)")
    assert peer("used()") == 4 << 20
    assert peer(f"[free({address}), used()][1]") == 2 << 20


def test_reserved_memory_is_used_by_no_process(written):
    machine = written("gpu 0:\n memory: 10GiB\n reserved: 1GiB\ncontext_memory: 0\n")
    peer = machine.peer()
    peer("context(0)")
    assert peer("info()") == [9 * GIB, 10 * GIB]
    assert peer(f"alloc({9 * GIB + 1})") == -2
    assert peer(f"alloc({9 * GIB})") > 0


def test_host_memory(small):
    peer = small.peer()
    peer("context(0)")
    host = peer("handles('cuMemHostAlloc', c_size_t(1 << 20), 0)")
    assert peer("used()") == CONTEXT
    assert (
        peer(f"[v := c_uint(), good('cuPointerGetAttribute', byref(v), 2, c_uint64({host})), v.value][2]")
        == 1
    )
    assert (
        peer(
            f"[ctypes.memset({host}, 3, 100), d := alloc(4096), good('cuMemcpy', c_uint64(d), c_uint64({host}), "
            "c_size_t(100)), read(d, 4)][3]"
        )
        == "03030303"
    )
    assert peer(f"call('cuMemFreeHost', c_void_p({host}))") == 0
    assert peer(f"call('cuMemFreeHost', c_void_p({host}))") == 1
    own = peer("ctypes.addressof(globals().setdefault('own', ctypes.create_string_buffer(8192)))")
    assert peer(f"call('cuMemHostRegister_v2', c_void_p({own}), c_size_t(8192), 0)") == 0
    assert peer(f"call('cuMemHostRegister_v2', c_void_p({own}), c_size_t(8192), 0)") == 712
    assert peer(f"call('cuMemHostUnregister', c_void_p({own}))") == 0
    assert peer(f"call('cuMemHostUnregister', c_void_p({own}))") == 713


def test_memory_of_another_process_by_handle(small):
    owner, reader = small.peer(), small.peer()
    owner("context(0)")
    reader("context(0)")
    address = owner("alloc(65536)")
    owner(f"write({address}, b'before')")
    handle = owner(
        f"[h := ctypes.create_string_buffer(64), good('cuIpcGetMemHandle', h, c_uint64({address})), h.raw.hex()][2]"
    )
    open_it = (
        "[setattr(cu.cuIpcOpenMemHandle_v2, 'argtypes', [c_void_p, type('H', (ctypes.Structure,), "
        "{'_fields_': [('b', c_char * 64)]}), c_uint]), t := cu.cuIpcOpenMemHandle_v2.argtypes[1], a := c_uint64(), "
        f"code := cu.cuIpcOpenMemHandle_v2(ctypes.addressof(a), t.from_buffer_copy(bytes.fromhex({handle!r})), 1), "
        "code or a.value][4]"
    )
    there = reader(open_it)
    assert there > 1000
    assert reader(f"read({there}, 6)") == b"before".hex()
    reader(f"write({there}, b'AFTER!')")
    assert owner(f"read({address}, 6)") == b"AFTER!".hex()
    assert owner(open_it) == 201
    assert reader(f"call('cuIpcCloseMemHandle', c_uint64({there}))") == 0
    assert owner(f"free({address})") == 0
    assert owner("used()") == 2 * CONTEXT
    assert [path.name for path in small.state_file.parent.iterdir()] == [small.state_file.name]
