# SPDX-License-Identifier: Apache-2.0
"""Contexts: their own device memory is charged, and everything in them is given back when they go."""

from __future__ import annotations

import json
import re
import struct
import time
from pathlib import Path

import pytest

from tests.native.running import (
    CONTEXT,
    GIB,
    INVALID_DEVICE,
    MIB,
    OUT_OF_MEMORY,
    SUCCESS,
    Place,
    eventually,
)
from tests.native.scripted import Program


@pytest.fixture
def client(place):
    with place.client("1GiB") as client:
        assert client.do("init").code == SUCCESS
        yield client


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_version_of_create_is_charged_and_refunded(client, version):
    assert client.do(f"create{version} a", 0).code == SUCCESS
    assert client.free() == GIB - CONTEXT
    assert client.do(f"create{version} b", 0).code == SUCCESS
    assert client.free() == GIB - 2 * CONTEXT
    assert client.do("alloc x", MIB).code == SUCCESS
    assert client.do("destroy b").code == SUCCESS
    client.do("current a")
    assert client.free() == GIB - CONTEXT, "the context took its allocation with it"
    assert client.do("destroy a").code == SUCCESS
    client.do("retain z", 0)
    client.do("current z")
    assert client.free() == GIB - CONTEXT


@pytest.mark.parametrize("version", ["", "_v2"])
def test_every_version_of_an_end_gives_back(place, version):
    with Program(place.env("1GiB")) as program:
        assert program.do("cuInit(0)") == SUCCESS
        program.do("keep(made=Handle(), kept=Handle(), a=c_ulonglong())")
        assert program.do("cuCtxCreate_v2(ref(kept), 0, 0)") == SUCCESS
        assert program.do("cuCtxCreate_v2(ref(made), 0, 0)") == SUCCESS
        assert program.do("cuMemAlloc_v2(ref(a), c_size_t(1 << 20))") == SUCCESS
        assert program.do("free()") == GIB - 2 * CONTEXT - MIB
        assert program.do(f"cuCtxDestroy{version}(made)") == SUCCESS
        assert program.do("cuCtxSetCurrent(kept)") == SUCCESS
        assert program.do("free()") == GIB - CONTEXT
        for end in ("Release", "Reset"):
            assert program.do("cuDevicePrimaryCtxRetain(ref(made), 0)") == SUCCESS
            assert program.do("cuCtxSetCurrent(made)") == SUCCESS
            assert program.do("cuMemAlloc_v2(ref(a), c_size_t(1 << 20))") == SUCCESS
            assert program.do("free()") == GIB - 2 * CONTEXT - MIB
            assert program.do(f"cuDevicePrimaryCtx{end}{version}(0)") == SUCCESS
            assert program.do("cuCtxSetCurrent(kept)") == SUCCESS
            assert program.do("free()") == GIB - CONTEXT, end


def test_a_context_that_does_not_fit_is_refused_and_undone(place):
    with place.client(str(CONTEXT + MIB)) as client:
        client.do("init")
        assert client.do("create2 a", 0).code == SUCCESS
        refused = client.do("create2 b", 0)
        assert (refused.code, refused.first) == (OUT_OF_MEMORY, 0x5555)
        client.do("current a")
        assert client.free() == MIB
        assert client.do("retain z", 0).code == OUT_OF_MEMORY


def test_the_first_context_is_refused_too_and_leaves_nothing(place):
    with place.client("50MiB") as client:
        client.do("init")
        assert client.do("create2 a", 0).code == OUT_OF_MEMORY
        assert client.do("retain z", 0).code == OUT_OF_MEMORY
        assert client.do("total a", 0).first == 50 * MIB
    with place.client("50MiB") as other:
        other.do("init")
        assert other.do("total a", 0).first == 50 * MIB


def test_the_primary_context_is_charged_once_per_process(client):
    for _ in range(3):
        assert client.do("retain z", 0).code == SUCCESS
    client.do("current z")
    assert client.free() == GIB - CONTEXT
    assert client.do("alloc a", MIB).code == SUCCESS
    for _ in range(2):
        assert client.do("release z", 0).code == SUCCESS
    assert client.free() == GIB - CONTEXT - MIB
    assert client.do("release z", 0).code == SUCCESS
    assert client.do("create2 b", 0).code == SUCCESS
    assert client.free() == GIB - CONTEXT, "the last release gave everything back"


def test_reset_gives_back_what_died(client):
    client.do("retain z", 0)
    client.do("current z")
    for name in "abcdef":
        assert client.do(f"alloc {name}", 10 * MIB).code == SUCCESS
    assert client.do("create2 k", 0).code == SUCCESS
    assert client.do("alloc l", 5 * MIB).code == SUCCESS
    assert client.do("reset z", 0).code == SUCCESS
    client.do("current k")
    assert client.free() == GIB - CONTEXT - 5 * MIB, "the other context keeps its memory"
    assert client.do("free l").code == SUCCESS
    assert client.do("free a").code != SUCCESS
    assert client.free() == GIB - CONTEXT


def test_thousands_of_blocks_die_with_their_context(client):
    client.do("retain z", 0)
    client.do("create2 a", 0)
    assert client.do("fill a", 64 * 1024).code == OUT_OF_MEMORY
    assert client.do("destroy a").code == SUCCESS
    client.do("current z")
    assert client.free() == GIB - CONTEXT


def test_detach_ends_a_context(client):
    client.do("create2 a", 0)
    client.do("alloc x", MIB)
    assert client.do("detach a").code == SUCCESS
    client.do("retain z", 0)
    client.do("current z")
    assert client.free() == GIB - CONTEXT


def test_failed_destruction_keeps_the_charge(client):
    client.do("create2 a", 0)
    client.do("retain z", 0)
    client.do("current z")
    before = client.free()
    assert client.do("destroy z").code != SUCCESS, "a primary context cannot be destroyed"
    assert client.free() == before
    assert client.do("alloc x", MIB).code == SUCCESS
    assert client.free() == before - MIB


def test_bad_devices_get_the_drivers_own_error(client):
    assert client.do("create2 a", 7).code == INVALID_DEVICE
    assert client.do("retain a", -1).code == INVALID_DEVICE
    assert client.do("total a", 7).code == INVALID_DEVICE


def test_a_second_process_pays_for_its_own_context(place, client):
    client.do("retain z", 0)
    client.do("current z")
    with place.client("1GiB") as other:
        other.ready()
        assert client.free() == GIB - 2 * CONTEXT
    with place.client("1GiB") as other:
        other.ready()
        assert other.free() == GIB - 2 * CONTEXT


def test_a_device_without_a_share_has_no_memory(place):
    with place.client("0=1GiB") as client:
        client.do("init")
        assert client.do("total a", 1).first == 0
        assert client.do("retain z", 1).code == OUT_OF_MEMORY
        assert client.do("create2 z", 1).code == OUT_OF_MEMORY
        client.do("retain z", 0)
        client.do("current z")
        assert client.free() == GIB - CONTEXT
        errors = client.close()
    assert errors.count("\n") == 1
    assert "has no entry in the limits page" in errors
    assert "CUDA_VISIBLE_DEVICES" in errors


def test_visible_devices_are_reordered_and_limits_follow_the_gpu(place):
    with place.client("0=1GiB,1=2GiB", CUDA_VISIBLE_DEVICES="1,0") as client:
        client.do("init")
        assert client.do("total a", 0).first == 2 * GIB
        assert client.do("total a", 1).first == GIB


# --- what one process has found out --------------------------------------------------------------------------------

CONTEXT_COST_AT = 4096 - 16 * 8  # the last words of the ledger's header, one per GPU


def nvml_starts(place: Place) -> int:
    return json.loads(place.fakectl("state"))["calls"].get("nvmlInit_v2", 0)


def learned(place: Place) -> tuple[int, int]:
    """PID namespace and bytes, as they lie in the file."""
    with (place.quota / "ledger").open("rb") as file:
        file.seek(CONTEXT_COST_AT)
        (word,) = struct.unpack("<Q", file.read(8))
    return word >> 32, (word & ((1 << 24) - 1)) * 256


def teach(place: Place, namespace: int, size: int) -> None:
    with (place.quota / "ledger").open("r+b") as file:
        file.seek(CONTEXT_COST_AT)
        file.write(struct.pack("<Q", namespace << 32 | 1 << 31 | size // 256))


def own_namespace() -> int:
    found = re.fullmatch(r"pid:\[(\d+)\]", str(Path("/proc/self/ns/pid").readlink()))
    assert found
    return int(found[1])


def test_only_the_first_process_starts_nvml_for_its_context(place):
    place.fakectl("count", "on")
    with place.client("1GiB") as first:
        assert first.ready().free() == GIB - CONTEXT
        starts = nvml_starts(place)
        assert starts > 0
        assert learned(place) == (own_namespace(), CONTEXT)
        with place.client("1GiB") as second:
            second.ready()
            assert first.free() == GIB - 2 * CONTEXT
            assert second.do("alloc a", MIB).code == SUCCESS
            assert second.do("create2 b", 0).code == SUCCESS
            assert first.free() == GIB - 3 * CONTEXT - MIB
            assert nvml_starts(place) == starts
            assert eventually(lambda: second.free() > 0 and nvml_starts(place) > starts), (
                "a process that reads, measures"
            )
            assert second.free() == GIB - 3 * CONTEXT - MIB


def test_the_cost_is_believed_in_any_namespace_and_who_measures_itself_in_one(place):
    place.fakectl("count", "on")
    with place.client("1GiB") as first:
        first.ready()
    elsewhere = (own_namespace() + 1, 16 * MIB)
    teach(place, *elsewhere)
    starts = nvml_starts(place)
    with place.client("1GiB") as second:
        assert second.ready().free() == GIB - 16 * MIB
        time.sleep(0.3)
        assert second.free() == GIB - 16 * MIB, "with NVML it would be what the context really takes"
        assert second.do("create2 a", 0).code == SUCCESS
        assert second.free() == GIB - 32 * MIB
    assert nvml_starts(place) == starts
    assert learned(place) == elsewhere


def test_a_cost_that_cannot_be_is_bounded(place):
    with place.client("3GiB") as first:
        first.ready()
    teach(place, own_namespace(), (4 << 30) - 256)
    with place.client("3GiB") as second:
        assert second.ready().free() == GIB
