# SPDX-License-Identifier: Apache-2.0
"""Where limits come from, and what happens when they cannot be used: one clear line and no CUDA, never no limit."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.native.running import (
    CLIENTS,
    CONTEXT,
    GIB,
    MIB,
    NOT_READY,
    OUT_OF_MEMORY,
    SUCCESS,
    Client,
    Place,
    rooted_library,
    run,
)
from vcuda import GpuLimit, create_ledger, create_limits, read_ledger, read_limits, set_memory_limit

NVML_NOT_READY = 27
PHYSICAL = 24 * GIB
ID = bytes(range(16))


@pytest.fixture
def container(tmp_path):
    """A place as a container is: the mounted directory, empty at first."""
    with rooted_library() as (library, directory):
        yield Place(tmp_path, library=library), directory


def uuids(place: Place) -> list[str]:
    program = (
        "import pynvml as n; n.nvmlInit();"
        "print(*[n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())])"
    )
    return run((sys.executable, "-c", program), place.plain_env()).stdout.split()


def mount(place: Place, directory, *limits: int, ident: bytes = ID, ledger: bytes = ID) -> list[str]:
    found = uuids(place)
    gpus = [GpuLimit(uuid, limit) for uuid, limit in zip(found, limits, strict=False)]
    create_limits(directory / "limits", ident, gpus)
    create_ledger(directory / "ledger", ledger, gpus)
    return found


def refusal(client: Client) -> str:
    """Everything is refused, twice, with one line on stderr, which is returned."""
    with client:
        for _ in range(2):
            assert client.do("init").code == NOT_READY
            assert client.do("alloc a", MIB).code == NOT_READY
            assert client.do("managed a", MIB).code == NOT_READY
            assert client.do("info").code == NOT_READY
            assert client.do("total a", 0).code == NOT_READY
            assert client.do("create2 a", 0).code == NOT_READY
            assert client.do("retain a", 0).code == NOT_READY
        errors = client.close()
    assert errors.count("\n") == 1, errors
    assert errors.startswith("vcuda: ")
    return errors


# --- nothing configured ------------------------------------------------------------------------------------------


def test_nothing_configured_is_inert(place):
    with place.client(mode="linked") as client:
        client.ready()
        assert client.do("total a", 0).first == PHYSICAL
        assert client.do("alloc a", 20 * GIB).code == SUCCESS
        assert client.close() == ""


def test_nothing_configured_hands_out_the_drivers_own_pointers(place, python):
    program = (
        "import ctypes\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "address = ctypes.cast(cuda.cuMemAlloc_v2, ctypes.c_void_p).value\n"
        "for line in open('/proc/self/maps'):\n"
        "    begin, end = (int(part, 16) for part in line.split()[0].split('-'))\n"
        "    if begin <= address < end: print(line.split()[-1])\n"
    )
    assert place.run(python, "-c", program).stdout.strip().endswith("libcuda.so.1")
    assert place.run(python, "-c", program, limit="1GiB").stdout.strip().endswith("libvcuda.so")


# --- a container -------------------------------------------------------------------------------------------------


def test_the_mounted_page_rules(container):
    place, directory = container
    mount(place, directory, GIB, 2 * GIB)
    with place.client(mode="linked") as client:
        client.ready()
        assert client.free() == GIB - CONTEXT
        assert client.do("total a", 1).first == 2 * GIB
        assert client.close() == ""


@pytest.mark.parametrize("missing", [("limits",), ("ledger",), ("limits", "ledger")])
def test_a_directory_where_a_file_should_be_is_no_absence_of_limits(container, missing):
    """What a runtime makes of the source of a mount that is not there."""
    place, directory = container
    mount(place, directory, GIB, GIB)
    for name in missing:
        (directory / name).unlink()
        (directory / name).mkdir()
    assert refusal(place.client("20GiB")).startswith("vcuda: ")


def test_a_container_with_the_pages_of_two_claims_is_refused(container):
    """What the runtime mounted last is at the page's own path; under the allocations' names there are both."""
    place, directory = container
    mount(place, directory, GIB, GIB)
    page = (directory / "limits").read_bytes()
    pages = directory / "allocations"
    pages.mkdir()
    (pages / "0123").write_bytes(page)
    (pages / "of-an-image-made-of-a-container").touch()
    (pages / "directory").mkdir()
    with place.client() as client:
        client.ready()
        assert client.do("total a", 0).first == GIB
    (pages / "4567").write_bytes(page)
    errors = refusal(place.client("20GiB"))
    assert "by two claims" in errors and "put the requests into one claim" in errors


def test_the_mounted_page_cannot_be_loosened_by_the_environment(container):
    place, directory = container
    mount(place, directory, GIB, GIB)
    with place.client("20GiB") as client:
        client.ready()
        assert client.do("total a", 0).first == GIB
    assert not place.quota.exists()


def test_a_limit_changed_live_is_seen_by_running_programs(container):
    place, directory = container
    first, _ = mount(place, directory, GIB, GIB)
    with place.client() as client:
        client.ready()
        assert client.do("alloc a", 500 * MIB).code == SUCCESS
        set_memory_limit(directory / "limits", first, 2 * GIB)
        assert client.do("total a", 0).first == 2 * GIB
        assert client.do("alloc b", 1200 * MIB).code == SUCCESS
        set_memory_limit(directory / "limits", first, 300 * MIB)
        answer = client.do("info")
        assert (answer.first, answer.second) == (0, 300 * MIB), "never less than nothing"
        assert client.do("alloc c", 1).code == OUT_OF_MEMORY


@pytest.mark.parametrize("mode", ["linked", "dlsym", "proc2"])
def test_a_page_of_garbage_refuses(container, mode):
    place, directory = container
    mount(place, directory, GIB, GIB)
    (directory / "limits").write_bytes(os.urandom(4096))
    assert "damaged" in refusal(place.client(mode=mode))


def test_every_kind_of_broken_page(container):
    place, directory = container
    mount(place, directory, GIB, GIB)
    page = (directory / "limits").read_bytes()
    broken = {
        "empty": b"",
        "short": page[:100],
        "cut": page[:-1],
        "long": page + b"\0" * 4096,
        "flipped": page[:70] + bytes([page[70] ^ 4]) + page[71:],
    }
    for name, content in broken.items():
        (directory / "limits").write_bytes(content)
        line = refusal(place.client())
        assert "limits page" in line and str(directory / "limits") in line, name


def test_a_page_of_a_later_version(container):
    place, directory = container
    mount(place, directory, GIB, GIB)
    page = bytearray((directory / "limits").read_bytes())
    page[8:12] = struct.pack("<I", 99)
    (directory / "limits").write_bytes(page)
    assert "version that this library does not know" in refusal(place.client())


def test_a_page_that_is_a_directory(container):
    place, directory = container
    (directory / "limits").mkdir()
    assert "limits page" in refusal(place.client())


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\0" * 400_000], ids=["empty", "short", "zeros"])
def test_broken_ledgers(container, content):
    place, directory = container
    mount(place, directory, GIB, GIB)
    (directory / "ledger").write_bytes(content)
    line = refusal(place.client())
    assert "ledger" in line and "damaged" in line


def test_a_missing_ledger(container):
    place, directory = container
    mount(place, directory, GIB, GIB)
    (directory / "ledger").unlink()
    assert str(directory / "ledger") in refusal(place.client())
    assert not (directory / "ledger").exists(), "no process makes up a container's ledger"


def test_a_ledger_of_another_allocation(container):
    place, directory = container
    mount(place, directory, GIB, GIB, ledger=bytes(16))
    assert "does not belong" in refusal(place.client())


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="needs setpriv to drop root"
)
def test_files_without_permission(container):
    place, directory = container
    mount(place, directory, GIB, GIB)
    (directory / "limits").chmod(0)
    drop = ["setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all"] if os.geteuid() == 0 else []
    for path in [directory, *directory.parents][:-1]:
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode | 0o055)
    env = place.env() | {"FAKEDRIVER_STATE": "/nonexistent"}
    done = subprocess.run(
        [*drop, str(CLIENTS / "client"), "dlsym"],
        env=env,
        input="init\ninit\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if (
        "setpriv" in done.stderr
        or "error while loading" in done.stderr
        or "cannot open shared" in done.stderr
    ):
        pytest.skip(f"another user cannot read the build: {done.stderr.splitlines()[0]}")
    assert done.stdout.splitlines() == [f"{NOT_READY} 0 0"] * 2
    assert "permission denied" in done.stderr
    assert done.stderr.count("\n") == 1


def test_frees_still_reach_the_driver_when_limits_are_broken(container):
    place, directory = container
    (directory / "limits").write_bytes(b"")
    with place.client() as client:
        assert client.do("freeaddress a", 0x1234500).code != NOT_READY


def test_nvml_refuses_too(container, python):
    place, directory = container
    (directory / "limits").write_bytes(b"")
    program = (
        "import ctypes as c\n"
        "nvml = c.CDLL('libnvidia-ml.so.1')\n"
        "device, memory, count = c.c_void_p(), (c.c_ulonglong * 8)(), c.c_uint(0)\n"
        "print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, c.byref(device)))\n"
        "print(nvml.nvmlDeviceGetMemoryInfo(device, memory))\n"
        "print(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, c.byref(count), None))\n"
    )
    done = place.run(python, "-c", program)
    assert done.stdout.splitlines() == ["0 0", str(NVML_NOT_READY), str(NVML_NOT_READY)]
    assert done.stderr.count("\n") == 1


# --- a directory of one's own ------------------------------------------------------------------------------------


def test_the_directory_is_created_once_and_joined(place):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(place.client("1GiB")) for _ in range(8)]
        for client in clients:
            client.tell("init")
        assert {client.hear().code for client in clients} == {SUCCESS}
        page = read_limits(place.quota / "limits")
        ledger = read_ledger(place.quota / "ledger")
        assert page.allocation_id == ledger.allocation_id
        assert [gpu.memory_bytes for gpu in page.gpus] == [GIB, GIB]
        assert sorted(path.name for path in place.quota.iterdir()) == ["ledger", "limits"]
        clients[0].do("retain z", 0)
        clients[0].do("current z")
        clients[1].do("retain z", 0)
        clients[1].do("current z")
        assert clients[0].free() == GIB - 2 * CONTEXT


def test_a_creator_killed_half_way_is_finished_by_the_next(place):
    with place.client("1GiB") as client:
        client.ready()
    (place.quota / "ledger").unlink()
    with place.client("1GiB") as client:
        client.ready()
        assert client.free() == GIB - CONTEXT


def test_a_page_made_by_others_is_used(place):
    place.quota.mkdir()
    mount(place, place.quota, 3 * GIB, 4 * GIB)
    env = place.env() | {"VCUDA_DIR": str(place.quota)}
    with Client(env) as client:
        client.ready()
        assert client.do("total a", 0).first == 3 * GIB


@pytest.mark.parametrize(
    ("limit", "cause"),
    [
        ("", "is empty"),
        ("lots", "is not a size"),
        ("-1GiB", "is not a size"),
        ("0", "is not a size"),
        ("8GB", "is not a size"),
        ("8 GiB", "is not a size"),
        ("9999999999TiB", "is not a size"),
        ("200TiB", "is not a size"),
        ("1GiB,2GiB", "names no GPU"),
        ("0=1GiB,0=2GiB", "is named twice"),
        ("0=1GiB,", "names no GPU"),
        ("x=1GiB", "is neither a GPU's UUID nor its index"),
        ("=1GiB", "is neither a GPU's UUID nor its index"),
        ("GPU-1234=1GiB", "is neither a GPU's UUID nor its index"),
        ("0=", "is not a size"),
        ("7=1GiB", "names GPU 7, but this machine has 2"),
        ("GPU-00000000-0000-0000-0000-000000000000=1GiB", "which this machine does not have"),
    ],
)
def test_limits_that_make_no_sense(place, limit, cause):
    line = refusal(place.client(limit))
    assert "VCUDA_MEMORY_LIMIT" in line
    assert cause in line
    assert not (place.quota / "limits").exists()


@pytest.mark.parametrize(
    ("variable", "value", "cause"),
    [
        ("VCUDA_CORES", "30", "VCUDA_CORES is set without VCUDA_MEMORY_LIMIT"),
        ("VCUDA_CORES", "lots", "VCUDA_CORES is set without VCUDA_MEMORY_LIMIT"),
        ("VCUDA_CORES", "", "VCUDA_CORES is set without VCUDA_MEMORY_LIMIT"),
        ("VCUDA_PHYSICAL_LIMIT", "1GiB", "VCUDA_PHYSICAL_LIMIT is set without VCUDA_MEMORY_LIMIT"),
        ("VCUDA_MEMORY", "1GiB", "VCUDA_MEMORY is no variable of this library"),
        ("VCUDA_MEMORY_LIMITS", "1GiB", "VCUDA_MEMORY_LIMITS is no variable of this library"),
    ],
)
@pytest.mark.parametrize("directory", [False, True])
def test_a_variable_that_limits_nothing_by_itself(place, variable, value, cause, directory):
    env = place.env() | {variable: value}
    if directory:
        place.quota.mkdir()
        mount(place, place.quota, GIB, GIB)
        env["VCUDA_DIR"] = str(place.quota)
    assert cause in refusal(Client(env))


@pytest.mark.parametrize("cores", ["", "0", "101", "-1", "lots", "30%", "0=", "0=30,0=40", "5=30", "30,40"])
def test_shares_of_time_that_make_no_sense(place, cores):
    line = refusal(place.client("1GiB", VCUDA_CORES=cores))
    assert "VCUDA_CORES" in line
    assert not (place.quota / "limits").exists()


def test_what_kubernetes_says_of_a_service_called_vcuda_is_no_limit(place):
    with place.client(VCUDA_SERVICE_HOST="10.0.0.1", VCUDA_PORT_80_TCP="tcp://10.0.0.1:80") as client:
        client.ready()
        assert client.do("total a", 0).first == PHYSICAL
        assert client.close() == ""


FORGETFUL = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
init = cuda.cuInit
unset = ctypes.CDLL(None).clearenv
unset()
print(init(0))
"""


def test_an_environment_that_was_cleared_since_is_not_no_limit(place, python):
    done = place.run(python, "-c", FORGETFUL, limit="1GiB")
    assert done.stdout.split() == [str(NOT_READY)]
    assert done.stderr.count("\n") == 1
    assert "gone from its environment" in done.stderr


def test_one_gpu_named_in_two_ways(place):
    first = uuids(place)[0]
    assert "one GPU twice" in refusal(place.client(f"0=1GiB,{first}=1GiB"))


def test_limits_by_uuid(place):
    first, second = uuids(place)
    with place.client(f"{second}=2GiB,{first}=1GiB") as client:
        client.ready()
        assert (client.do("total a", 0).first, client.do("total a", 1).first) == (GIB, 2 * GIB)


def test_a_variable_that_disagrees_with_the_page(place):
    with place.client("1GiB") as client:
        client.ready()
    line = refusal(place.client("2GiB"))
    assert re.search(r"gives GPU-[0-9a-f-]{36} 2GiB, but \S+/limits gives it 1GiB; ", line)
    assert "unset VCUDA_MEMORY_LIMIT" in line
    assert "set VCUDA_DIR to another directory, or remove this one" in line
    assert str(place.quota) in line
    for agreeing in ("1024MiB", "0=1GiB,1=1GiB"):
        with place.client(agreeing) as client:
            client.ready()
    assert "gives" in refusal(place.client("0=1GiB"))


def test_a_limit_changed_live_outlives_the_variable(place):
    with place.client("1GiB") as client:
        client.ready()
    for uuid in uuids(place):
        set_memory_limit(place.quota / "limits", uuid, 2 * GIB)
    with place.client("1GiB") as client:
        client.ready()
        assert client.do("total a", 0).first == 2 * GIB


def test_a_directory_without_limits(place):
    env = place.env() | {"VCUDA_DIR": str(place.quota)}
    line = refusal(Client(env))
    assert "set VCUDA_MEMORY_LIMIT too" in line


def test_a_directory_that_is_no_absolute_path(place):
    env = place.env() | {"VCUDA_DIR": "here", "VCUDA_MEMORY_LIMIT": "1GiB"}
    assert "absolute path" in refusal(Client(env))


def test_a_directory_that_cannot_be_made(place, tmp_path):
    (tmp_path / "file").write_text("")
    env = place.env() | {"VCUDA_DIR": str(tmp_path / "file" / "quota"), "VCUDA_MEMORY_LIMIT": "1GiB"}
    assert "set VCUDA_DIR to a directory of yours" in refusal(Client(env))


def test_a_path_that_is_too_long(place, tmp_path):
    env = place.env() | {"VCUDA_DIR": str(tmp_path / ("x" * 300)), "VCUDA_MEMORY_LIMIT": "1GiB"}
    assert "too long" in refusal(Client(env))


def test_without_nvml_the_drivers_devices_count(place, tmp_path):
    only_cuda = tmp_path / "lib"
    only_cuda.mkdir()
    (only_cuda / "libcuda.so.1").symlink_to(CLIENTS.parents[1] / "fakedriver" / "libcuda.so.1")
    env = place.env("0=1GiB,1=2GiB") | {"LD_LIBRARY_PATH": str(only_cuda)}
    with Client(env) as client:
        client.ready()
        assert client.do("total a", 1).first == 2 * GIB
        assert client.free() == GIB, "a context that nothing can measure is not charged"
        assert client.close() == ""


@pytest.mark.parametrize(
    ("level", "lines"), [("none", 0), ("error", 0), ("info", 1), ("debug", 1), ("loud", 1)]
)
def test_log_levels(place, level, lines):
    with place.client("1GiB", VCUDA_LOG=level) as client:
        client.ready()
        assert client.close().count("\n") == lines


def test_errors_can_be_silenced(place):
    with place.client("nonsense", VCUDA_LOG="none") as client:
        assert client.do("init").code == NOT_READY
        assert client.close() == ""


def test_programs_that_close_every_descriptor_keep_their_quota(place, python):
    program = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
context, block, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(500 << 20)) == 0
os.closerange(3, 65536)
assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(500 << 20)) == 2
assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(100 << 20)) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(free.value)
"""
    done = place.run(python, "-c", program, limit="1GiB")
    assert done.stdout.split() == [str(GIB - CONTEXT - 600 * MIB)], done.stderr


def test_standard_streams_may_be_closed(place):
    command = ("sh", "-c", f"exec 0<&- 1>&- 2>&-; {CLIENTS / 'client'} dlsym")
    assert place.run(*command, limit="nonsense").returncode == 0


def looked_then(place: Place, change: Callable[[], None]) -> list[str]:
    """What a program answers that looks its functions up, lets CHANGE happen, and makes its first calls then: four
    results and the size of the GPU."""
    code = (
        "import ctypes; d = ctypes.CDLL('libcuda.so.1'); init = d.cuInit; print('looked', flush=True); input();"
        "c = ctypes.c_void_p(); n = ctypes.c_size_t(); a = ctypes.c_size_t();"
        "r = [init(0), d.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0), d.cuCtxSetCurrent(c),"
        " d.cuMemGetInfo_v2(ctypes.byref(a), ctypes.byref(n))]; print(*r, n.value)"
    )
    program = subprocess.Popen(
        (sys.executable, "-c", code),
        env=place.env() | {"VCUDA_DIR": str(place.quota)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == "looked\n"
        change()
        return program.communicate("\n", timeout=30)[0].split()


def test_the_page_that_was_read_first_is_the_one_attached(place):
    """It is opened once: when it has lost its name since, it is still there."""
    place.quota.mkdir()
    mount(place, place.quota, 2 * GIB, 2 * GIB)
    assert looked_then(place, (place.quota / "limits").unlink) == ["0", "0", "0", "0", str(2 * GIB)]


def test_a_directory_made_anew_after_the_first_lookup_counts(place):
    place.quota.mkdir()
    mount(place, place.quota, 2 * GIB, 2 * GIB)

    def make_anew() -> None:
        shutil.rmtree(place.quota)
        place.quota.mkdir()
        mount(place, place.quota, 3 * GIB, 3 * GIB, ident=bytes(16), ledger=bytes(16))

    assert looked_then(place, make_anew) == ["0", "0", "0", "0", str(3 * GIB)]


def test_a_handler_that_comes_in_the_midst_of_the_first_call_is_limited(place, python):
    """It would look like the driver, which comes back in when it is asked about its GPUs."""
    program = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None)
context, block, codes = ctypes.c_void_p(), ctypes.c_uint64(), []
init, retain, current, alloc = cuda.cuInit, cuda.cuDevicePrimaryCtxRetain, cuda.cuCtxSetCurrent, cuda.cuMemAlloc_v2
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def handle(number):
    codes.extend((init(0), retain(ctypes.byref(context), 0), current(context)))
    codes.append(alloc(ctypes.byref(block), ctypes.c_size_t(8 << 30)))
libc.signal(14, handle)
libc.ualarm(100000, 0)
assert init(0) == 0
while not codes: pass
print(*codes)
"""
    env = place.env("1GiB") | {"FAKEDRIVER_LATENCY": "nvmlInit_v2=500ms"}
    done = run((python, "-c", program), env)
    assert done.stdout.split() == ["0", "0", "0", str(OUT_OF_MEMORY)], done.stderr
