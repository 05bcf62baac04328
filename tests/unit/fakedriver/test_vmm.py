# SPDX-License-Identifier: Apache-2.0
"""Virtual memory management."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30
CONTEXT = 100 * MIB


def test_handles_cost_and_addresses_do_not(small):
    peer = small.peer()
    peer("context(0)")
    address = peer(f"reserve({64 * GIB})")
    assert peer("used()") == CONTEXT
    handle = peer(f"physical({GIB})")
    assert peer("used()") == CONTEXT + GIB
    assert peer(f"map_physical({address}, {GIB}, {handle})") == 0
    assert peer(f"map_physical({address}, {GIB}, {handle})") == 1, "occupied"
    assert peer(f"write({address + GIB - 4}, b'last')") == 0
    assert peer(f"write({address + GIB - 3}, b'last')") == 1
    assert peer(f"call('cuMemAddressFree', c_uint64({address}), c_size_t({64 * GIB}))") == 1, (
        "something is mapped"
    )
    assert peer(f"call('cuMemRelease', c_uint64({handle}))") == 0
    assert peer("used()") == CONTEXT + GIB, "mapped"
    assert peer(f"read({address + GIB - 4}, 4)") == b"last".hex()
    assert peer(f"call('cuMemUnmap', c_uint64({address}), c_size_t({GIB}))") == 0
    assert peer("used()") == CONTEXT
    assert peer(f"call('cuMemRelease', c_uint64({handle}))") == 1
    assert peer(f"call('cuMemAddressFree', c_uint64({address}), c_size_t({64 * GIB}))") == 0


def test_mappings_side_by_side_are_one_buffer(small):
    peer = small.peer()
    peer("context(0)")
    address = peer(f"reserve({8 * MIB})")
    for part in range(4):
        handle = peer(f"physical({2 * MIB})")
        assert peer(f"map_physical({address + part * 2 * MIB}, {2 * MIB}, {handle})") == 0
        peer(f"good('cuMemRelease', c_uint64({handle}))")
    assert peer(f"write({address + 2 * MIB - 2}, b'edge')") == 0
    assert peer(f"read({address + 2 * MIB - 2}, 4)") == b"edge".hex()
    assert peer(f"write({address + 8 * MIB - 2}, b'edge')") == 1
    assert peer(f"call('cuMemUnmap', c_uint64({address}), c_size_t({8 * MIB}))") == 0
    assert peer("used()") == CONTEXT


def test_a_handle_mapped_twice_shows_the_same_bytes(small):
    peer = small.peer()
    peer("context(0)")
    handle = peer(f"physical({2 * MIB})")
    first, second = (peer(f"reserve({2 * MIB})") for _ in range(2))
    assert peer(f"[map_physical(a, {2 * MIB}, {handle}) for a in ({first}, {second})]") == [0, 0]
    peer(f"write({first}, b'twin')")
    assert peer(f"read({second}, 4)") == b"twin".hex()
    assert peer(f"handles('cuMemRetainAllocationHandle', c_void_p({second}))") == handle
    assert peer("used()") == CONTEXT + 2 * MIB


def test_the_device_of_the_handle_pays(small):
    peer = small.peer()
    peer("good('cuInit', 0)")
    assert peer(f"physical({4 * MIB}, 1)") > 0, "without a context"
    assert [gpu["used"] for gpu in small.state()["gpus"]] == [0, 4 * MIB]


def test_what_is_refused(small):
    peer = small.peer()
    peer("context(0)")
    assert peer(f"physical({MIB})") == -1, "not a multiple of the granularity"
    assert peer(f"physical({30 * GIB})") == -2
    assert peer(f"physical({2 * MIB}, 7)") == -101
    assert (
        peer(
            "[g := c_size_t(), p := AllocationProp(type=1, location=MemLocation(1, 0)), "
            "good('cuMemGetAllocationGranularity', byref(g), byref(p), 0), g.value][3]"
        )
        == 2 * MIB
    )
    assert peer(f"call('cuMemUnmap', c_uint64(4096), c_size_t({2 * MIB}))") == 1
    assert peer("call('cuMemRelease', c_uint64(4096))") == 1
    assert peer("used()") == CONTEXT


def test_export_and_import(small):
    peer = small.peer()
    peer("context(0)")
    handle = peer(f"physical({2 * MIB}, 0, 1)")
    fd = peer(
        f"[f := c_int(), good('cuMemExportToShareableHandle', byref(f), c_uint64({handle}), 1, c_uint64(0)), "
        "f.value][2]"
    )
    imported = peer(
        f"[h := c_uint64(), good('cuMemImportFromShareableHandle', byref(h), c_void_p({fd}), 1), h.value][2]"
    )
    assert imported != handle
    assert peer("used()") == CONTEXT + 2 * MIB, "paid once"
    first, second = (peer(f"reserve({2 * MIB})") for _ in range(2))
    assert peer(f"map_physical({first}, {2 * MIB}, {handle})") == 0
    assert peer(f"map_physical({second}, {2 * MIB}, {imported})") == 0
    peer(f"write({first}, b'through')")
    assert peer(f"read({second}, 7)") == b"through".hex()
    assert peer("call('cuMemImportFromShareableHandle', byref(c_uint64()), c_void_p(0), 1)") == 1
    private = peer(f"physical({2 * MIB})")
    assert (
        peer(f"call('cuMemExportToShareableHandle', byref(c_int()), c_uint64({private}), 1, c_uint64(0))")
        == 1
    )
