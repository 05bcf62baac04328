# SPDX-License-Identifier: Apache-2.0
"""What NVML clients see: the limit as the GPU's size, the container's own processes, and the same numbers as CUDA."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.running import CLIENTS, CONTEXT, GIB, MIB, ROOT, Place
from tests.unit.fakedriver.conftest import Peer

SNAPSHOT = """
import json, pynvml as n
n.nvmlInit()
result = []
for i in range(n.nvmlDeviceGetCount()):
    device = n.nvmlDeviceGetHandleByIndex(i)
    one, two = n.nvmlDeviceGetMemoryInfo(device), n.nvmlDeviceGetMemoryInfo(device, version=n.nvmlMemory_v2)
    lists = {}
    for kind in ("Compute", "Graphics", "MPSCompute"):
        for suffix in ("", "_v2", "_v3"):
            function = getattr(n, f"nvmlDeviceGet{kind}RunningProcesses{suffix}", None)
            if function is not None:
                lists[kind + suffix] = [(p.pid, p.usedGpuMemory) for p in function(device)]
    result.append({
        "one": [one.total, one.used, one.free],
        "two": [two.total, two.used, two.free, two.reserved],
        "lists": lists,
        "names": [n.nvmlSystemGetProcessName(pid) for pid, _ in lists["Compute"]],
    })
print(json.dumps(result))
"""


def snapshot(place: Place, limit: str, python: str) -> list[dict]:
    done = place.run(python, "-c", SNAPSHOT, limit=limit)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_the_gpu_is_as_large_as_the_limit(place, python):
    for gpu, limit in zip(snapshot(place, "0=1GiB,1=3GiB", python), (GIB, 3 * GIB), strict=True):
        assert gpu["one"] == [limit, 0, limit]
        assert gpu["two"] == [limit, 0, limit, 0]
        assert all(entries == [] for entries in gpu["lists"].values())


def test_cuda_and_nvml_agree(place, python):
    with place.client("1GiB") as first, place.client("1GiB") as second:
        first.ready()
        second.ready(1)
        first.do("alloc a", 123 * MIB)
        second.do("alloc a", 77)
        for index, client in enumerate((first, second)):
            gpu = snapshot(place, "1GiB", python)[index]
            answer = client.do("info")
            assert gpu["one"][2] == gpu["two"][2] == answer.first
            assert gpu["one"][0] == gpu["two"][0] == answer.second == client.do("total a", index).first
            assert gpu["one"][1] == gpu["two"][1] == answer.second - answer.first


def test_process_lists_show_own_processes_with_their_pids(place, python):
    with place.client("1GiB") as first, place.client("1GiB") as second, place.client() as stranger:
        first.ready()
        second.ready()
        stranger.ready()
        first.do("alloc a", 123 * MIB)
        gpu = snapshot(place, "1GiB", python)[0]
    expected = {(first.process.pid, CONTEXT + 123 * MIB), (second.process.pid, CONTEXT)}
    for name, entries in gpu["lists"].items():
        found = {tuple(entry) for entry in entries}
        assert found == (expected if name.startswith("Compute") else set()), name
    assert len(gpu["names"]) == 2
    assert all(name.endswith("/client") for name in gpu["names"])
    assert sum(used for _, used in gpu["lists"]["Compute"]) == gpu["one"][1]


def test_dead_processes_leave_the_list(place, python):
    client = place.client("1GiB").ready()
    assert len(snapshot(place, "1GiB", python)[0]["lists"]["Compute"]) == 1
    client.kill()
    gpu = snapshot(place, "1GiB", python)[0]
    assert gpu["lists"]["Compute"] == []
    assert gpu["one"][1] == 0


PROTOCOL = """
import ctypes as c
nvml = c.CDLL("libnvidia-ml.so.1")
device, count = c.c_void_p(), c.c_uint(0)
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, c.byref(device)) == 0
many = (c.c_ulonglong * 96)()
one, three = nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetComputeRunningProcesses_v3
print(three(device, c.byref(count), None), count.value)
count.value = 1
print(three(device, c.byref(count), many), count.value)
count.value = 32
print(three(device, c.byref(count), many), count.value, many[0] & 0xffffffff, many[1], hex(many[2]))
count.value = 32
print(one(device, c.byref(count), many), count.value, many[2] & 0xffffffff, many[3])
print(three(device, None, many), three(None, c.byref(count), many))
count.value = 5
print(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(device, c.byref(count), many), count.value)
memory = (c.c_ulonglong * 5)()
memory[0] = 0x02000028
print(nvml.nvmlDeviceGetMemoryInfo_v2(device, memory), memory[1])
memory[0] = 0x01000028
print(nvml.nvmlDeviceGetMemoryInfo_v2(device, memory))
print(nvml.nvmlDeviceGetMemoryInfo(device, None), nvml.nvmlDeviceGetMemoryInfo(None, memory))
name = c.create_string_buffer(8)
print(nvml.nvmlSystemGetProcessName(4194300, name, 8), nvml.nvmlSystemGetProcessName(1, None, 0))
nvml.nvmlShutdown()
print(nvml.nvmlDeviceGetMemoryInfo(device, memory), three(device, c.byref(count), many))
"""


def test_the_size_protocol_and_bad_arguments(place, python):
    with place.client("1GiB") as first, place.client("1GiB") as second:
        first.ready()
        second.ready()
        done = place.run(python, "-c", PROTOCOL, limit="1GiB")
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert lines[:2] == ["7 2", "7 2"], "NVML_ERROR_INSUFFICIENT_SIZE with the number that there is"
    pids = {first.process.pid, second.process.pid}
    result, count, pid, used, instances = lines[2].split()
    assert (result, count, used, instances) == ("0", "2", str(CONTEXT), "0xffffffffffffffff")
    result, count, other, used = lines[3].split()
    assert (result, count, used) == ("0", "2", str(CONTEXT))
    assert {int(pid), int(other)} == pids
    assert lines[4:] == ["2 2", "0 0", f"0 {GIB}", "25", "2 2", "6 2", "1 1"]


PRIVATE = """
import ctypes as c, json
nvml = c.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
device = c.c_void_p()
nvml.nvmlDeviceGetHandleByIndex_v2(0, c.byref(device))
table = c.POINTER(c.c_uint64)()
known = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
assert nvml.nvmlInternalGetExportTable(c.byref(table), known) == 0
size = table[0]
kind = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_uint), c.c_void_p)
rows = []
for slot in (213, 214, 215):
    count, infos = c.c_uint(250), c.create_string_buffer(4128 * 250)
    result = kind(table[slot])(device, c.byref(count), infos)
    number = lambda at, size: int.from_bytes(infos.raw[at:at + size], "little")
    rows.append([result] + [(number(i * 4128, 4), number(i * 4128 + 8, 8)) for i in range(count.value)])
other = c.c_void_p()
print(json.dumps([size, rows, nvml.nvmlInternalGetExportTable(c.byref(other), b"x" * 16)]))
"""


def test_the_private_table_shows_own_processes(place, python):
    with place.client("1GiB") as own, place.client() as stranger:
        own.ready()
        stranger.ready()
        done = place.run(python, "-c", PRIVATE, limit="1GiB")
        plain = subprocess.run(
            [python, "-c", PRIVATE], env=place.plain_env(), capture_output=True, text=True, check=True
        )
    size, rows, unknown = json.loads(done.stdout)
    plain_size, plain_rows, plain_unknown = json.loads(plain.stdout)
    assert (size, unknown) == (plain_size, plain_unknown)
    assert rows == [[0, [own.process.pid, CONTEXT]], [0], [0]]
    assert len(plain_rows[0]) == 3, "without the library both are seen"


UTILIZATION = """
import json
import pynvml as n
n.nvmlInit()
device = n.nvmlDeviceGetHandleByIndex(0)
def pids(ask):
    try:
        return sorted(sample.pid for sample in ask(device, 0))
    except n.NVMLError_NotFound:
        return []
print(json.dumps([pids(n.nvmlDeviceGetProcessUtilization), pids(n.nvmlDeviceGetProcessesUtilizationInfo)]))
"""


@contextlib.contextmanager
def at_work(env: dict[str, str]) -> Iterator[Peer]:
    """A program that has run a kernel."""
    peer = Peer(env | {"PYTHONPATH": str(ROOT)})
    try:
        peer("context(0)")
        peer("launch(function('work_10ms'))")
        yield peer
    finally:
        peer.kill()


def test_utilization_samples_of_strangers_are_hidden(place, python):
    def asked(env: dict[str, str]) -> list[list[int]]:
        done = subprocess.run(
            [python, "-c", UTILIZATION], env=env, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    with at_work(place.plain_env()) as stranger:
        assert asked(place.plain_env()) == [[stranger.pid]] * 2
        assert asked(place.env("1GiB")) == [[], []], "no process of this container"
        with at_work(place.env("1GiB")) as own:
            shown = [own.pid] if pids_are_the_machines() else []
            assert asked(place.env("1GiB")) == [shown] * 2
            assert asked(place.plain_env()) == [sorted([own.pid, stranger.pid])] * 2


def test_well_known_client_runs_unchanged(place, python):
    with place.client("1GiB") as client:
        client.ready()
        client.do("alloc a", 100 * MIB)
        done = place.run(python, "-m", "gpustat", "--json", limit="1GiB")
    gpu = json.loads(done.stdout)["gpus"][0]
    assert gpu["memory.total"] == 1024
    assert gpu["memory.used"] == 200
    assert [process["pid"] for process in gpu["processes"]] == [client.process.pid]


BINDINGS = """
from cuda.bindings import driver
def must(result):
    assert result[0] == driver.CUresult.CUDA_SUCCESS, result
    return result[1:] if len(result) > 2 else result[1] if len(result) == 2 else None
must(driver.cuInit(0))
device = must(driver.cuDeviceGet(0))
context = must(driver.cuDevicePrimaryCtxRetain(device))
must(driver.cuCtxSetCurrent(context))
print(must(driver.cuDeviceTotalMem(device)), *must(driver.cuMemGetInfo()))
block = must(driver.cuMemAlloc(500 << 20))
print(driver.cuMemAlloc(600 << 20)[0].name)
must(driver.cuMemFree(block))
must(driver.cuMemAlloc(600 << 20))
"""


def test_a_driver_client_from_elsewhere(place, python):
    pytest.importorskip("cuda.bindings.driver", exc_type=ImportError)
    done = place.run(python, "-c", BINDINGS, limit="1GiB")
    assert done.stderr == ""
    assert done.stdout.split() == [str(GIB), str(GIB - CONTEXT), str(GIB), "CUDA_ERROR_OUT_OF_MEMORY"]


NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")

INSIDE = """
import subprocess, sys
client = subprocess.Popen([sys.argv[1], "dlsym"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for command in ("init", "retain z", "current z"):
    print(command, file=client.stdin, flush=True)
    assert client.stdout.readline().startswith("0 ")
print(client.pid, flush=True)
subprocess.run([sys.executable, "-c", sys.argv[2]], check=True)
client.kill()
"""


AT_WORK = """
import ctypes, subprocess, sys
cuda, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
ref = ctypes.byref(handle)
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ref, 0), cuda.cuCtxSetCurrent(handle)]
codes += [cuda.cuModuleLoadData(ref, b"image"), cuda.cuModuleGetFunction(ref, handle, b"work_10ms")]
codes += [cuda.cuLaunchKernel(handle, *[1] * 6, 0, None, None, None)]
assert not any(codes), codes
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""


@pytest.mark.namespaces
def test_utilization_samples_name_no_process_in_a_pid_namespace(place, python):
    """Where the machine's PIDs are not ours, a stranger's may equal one of ours."""
    if not has_pid_namespaces():
        pytest.skip("this machine does not let us make PID namespaces")
    done = place.run(*NAMESPACE, python, "-c", AT_WORK, UTILIZATION, limit="1GiB")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [[], []]


def pids_are_the_machines() -> bool:
    return str(Path("/proc/self/ns/pid").readlink()) == "pid:[4026531836]"


def has_pid_namespaces() -> bool:
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.namespaces
def test_processes_have_the_pids_of_the_namespace_that_asks(place, python):
    if not has_pid_namespaces():
        pytest.skip("this machine does not let us make PID namespaces")
    done = place.run(*NAMESPACE, python, "-c", INSIDE, CLIENTS / "client", SNAPSHOT, limit="1GiB")
    assert (done.returncode, done.stderr) == (0, "")
    pid, gpus = done.stdout.splitlines()
    assert int(pid) < 100, "a young namespace counts from 1"
    assert json.loads(gpus)[0]["lists"]["Compute_v3"] == [[int(pid), CONTEXT]]
