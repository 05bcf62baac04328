# SPDX-License-Identifier: Apache-2.0
"""Copies, fills and arrays."""

from __future__ import annotations

from tests.native.work import WAITING, Worker

CONTEXT = 100 << 20


def started(small):
    peer = small.peer()
    peer("context(0)")
    return peer, peer("alloc(4096)"), peer("alloc(4096)")


def test_between_device_addresses(small):
    peer, first, second = started(small)
    peer(f"write({first}, bytes(range(100)))")
    for name, tail in (
        ("cuMemcpyDtoD_v2", ""),
        ("cuMemcpyDtoD_v2_ptds", ""),
        ("cuMemcpyDtoDAsync_v2", ", None"),
        ("cuMemcpyDtoDAsync_v2_ptsz", ", None"),
        ("cuMemcpy", ""),
        ("cuMemcpyAsync_ptsz", ", None"),
    ):
        peer(f"good('cuMemsetD8_v2', c_uint64({second}), 0, c_size_t(4096))")
        assert peer(f"call({name!r}, c_uint64({second}), c_uint64({first + 10}), c_size_t(5){tail})") == 0
        assert peer(f"read({second}, 6)") == "0a0b0c0d0e00", name
    assert peer(f"call('cuMemcpyDtoD_v2', c_uint64({second}), c_uint64({first}), c_size_t(4097))") == 1


def test_between_devices(small):
    peer, first, _ = started(small)
    here = peer("handles('cuCtxGetCurrent')")
    there = peer("context(1)")
    other = peer("alloc(4096)")
    peer(f"write({first}, b'peer')")
    assert (
        peer(
            f"call('cuMemcpyPeer', c_uint64({other}), c_void_p({there}), c_uint64({first}), c_void_p({here}), "
            "c_size_t(4))"
        )
        == 0
    )
    assert peer(f"read({other}, 4)") == b"peer".hex()
    assert (
        peer(
            f"call('cuMemcpyPeer', c_uint64({other}), c_void_p(64), c_uint64({first}), c_void_p({here}), c_size_t(4))"
        )
        == 201
    )


def test_fills(small):
    peer, first, _ = started(small)
    for name, value, expected in (
        ("cuMemsetD8_v2", 0x1234, "34343434"),
        ("cuMemsetD16_v2", 0x1234, "34123412"),
        ("cuMemsetD32_v2", 0x1234, "34120000"),
        ("cuMemsetD32_v2_ptds", 0x4321, "21430000"),
    ):
        assert peer(f"call({name!r}, c_uint64({first}), c_uint({value}), c_size_t(8))") == 0
        assert peer(f"read({first}, 4)") == expected
    assert peer(f"call('cuMemsetD16_v2', c_uint64({first + 1}), 0, c_size_t(1))") == 1
    peer(f"good('cuMemsetD8_v2', c_uint64({first}), 0, c_size_t(64))")
    assert (
        peer(f"call('cuMemsetD2D8_v2', c_uint64({first}), c_size_t(8), 255, c_size_t(2), c_size_t(3))") == 0
    )
    assert peer(f"read({first}, 24)") == "ffff000000000000" * 3


def test_a_box_of_two_dimensions(small):
    peer, first, _ = started(small)
    peer(f"write({first}, bytes(range(64)))")
    # CUDA_MEMCPY2D: from a device matrix 8 wide, at column 2 of row 1, to the host: 3 columns, 2 rows.
    box = f"(c_uint64 * 16)(2, 1, 2, 0, {first}, 0, 8, 0, 0, 1, ctypes.addressof(out), 0, 0, 3, 3, 2)"
    assert peer(
        f"[globals().update(out=ctypes.create_string_buffer(6)), good('cuMemcpy2D_v2', {box}), out.raw.hex()][2]"
    ) == ("0a0b0c121314")


def test_arrays(small):
    peer, first, _ = started(small)
    before = peer("used()")
    # CUDA_ARRAY_DESCRIPTOR: width, height, format (float), channels.
    array = peer("handles('cuArrayCreate_v2', (c_uint64 * 3)(256, 128, 0x20 | 4 << 32))")
    assert peer("used()") == before + 256 * 128 * 16
    assert (
        peer(
            f"[ctypes.create_string_buffer(0), good('cuMemcpyHtoA_v2', c_void_p({array}), c_size_t(16), b'texel', "
            f"c_size_t(5)), good('cuMemcpyAtoD_v2', c_uint64({first}), c_void_p({array}), c_size_t(16), c_size_t(5)), "
            f"read({first}, 5)][3]"
        )
        == b"texel".hex()
    )
    assert peer(
        f"[d := (c_uint64 * 5)(), good('cuArray3DGetDescriptor_v2', d, c_void_p({array})), list(d)[:3]][2]"
    ) == [256, 128, 0]
    assert peer(f"call('cuMemcpyHtoA_v2', c_void_p({array}), c_size_t(4094), b'texel', c_size_t(5))") == 1
    assert peer(f"call('cuArrayDestroy', c_void_p({array}))") == 0
    assert peer(f"call('cuArrayDestroy', c_void_p({array}))") == 400
    assert peer("used()") == before
    assert peer("handles('cuArrayCreate_v2', (c_uint64 * 3)(256, 128, 0x77 | 4 << 32))") == -1


def test_mipmapped_arrays(small):
    peer, _, _ = started(small)
    before = peer("used()")
    mipmap = peer("handles('cuMipmappedArrayCreate', (c_uint64 * 5)(64, 64, 0, 0x01 | 1 << 32, 0), 3)")
    assert peer("used()") == before + 65536, "all levels in one piece, in multiples of 64 KiB"
    level = peer(f"handles('cuMipmappedArrayGetLevel', c_void_p({mipmap}), 2)")
    assert peer(f"call('cuArrayDestroy', c_void_p({level}))") == 207
    assert peer(f"handles('cuMipmappedArrayGetLevel', c_void_p({mipmap}), 3)") == -1
    assert peer(f"call('cuMipmappedArrayDestroy', c_void_p({mipmap}))") == 0
    assert peer("used()") == before


def test_arrays_end_with_their_context(small):
    peer, _, _ = started(small)
    peer("handles('cuArrayCreate_v2', (c_uint64 * 3)(1024, 1024, 0x01 | 1 << 32))")
    peer("good('cuDevicePrimaryCtxReset_v2', 0)")
    assert small.state()["gpus"][0]["used"] == 0


def test_every_copy_and_fill_in_all_its_abis(small):
    with Worker(small.env()) as worker:
        worker.started("work_1us")
        done = {
            work.name: [worker.do(f"call {work.name}"), worker.do(f"look {work.name}")] for work in WAITING
        }
    assert done == {work.name: [str(work.code), "ok"] for work in WAITING}


# CUDA_MEMCPY3D_BATCH_OP: two operands (kind; pointer, row, layer, hint or array, x, y, z), extent, order.
POINTER = "1, {}, {}, 0, 0"
ARRAY = "2, {}, {}, {}, 0"


def operation(source, target, width, height, order=1):
    return f"(c_uint64 * 14)({source}, {target}, {width}, {height}, 1, {order})"


def test_boxes_between_arrays_and_pointers_count_in_texels(small):
    peer, first, second = started(small)
    stream = f"c_void_p({peer('handles(' + repr('cuStreamCreate') + ', 0)')})"
    # 8 × 4 texels of one 16-bit number.
    array = peer("handles('cuArrayCreate_v2', (c_uint64 * 3)(8, 4, 0x02 | 1 << 32))")
    peer(f"write({first}, bytes(range(64)))")
    call = "call('cuMemcpy3DWithAttributesAsync', {}, c_uint64({}), {})"
    there = operation(POINTER.format(first, 8), ARRAY.format(array, 2, 1), 3, 2)
    assert peer(call.format(there, 0, stream)) == 0
    back = operation(ARRAY.format(array, 2, 1), POINTER.format(second, 0), 3, 2)
    assert peer(call.format(back, 0, stream)) == 0
    assert peer(f"read({second}, 12)") == "000102030405" + "101112131415", (
        "rows of 16 bytes, three texels of each"
    )
    assert peer(call.format(back, 1, stream)) == 1, "no flags yet"
    assert (
        peer(call.format(operation(POINTER.format(first, 8), ARRAY.format(array, 2, 1), 0, 2), 0, stream))
        == 1
    )
    assert (
        peer(call.format(operation(POINTER.format(first, 8), ARRAY.format(array, 2, 1), 3, 2, 9), 0, stream))
        == 1
    )


def test_a_batch_says_which_copy_failed(small):
    peer, first, second = started(small)
    stream = f"c_void_p({peer('handles(' + repr('cuStreamCreate') + ', 0)')})"
    lists = (
        f"(c_uint64 * 2)({second}, {second}), (c_uint64 * 2)({first}, {first}), (c_size_t * 2)(4096, 4097)"
    )
    attributes = "(c_uint * 6)(1), (c_size_t * 1)({}), c_size_t({})"
    batch = "[f := c_size_t(7), call('cuMemcpyBatchAsync', {}, c_size_t(2), {}, byref(f), {}), f.value][1:]"
    assert peer(batch.format(lists, attributes.format(0, 1), stream)) == [1, 1]
    assert peer(batch.format(lists, attributes.format(0, 1), None)) == [1, 2**64 - 1], "the default stream"
    assert peer(batch.format(lists, attributes.format(1, 1), stream)) == [1, 2**64 - 1], (
        "they begin with the first"
    )
    assert peer(batch.format(lists, attributes.format(0, 3), stream)) == [1, 2**64 - 1], "more than copies"
