"""Driver calls that fail: the program gets the driver's own code, its variables stay, and the quota stays right."""

from __future__ import annotations

import subprocess

import pytest

from tests.native.running import CONTEXT, GIB, MIB, OUT_OF_MEMORY, ROOT, SUCCESS, Place

UNKNOWN = 999
UNTOUCHED = 0x5555


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
def fail(place):
    """fail("cuMemAlloc_v2", 999): the next call of that name returns 999."""

    def order(call: str, code: int, count: int = 1) -> None:
        command = [str(ROOT / "build/fakedriver/fakectl"), "fail", call, str(code), str(count)]
        subprocess.run(command, env=place.plain_env(), check=True)

    return order


@pytest.fixture
def client(place):
    with place.client("1GiB") as client:
        yield client.ready()


@pytest.mark.parametrize(
    ("command", "call"),
    [("alloc a", "cuMemAlloc_v2"), ("managed a", "cuMemAllocManaged"), ("pitch a", "cuMemAllocPitch_v2")],
)
@pytest.mark.parametrize("code", [OUT_OF_MEMORY, UNKNOWN])
def test_a_failed_allocation_is_not_charged(client, fail, command, call, code):
    before = client.free()
    fail(call, code)
    answer = client.do(command, MIB, 3)
    assert (answer.code, answer.first) == (code, UNTOUCHED)
    assert client.free() == before
    assert client.do(command, MIB, 3).code == SUCCESS
    assert client.free() < before


def test_a_failed_free_keeps_the_charge_and_can_be_repeated(client, fail):
    before = client.free()
    client.do("alloc a", MIB)
    fail("cuMemFree_v2", UNKNOWN, 2)
    for _ in range(2):
        assert client.do("free a").code == UNKNOWN
        assert client.free() == before - MIB
    assert client.do("free a").code == SUCCESS
    assert client.free() == before


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_context_that_the_driver_does_not_make_costs_nothing(client, fail, version):
    before = client.free()
    fail(f"cuCtxCreate_v{version}", UNKNOWN)
    answer = client.do(f"create{version} a", 0)
    assert (answer.code, answer.first) == (UNKNOWN, UNTOUCHED)
    assert client.free() == before
    assert client.do(f"create{version} a", 0).code == SUCCESS
    assert client.free() == before - CONTEXT


def test_the_first_context_of_all_may_fail(place, fail):
    with place.client("1GiB") as client:
        client.do("init")
        fail("cuDevicePrimaryCtxRetain", UNKNOWN)
        assert client.do("retain z", 0).code == UNKNOWN
        assert client.do("retain z", 0).code == SUCCESS
        client.do("current z")
        assert client.free() == GIB - CONTEXT


def test_a_context_that_is_not_destroyed_keeps_its_memory(client, fail):
    before = client.free()
    client.do("create2 a", 0)
    client.do("alloc x", MIB)
    fail("cuCtxDestroy_v2", UNKNOWN)
    assert client.do("destroy a").code == UNKNOWN
    assert client.free() == before - CONTEXT - MIB
    assert client.do("destroy a").code == SUCCESS
    client.do("current z")
    assert client.free() == before


@pytest.mark.parametrize(
    ("command", "call"),
    [("release z", "cuDevicePrimaryCtxRelease_v2"), ("reset z", "cuDevicePrimaryCtxReset_v2")],
)
def test_a_primary_context_that_does_not_go_keeps_its_memory(client, fail, command, call):
    client.do("alloc x", MIB)
    fail(call, UNKNOWN)
    assert client.do(command, 0).code == UNKNOWN
    assert client.free() == GIB - CONTEXT - MIB
    assert client.do("free x").code == SUCCESS


def test_failing_queries_pass_through(client, fail):
    fail("cuDeviceTotalMem_v2", UNKNOWN)
    assert client.do("total a", 0).code == UNKNOWN
    assert client.do("total a", 0).first == GIB
    fail("cuInit", UNKNOWN)
    assert client.do("init").code == UNKNOWN


def test_without_measurements_a_context_is_free_of_charge_and_later_measured(place, fail):
    with place.client("1GiB") as client:
        client.do("init")
        fail("nvmlDeviceGetMemoryInfo", UNKNOWN, 1)
        assert client.do("create2 a", 0).code == SUCCESS
        assert client.free() == GIB
        assert client.do("create2 b", 0).code == SUCCESS
        assert client.free() == GIB - CONTEXT
