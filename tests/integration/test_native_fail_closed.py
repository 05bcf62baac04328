# SPDX-License-Identifier: Apache-2.0
"""An error of the driver is never a way around the quota: what cannot be charged is refused, with one line why."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakedriver.env import library_directory
from tests.native.running import (
    CONTEXT,
    GIB,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    MIB,
    OUT_OF_MEMORY,
    ROOT,
    SUCCESS,
    Client,
    Place,
)
from tests.native.scripted import Program
from tests.unit.fakedriver.conftest import Peer

UNKNOWN = 999
UNTOUCHED = 0x5555
ALWAYS = 1000000
UUID_CALLS = ("cuDeviceGetUuid", "cuDeviceGetUuid_v2")
BY_BUS = "nvmlDeviceGetHandleByPciBusId_v2"


@pytest.fixture
def fail(place: Place) -> Callable[..., None]:
    """fail("cuMemAlloc_v2", 999): from now on calls of that name return 999."""

    def order(call: str, code: int = UNKNOWN, count: int = ALWAYS) -> None:
        place.fakectl("fail", call, code, count)

    return order


def refused(client: Client, device: int = 0) -> str:
    """The device has no memory; returns the one line on stderr."""
    assert client.do("init").code == SUCCESS
    assert client.do("retain z", device).code == OUT_OF_MEMORY
    assert client.do("create2 a", device).code == OUT_OF_MEMORY
    assert client.do("total a", device).first == 0
    errors = client.close()
    assert errors.count("\n") == 1, errors
    return errors


# --- which GPU a device is ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "limit"), [(0, GIB), (1, 2 * GIB)])
@pytest.mark.parametrize("code", [UNKNOWN, INVALID_DEVICE])
def test_a_device_without_a_uuid_is_found_by_its_place_on_the_bus(place, fail, device, limit, code):
    for call in UUID_CALLS:
        fail(call, code)
    with place.client("0=1GiB,1=2GiB") as client:
        client.ready(device)
        assert client.do("total a", device).first == limit
        assert client.do("alloc a", limit).code == OUT_OF_MEMORY
        assert client.do("alloc a", limit - CONTEXT).code == SUCCESS
        assert client.close() == ""


@pytest.mark.parametrize("limit", ["1GiB", "0=1GiB"])
def test_a_device_without_a_name_has_no_memory(place, fail, limit):
    for call in (*UUID_CALLS, BY_BUS):
        fail(call)
    with place.client(limit, CUDA_VISIBLE_DEVICES="0") as client:
        errors = refused(client)
    assert "which GPU device 0 is" in errors
    assert "libnvidia-ml.so.1" in errors


def test_a_device_that_was_not_named_is_asked_for_again(place, fail):
    for call in (*UUID_CALLS, BY_BUS):
        fail(call, UNKNOWN, 1)
    with place.client("1GiB") as client:
        client.do("init")
        assert client.do("retain z", 0).code == OUT_OF_MEMORY
        assert client.do("retain z", 0).code == SUCCESS
        client.do("current z")
        assert client.free() == GIB - CONTEXT


def test_a_device_that_the_driver_does_not_have_is_the_drivers_error(place, fail):
    with place.client("1GiB") as client:
        assert client.do("init").code == SUCCESS
        assert client.do("retain z", 7).code == INVALID_DEVICE
        answer = client.do("create2 a", 7)
        assert (answer.code, answer.first) == (INVALID_DEVICE, UNTOUCHED)
        assert client.close() == ""


def test_gpus_are_not_counted_past_one_without_a_name(place, fail):
    """Else 1=… would mean another GPU."""
    place.fakectl("fail", "nvmlInit_v2", UNKNOWN, 1)
    for call in UUID_CALLS:
        fail(call, UNKNOWN, 1)
    with place.client("1=2GiB") as client:
        assert client.do("init").code != SUCCESS
        assert "neither NVML nor the CUDA driver lists a GPU" in client.close()


# --- a driver of before CUDA 9.2 ----------------------------------------------------------------------------------


@pytest.fixture
def old_driver(tmp_path: Path) -> Path:
    """A directory with the simulated driver, without the functions that tell UUIDs and without NVML."""
    directory = tmp_path / "old"
    directory.mkdir()
    code = (library_directory() / "libcuda.so.1").read_bytes()
    for call in UUID_CALLS:
        name = b"\0" + call.encode() + b"\0"
        assert code.count(name) >= 1
        code = code.replace(name, name.replace(b"GetUuid", b"GetNone"))
    (directory / "libcuda.so.1").write_bytes(code)
    return directory


def made_by_a_newer_one(place: Place, limit: str) -> None:
    with place.client(limit) as client:
        assert client.do("init").code == SUCCESS


@pytest.mark.parametrize(("limit", "visible"), [("0=1GiB", "0"), ("1=1GiB", "1")])
def test_the_only_device_of_an_old_driver_is_the_only_gpu_of_the_page(place, old_driver, limit, visible):
    made_by_a_newer_one(place, limit)
    env = {"LD_LIBRARY_PATH": str(old_driver), "CUDA_VISIBLE_DEVICES": visible, "VCUDA_DIR": str(place.quota)}
    with place.client(**env) as client:
        client.ready()
        assert client.do("total a", 0).first == GIB
        assert client.do("alloc a", GIB + 1).code == OUT_OF_MEMORY
        assert client.close() == ""


@pytest.mark.parametrize(("limit", "visible"), [("0=1GiB", "0,1"), ("0=1GiB,1=1GiB", "0"), ("1GiB", "0,1")])
def test_among_several_an_old_drivers_device_has_no_memory(place, old_driver, limit, visible):
    made_by_a_newer_one(place, limit)
    env = {"LD_LIBRARY_PATH": str(old_driver), "CUDA_VISIBLE_DEVICES": visible, "VCUDA_DIR": str(place.quota)}
    with place.client(**env) as client:
        assert "which GPU device 0 is" in refused(client)


def test_an_old_driver_with_nvml_needs_no_guess(place, old_driver):
    made_by_a_newer_one(place, "0=1GiB,1=2GiB")
    shutil.copy(library_directory() / "libnvidia-ml.so.1", old_driver)
    with place.client(LD_LIBRARY_PATH=str(old_driver), VCUDA_DIR=str(place.quota)) as client:
        client.ready(1)
        assert client.do("total a", 1).first == 2 * GIB
        assert client.close() == ""


# --- whose context it is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["alloc a", "managed a", "pitch a"])
def test_an_allocation_in_an_unknown_context_is_refused(place, fail, command):
    with place.client("1GiB") as client:
        before = client.ready().free()
        fail("cuCtxGetCurrent", UNKNOWN, 1)
        answer = client.do(command, MIB, 3)
        assert (answer.code, answer.first) == (UNKNOWN, UNTOUCHED)
        assert client.free() == before
        assert client.do(command, MIB, 3).code == SUCCESS


def test_without_a_context_the_code_is_the_drivers(place):
    codes = {}
    for name, env in (("plain", place.plain_env()), ("limited", place.env("1GiB"))):
        with Client(env) as client:
            codes[name] = [client.do(c, MIB, 3).code for c in ("alloc a", "managed a", "pitch a")]
            client.do("init")
            codes[name] += [client.do(c, MIB, 3).code for c in ("alloc a", "managed a", "pitch a")]
    assert codes["limited"] == codes["plain"]
    assert codes["plain"][3:] == [INVALID_CONTEXT] * 3


ARRAY = (
    'type("D", (ctypes.Structure,), {"_fields_": '
    '[("w", c_size_t), ("h", c_size_t), ("f", c_uint), ("n", c_uint)]})'
)


@pytest.mark.parametrize(
    "call",
    [
        f"cuArrayCreate_v2(ref(made), ref({ARRAY}(1024, 1024, 1, 4)))",
        "cuCtxSetLimit(2, c_size_t(512 << 20))",  # the heap of the device's malloc
    ],
)
def test_so_is_everything_else_that_is_charged_to_the_context(place, fail, call):
    with Program(place.env("1GiB")) as program:
        before = program.ready().free()
        program.do("keep(made=Handle())")
        fail("cuCtxGetCurrent", UNKNOWN, 1)
        assert program.do(call) == UNKNOWN
        assert program.free() == before
        assert program.do(call) == SUCCESS
        assert program.free() < before


# --- whose pool it is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failing", "stream"),
    [
        ("cuCtxGetDevice", "None"),
        ("cuStreamGetDevice", "made"),
        ("cuDeviceGetMemPool", "None"),
        ("cuDeviceGetDefaultMemPool", "None"),
        ("cuDeviceGetDefaultMemPool", "made"),
    ],
)
def test_a_stream_without_a_known_pool_gives_nothing(place, fail, failing, stream):
    with Program(place.env("1GiB")) as program:
        program.ready()
        program.do("keep(made=Handle(), block=c_ulonglong(0x5555))")
        assert program.do("cuStreamCreate(ref(made), 0)") == SUCCESS
        before = program.free()
        fail(failing, UNKNOWN, 1)
        assert program.do(f"cuMemAllocAsync(ref(block), c_size_t({2 * GIB}), {stream})") in (
            UNKNOWN,
            OUT_OF_MEMORY,
        )
        assert program.do("block.value") == UNTOUCHED
        assert program.free() == before
        assert program.do(f"cuMemAllocAsync(ref(block), c_size_t({MIB}), {stream})") == SUCCESS
        assert program.free() < before


def test_more_pools_than_can_be_counted_are_no_way_around(place, fail):
    """A pool of the driver's own, met when every place is taken."""
    with Program(place.env("1GiB")) as program:
        program.ready()
        program.do("keep(block=c_ulonglong(0x5555), pool=Handle(), found=Handle())")
        program.do("keep(props=(ctypes.c_byte * 88)())")
        program.do("keep(p=ctypes.cast(props, ctypes.POINTER(c_int)))")
        program.do("[p.__setitem__(i, v) for i, v in ((0, 1), (2, 1), (3, 0))]")
        made = program.do("next(n for n in range(5000) if cuMemPoolCreate(ref(pool), ref(props)) != 0)")
        assert 4000 < made < 5000
        assert program.do("cuDeviceGetDefaultMemPool(ref(found), 1)") == SUCCESS
        assert (
            program.do(f"cuMemAllocFromPoolAsync(ref(block), c_size_t({2 * GIB}), found, None)")
            == OUT_OF_MEMORY
        )
        assert program.do("block.value") == UNTOUCHED


# --- other places -------------------------------------------------------------------------------------------------


def test_a_kind_of_place_that_came_later_has_no_memory(place):
    with Program(place.env("1GiB")) as program:
        program.ready()
        program.do("keep(handle=c_ulonglong(0x5555), prop=(ctypes.c_byte * 64)())")
        program.do("keep(p=ctypes.cast(prop, ctypes.POINTER(c_int)))")
        program.do("[p.__setitem__(i, v) for i, v in ((0, 1), (2, 77), (3, 0))]")
        assert (
            program.do("cuMemCreate(ref(handle), c_size_t(2 << 20), ref(prop), c_ulonglong(0))")
            == OUT_OF_MEMORY
        )
        assert program.do("handle.value") == UNTOUCHED
        errors = program.close()
    assert errors.count("\n") == 1
    assert "kind of place" in errors


def test_a_device_that_the_driver_denies_makes_no_memory(place, fail):
    with Program(place.env("1GiB")) as program:
        program.do("cuInit(0)")
        program.do("keep(handle=c_ulonglong(0x5555), prop=(ctypes.c_byte * 64)())")
        program.do("keep(p=ctypes.cast(prop, ctypes.POINTER(c_int)))")
        program.do("[p.__setitem__(i, v) for i, v in ((0, 1), (2, 1), (3, 0))]")
        for call in (*UUID_CALLS, "cuDeviceGetAttribute"):
            fail(call, INVALID_DEVICE)
        for _ in range(2):
            assert (
                program.do("cuMemCreate(ref(handle), c_size_t(2 << 20), ref(prop), c_ulonglong(0))")
                == INVALID_DEVICE
            )
        assert program.do("handle.value") == UNTOUCHED
        assert program.do("keep(made=Handle()) or cuCtxCreate_v2(ref(made), 0, 0)") == INVALID_DEVICE


# --- graphs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", ["cuGraphGetNodes", "cuGraphNodeGetType", "cuGraphMemAllocNodeGetParams"])
def test_a_graph_that_cannot_be_read_is_not_launched(place, fail, failing):
    peer = Peer(place.env("1GiB", PYTHONPATH=str(ROOT)))
    try:
        peer("context(0)")
        graph = peer("handles('cuGraphCreate', 0)")
        peer(f"graph_alloc({graph}, {2 * GIB}, 0)")
        fail(failing, UNKNOWN, 1)
        handle = peer(f"instantiate({graph}, 0)")
        assert handle > 0
        assert peer(f"launch_graph({handle}, 0)") == OUT_OF_MEMORY
        done = subprocess.run(
            [ROOT / "build/fakedriver/fakectl", "state"],
            env=place.plain_env(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert str(2 * GIB) not in done.stdout
    finally:
        peer.kill()
