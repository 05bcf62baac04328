# SPDX-License-Identifier: Apache-2.0
"""Driver calls that fail: the program gets the driver's own code, its variables stay, and the quota stays right."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fakedriver.env import library_directory
from tests.native.running import CLIENTS, CONTEXT, GIB, MIB, OUT_OF_MEMORY, ROOT, SUCCESS, Place

UNKNOWN = 999
UNTOUCHED = 0x5555


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


NVML = "libnvidia-ml.so.1"


def traced(place: Place, trace: Path, options: list[str], **extra: str) -> tuple[int, list[str]]:
    """What is free in a first context under strace with these OPTIONS, and its lines about NVML's file."""
    settings = [f"--env={name}={value}" for name, value in (place.env("1GiB") | extra).items()]
    command = ["strace", "-f", "-q", "-o", str(trace), *options, *settings, str(CLIENTS / "client"), "dlsym"]
    done = subprocess.run(
        command, input="init\nretain z 0\ncurrent z\ninfo\n", capture_output=True, text=True, check=True
    )
    return int(done.stdout.splitlines()[-1].split()[1]), trace.read_text().splitlines()


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace makes system calls fail")


@needs_strace
def test_a_system_call_that_fails_while_nvml_is_loaded(place, tmp_path):
    path = library_directory() / NVML
    fault = [f"--trace-path={path}", "--trace=close", "--inject=close:error=EIO:when=1"]
    free, lines = traced(place, tmp_path / "trace", fault)
    assert any("INJECTED" in line for line in lines)
    assert free == GIB - CONTEXT


@needs_strace
def test_nvml_that_is_not_there_is_asked_for_once(place, tmp_path):
    only_cuda = tmp_path / "driver"
    only_cuda.mkdir()
    shutil.copy(library_directory() / "libcuda.so.1", only_cuda)
    path = only_cuda / NVML
    _, lines = traced(
        place, tmp_path / "trace", [f"--trace-path={path}", "--trace=openat"], LD_LIBRARY_PATH=str(only_cuda)
    )
    assert len([line for line in lines if NVML in line]) == 1
