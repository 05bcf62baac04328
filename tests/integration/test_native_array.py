# SPDX-License-Identifier: Apache-2.0
"""Arrays and mipmapped arrays: charged by their descriptors in every form of creation, given back in every way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native.running import (
    CONTEXT,
    INVALID_CONTEXT,
    INVALID_VALUE,
    KIB,
    MIB,
    OUT_OF_MEMORY,
    ROOT,
    SUCCESS,
    Place,
)
from tests.unit.fakedriver.conftest import Machine, Peer

INVALID_HANDLE, ARRAY_IS_MAPPED = 400, 207
INT8, FLOAT, NV12, BC1 = 0x01, 0x20, 0xB0, 0x91
LAYERED, SURFACE, CUBEMAP, SPARSE, DEFERRED = 0x01, 0x02, 0x04, 0x40, 0x80
TABLE = re.findall(
    r"^FORMAT\((\w+), (0x\w+), (\d+), (\d+), (\d+), ([01])\)$",
    (ROOT / "native/cuda/format.def").read_text(),
    re.MULTILINE,
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Peer]]:
    """Starts programs under a limit; they hold a primary context of device 0."""
    place = Place(tmp_path)
    peers: list[Peer] = []

    def begin(limit: str = "1GiB") -> Peer:
        peers.append(Peer(place.env(limit, PYTHONPATH=str(ROOT))))
        peers[-1]("context(0)")
        return peers[-1]

    yield begin
    for peer in peers:
        peer.kill()


def flat(width: int, height: int, form: int = FLOAT, channels: int = 1) -> str:
    """CUDA_ARRAY_DESCRIPTOR."""
    return f"(c_uint64 * 3)({width}, {height}, {form} | {channels} << 32)"


def flat_v1(width: int, height: int, form: int = FLOAT, channels: int = 1) -> str:
    return f"(c_uint * 4)({width}, {height}, {form}, {channels})"


def deep(width: int, height: int, depth: int, flags: int = 0, texel: tuple[int, int] = (FLOAT, 1)) -> str:
    """CUDA_ARRAY3D_DESCRIPTOR; a texel is a format and a number of channels."""
    return f"(c_uint64 * 5)({width}, {height}, {depth}, {texel[0]} | {texel[1]} << 32, {flags})"


def deep_v1(width: int, height: int, depth: int, flags: int = 0) -> str:
    return f"(c_uint * 6)({width}, {height}, {depth}, {FLOAT}, 1, {flags})"


def create(peer: Peer, creator: str, descriptor: str, *more: object) -> int:
    """Handle, or minus the error code."""
    handle = peer(f"handles({creator!r}, {', '.join([descriptor, *map(str, more)])})")
    assert isinstance(handle, int)
    return handle


def destroy(peer: Peer, handle: int, kind: str = "cuArray") -> int:
    code = peer(f"call('{kind}Destroy', c_void_p({handle}))")
    assert isinstance(code, int)
    return code


FORMS = [
    ("cuArrayCreate", flat_v1(1024, 0), 64 * KIB),
    ("cuArrayCreate", flat_v1(1024, 1024), 4 * MIB),
    ("cuArrayCreate_v2", flat(65536, 0), 256 * KIB),
    ("cuArrayCreate_v2", flat(1024, 1024, INT8, 4), 4 * MIB),
    ("cuArray3DCreate", deep_v1(128, 128, 128), 8 * MIB),
    ("cuArray3DCreate", deep_v1(1024, 0, 64, LAYERED), 256 * KIB),
    ("cuArray3DCreate_v2", deep(1024, 1024, 0), 4 * MIB),
    ("cuArray3DCreate_v2", deep(128, 128, 128, SURFACE), 8 * MIB),
    ("cuArray3DCreate_v2", deep(1024, 0, 64, LAYERED), 256 * KIB),
    ("cuArray3DCreate_v2", deep(1024, 1024, 3, LAYERED), 12 * MIB),
    ("cuArray3DCreate_v2", deep(512, 512, 6, CUBEMAP), 6 * MIB),
    ("cuArray3DCreate_v2", deep(512, 512, 12, CUBEMAP | LAYERED), 12 * MIB),
    ("cuArray3DCreate_v2", deep(4096, 4096, 0, 0, (BC1, 4)), 8 * MIB),
    ("cuArray3DCreate_v2", deep(4096, 4096, 0, 0, (NV12, 3)), 24 * MIB),
    ("cuArray3DCreate_v2", deep(4096, 4096, 0, SPARSE), 0),
    ("cuArray3DCreate_v2", deep(4096, 4096, 0, DEFERRED), 0),
]


def test_every_form_of_array_is_charged_and_given_back(start):
    peer = start()
    before = peer("used()")
    assert before == CONTEXT
    for creator, descriptor, size in FORMS:
        handle = create(peer, creator, descriptor)
        assert handle > 0, (creator, descriptor)
        assert peer("used()") - before == size, (creator, descriptor)
        assert destroy(peer, handle) == SUCCESS
        assert peer("used()") == before, (creator, descriptor)


@pytest.mark.parametrize(
    ("descriptor", "levels", "size"),
    [
        (deep(1024, 1024, 0), 1, 4 * MIB),
        (deep(1024, 1024, 0), 0, 4 * MIB),  # no less than one level
        (deep(1024, 1024, 0), 3, 4 * MIB + MIB + 256 * KIB),
        (
            deep(1024, 1024, 0),
            1000,
            5504 * KIB,
        ),  # eleven levels; the small ones fill groups of 64 bytes by 8 rows
        (deep(128, 128, 128), 2, 9 * MIB),
        (deep(1024, 1024, 4, LAYERED), 2, 20 * MIB),
        (deep(1024, 1024, 6, CUBEMAP), 2, 30 * MIB),
        (deep(1024, 1024, 0, SPARSE), 11, 0),
        (deep(1024, 1024, 0, DEFERRED), 11, 0),
    ],
)
def test_mipmapped_arrays_are_charged_for_all_their_levels(start, descriptor, levels, size):
    peer = start()
    before = peer("used()")
    handle = create(peer, "cuMipmappedArrayCreate", descriptor, levels)
    assert handle > 0
    assert peer("used()") - before == size
    assert destroy(peer, handle, "cuMipmappedArray") == SUCCESS
    assert peer("used()") == before


def test_a_level_is_a_view_whose_end_gives_nothing_back(start):
    peer = start()
    handle = create(peer, "cuMipmappedArrayCreate", deep(1024, 1024, 0), 3)
    charged = peer("used()")
    level = peer(f"handles('cuMipmappedArrayGetLevel', c_void_p({handle}), 0)")
    assert destroy(peer, level) == ARRAY_IS_MAPPED
    assert peer("used()") == charged
    assert destroy(peer, handle, "cuMipmappedArray") == SUCCESS
    assert destroy(peer, level) == INVALID_HANDLE
    assert peer("used()") == CONTEXT


def test_the_last_array_that_fits_is_allocated_and_the_next_is_not(start):
    peer = start(str(CONTEXT + 16 * MIB))
    kept = create(peer, "cuArrayCreate_v2", flat(1024, 1024, FLOAT, 4))
    assert kept > 0
    for creator, descriptor, size in FORMS:
        if size:
            assert create(peer, creator, descriptor) == -OUT_OF_MEMORY, (creator, descriptor)
    refused = "(h := c_void_p(0x5555)) and [call('cuArrayCreate_v2', byref(h), {}), h.value]"
    assert peer(refused.format(flat(1, 1))) == [OUT_OF_MEMORY, 0x5555], "the output is untouched"
    assert create(peer, "cuMipmappedArrayCreate", deep(1, 1, 0), 1) == -OUT_OF_MEMORY
    assert create(peer, "cuArray3DCreate_v2", deep(4096, 4096, 0, SPARSE)) > 0, "it takes nothing now"
    assert destroy(peer, kept) == SUCCESS
    assert create(peer, "cuMipmappedArrayCreate", deep(1024, 1024, 3, LAYERED), 2) > 0


def test_sizes_beyond_64_bits_are_refused_and_not_wrapped(start):
    peer = start()
    huge = 1 << 62
    for descriptor in (deep(huge, 8, 0), deep(huge, huge, huge), deep(1 << 32, 1 << 32, 0), deep(1, huge, 4)):
        assert create(peer, "cuArray3DCreate_v2", descriptor) == -OUT_OF_MEMORY
        assert create(peer, "cuMipmappedArrayCreate", descriptor, 64) == -OUT_OF_MEMORY
    assert create(peer, "cuArrayCreate_v2", flat(huge, 8)) == -OUT_OF_MEMORY
    assert peer("used()") == CONTEXT


def test_what_the_driver_refuses_is_answered_by_the_driver_and_costs_nothing(start):
    peer = start()
    wrong = [
        ("cuArrayCreate_v2", flat(0, 64)),
        ("cuArrayCreate_v2", flat(64, 64, 0x77)),
        ("cuArrayCreate_v2", flat(64, 64, FLOAT, 3)),
        ("cuArray3DCreate_v2", deep(64, 0, 64)),
        ("cuArray3DCreate_v2", deep(64, 64, 5, CUBEMAP)),
        ("cuMipmappedArrayCreate", deep(64, 64, 0, 0, (0x77, 1)), 2),
        ("cuArrayCreate", "None"),
        ("cuArrayCreate_v2", "None"),
        ("cuArray3DCreate", "None"),
        ("cuArray3DCreate_v2", "None"),
        ("cuMipmappedArrayCreate", "None", 1),
    ]
    for creator, descriptor, *more in wrong:
        assert create(peer, creator, descriptor, *more) == -INVALID_VALUE, (creator, descriptor)
    for creator, descriptor, _ in FORMS[::4]:
        assert peer(f"call({creator!r}, None, {descriptor})") == INVALID_VALUE, creator
    assert peer(f"call('cuMipmappedArrayCreate', None, {deep(64, 64, 0)}, 1)") == INVALID_VALUE
    assert peer("used()") == CONTEXT
    peer("good('cuCtxSetCurrent', None)")
    assert create(peer, "cuArrayCreate_v2", flat(64, 64)) == -INVALID_CONTEXT
    assert create(peer, "cuMipmappedArrayCreate", deep(64, 64, 0), 1) == -INVALID_CONTEXT


def test_a_gpu_that_is_full_gives_the_charge_back(start):
    peer = start("100GiB")
    assert create(peer, "cuArray3DCreate_v2", deep(65536, 65536, 2, LAYERED, (FLOAT, 4))) == -OUT_OF_MEMORY
    assert peer("used()") == CONTEXT


def test_double_and_unknown_ends_refund_nothing(start):
    peer = start()
    array = create(peer, "cuArrayCreate_v2", flat(1024, 1024))
    mipmap = create(peer, "cuMipmappedArrayCreate", deep(1024, 1024, 0), 1)
    assert destroy(peer, mipmap) == INVALID_HANDLE, "not an array"
    assert destroy(peer, array, "cuMipmappedArray") == INVALID_HANDLE, "not a mipmapped one"
    assert destroy(peer, 0) == INVALID_HANDLE
    assert destroy(peer, 0x123450) == INVALID_HANDLE
    assert peer("used()") == CONTEXT + 8 * MIB
    assert [destroy(peer, array) for _ in range(2)] == [SUCCESS, INVALID_HANDLE]
    assert [destroy(peer, mipmap, "cuMipmappedArray") for _ in range(2)] == [SUCCESS, INVALID_HANDLE]
    assert peer("used()") == CONTEXT


def test_arrays_go_with_their_context_and_only_with_theirs(start):
    peer = start()
    other = peer("handles('cuCtxCreate_v2', 0, 0)")
    assert create(peer, "cuArrayCreate_v2", flat(1024, 1024)) > 0
    assert create(peer, "cuMipmappedArrayCreate", deep(1024, 1024, 0), 1) > 0
    peer("context(0)")
    kept = create(peer, "cuArrayCreate_v2", flat(1024, 1024))
    assert peer("used()") == 2 * CONTEXT + 12 * MIB
    assert peer(f"call('cuCtxDestroy_v2', c_void_p({other}))") == SUCCESS
    assert peer("used()") == CONTEXT + 4 * MIB
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == SUCCESS
    peer("context(0)")
    assert destroy(peer, kept) == INVALID_HANDLE
    assert peer("used()") == CONTEXT


def test_every_format_is_charged_what_the_driver_takes(start, tmp_path):
    """The simulated driver has a table of its own."""
    peer = start()
    machine = Machine("two-24g", tmp_path / "machine")
    for name, number, *_, per_channel in TABLE:
        channels = 4 if per_channel == "1" else 1
        handle = create(peer, "cuArray3DCreate_v2", deep(1024, 1024, 0, 0, (int(number, 16), channels)))
        assert handle > 0, name
        charged = peer("used()") - CONTEXT
        assert charged == machine.state()["gpus"][0]["used"] - CONTEXT, name
        assert destroy(peer, handle) == SUCCESS


def test_every_format_of_the_header_is_in_the_table():
    """A new header with a new format fails here until its size is written into native/cuda/format.def."""
    headers = [*(ROOT / "build").glob("venv/lib/python3*/site-packages/nvidia/*/include/cuda.h")]
    assert headers, "no cuda.h: run make"
    enum = re.search(
        r"typedef enum CUarray_format_enum \{(.*?)\} CUarray_format;", headers[0].read_text(), re.DOTALL
    )
    assert enum
    found = {
        name: int(number, 16) for name, number in re.findall(r"CU_AD_FORMAT_(\w+)\s*=\s*(0x\w+)", enum[1])
    }
    del found["MAX"]
    table = {name: int(number, 16) for name, number, *_ in TABLE}
    assert len(found) >= 65
    assert {n: v for n, v in found.items() if table.get(n) != v} == {}, "sizes are not decided"
    assert len(set(table.values())) == len(table)
