# SPDX-License-Identifier: Apache-2.0
"""Every view that programs have of a shared GPU is the same GPU: CUDA and NVML, all versions, all lists."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.fakedriver.env import write_machine
from tests.native.running import CLIENTS, CONTEXT, GIB, MIB, Place

VIEWS = Path(__file__).resolve().parents[1] / "native" / "clients" / "views.py"
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")

# The container: two programs, of which the second also encodes video, and what each of them and NVML say.
CONTAINER = """
import json, os, subprocess, sys
client, views, *sizes = sys.argv[1:]
def start(kind, size):
    env = os.environ | {"FAKEDRIVER_PROCESS": kind}
    program = subprocess.Popen([client, "dlsym"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    def do(command):
        print(command, file=program.stdin, flush=True)
        code, *values = map(int, program.stdout.readline().split())
        assert code == 0, command
        return values
    for command in ("init", "retain z 0", "current z", f"alloc a {size}"):
        do(command)
    return program, do
programs = [start(kind, size) for kind, size in zip(("compute", "graphics"), sizes)]
says = [{what: do(what.split("/")[0]) for what in ("info", "info1", "total a 0", "total1 a 0")} for _, do in programs]
seen = json.loads(subprocess.run([sys.executable, views], stdout=subprocess.PIPE, check=True).stdout)
print(json.dumps({"pids": [program.pid for program, _ in programs], "cuda": says, "nvml": seen}))
for program, _ in programs:
    program.kill()
"""
LIMIT, SIZES = 2 * GIB, (123 * MIB, 300 * MIB + 512)
HELD = (CONTEXT + 123 * MIB, CONTEXT + 300 * MIB + 512)
WHOLE = 24 * GIB


def place(tmp_path: Path, **keys: str) -> Place:
    """The machine two-24g with other KEYS."""
    return Place(tmp_path, write_machine(tmp_path, like="two-24g", **keys))


def has_pid_namespaces() -> bool:
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


def pids_are_the_machines() -> bool:
    return str(Path("/proc/self/ns/pid").readlink()) == "pid:[4026531836]"


@pytest.mark.parametrize(
    "namespace", [False, pytest.param(True, marks=pytest.mark.namespaces)], ids=["same_pids", "pid_namespace"]
)
def test_every_view_is_the_same_gpu(tmp_path, python, namespace):
    if namespace and not has_pid_namespaces():
        pytest.skip("this machine does not let us make PID namespaces")
    here = place(tmp_path, accounting="yes", confidential="yes", mig="yes")
    with (
        here.client() as stranger,
        here.client(FAKEDRIVER_PROCESS="graphics") as drawing,
        here.client(FAKEDRIVER_PROCESS="mps") as served,
    ):
        for client in (stranger, drawing, served):
            client.ready().do("alloc a", 3 * GIB)
        done = here.run(
            *(NAMESPACE if namespace else ()), python, "-c", CONTAINER, CLIENTS / "client", VIEWS,
            *map(str, SIZES), limit=f"MIG-{uuid(here, python)}=2GiB",
        )  # fmt: skip
        plain = json.loads(
            subprocess.run(
                [python, VIEWS], env=here.plain_env(), check=True, capture_output=True, text=True
            ).stdout
        )
    assert (done.returncode, done.stderr) == (0, "")
    seen = json.loads(done.stdout)
    nvml, pids, used = seen["nvml"], seen["pids"], sum(HELD)
    gpu = [LIMIT, LIMIT - used, used]
    own = sorted(map(list, zip(pids, HELD, strict=True)))

    for cuda in seen["cuda"]:
        assert cuda["info"] == [LIMIT - used, LIMIT]
        assert cuda["info1"] == [LIMIT - used, LIMIT]
        assert cuda["total a 0"][0] == cuda["total1 a 0"][0] == LIMIT
    assert nvml["memory"] == gpu
    assert nvml["memory_v2"] == [0x02000028, LIMIT, 0, LIMIT - used, used]
    assert nvml["protected"] == gpu
    assert nvml["sizes"] == [LIMIT // 1024, 0]
    assert [attributes[-1] for attributes in nvml["attributes"]] == [LIMIT // MIB] * 2
    assert nvml["bar1"] == [plain["bar1"][0], plain["bar1"][0], 0]
    for name, entries in nvml["lists"].items():
        assert entries == (own if name.startswith("nvmlDeviceGetCompute") else []), name
    assert nvml["detail"] == [own, [], [], own]
    assert nvml["private"]["lists"] == {"213": own, "214": [], "215": []}
    comparable = not namespace and pids_are_the_machines()
    assert nvml["accounting"] == ({str(pid): [0, 0, n, n] for pid, n in own} if comparable else {})
    assert nvml["encoder"] == nvml["capture"] == ([[pids[1]]] if comparable else [])

    assert plain["memory"][0] == WHOLE, "without the library the GPU is another"
    assert {name: len(entries) for name, entries in plain["lists"].items()} == dict.fromkeys(
        plain["lists"], 1
    )
    assert len(plain["accounting"]) == 3


def uuid(here: Place, python: str) -> str:
    """UUID of GPU 0 without its prefix."""
    code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0)))"
    done = subprocess.run(
        [python, "-c", code], env=here.plain_env(), check=True, capture_output=True, text=True
    )
    return done.stdout.strip().partition("-")[2]


@pytest.mark.parametrize(
    ("version", "head"), [("525.147.05", 24), ("535.261.03", 32), ("555.58.02", 32), ("580.65.06", 32)]
)
def test_the_private_table_of_known_branches_lists_own_processes(tmp_path, python, version, head):
    here = place(tmp_path, driver_version=version)
    with here.client("1GiB") as own, here.client() as stranger:
        own.ready()
        stranger.ready()
        done = here.run(python, VIEWS, str(head), limit="1GiB")
    lists = json.loads(done.stdout)["private"]["lists"]
    assert lists == {"213": [[own.process.pid, CONTEXT]], "214": [], "215": []}


@pytest.mark.parametrize(("version", "size"), [("470.256.02", 1704), ("530.41.03", 1704), ("610.10", 1704)])
def test_the_private_table_of_other_branches_ends_before_the_lists(tmp_path, python, version, size):
    here = place(tmp_path, driver_version=version)
    with here.client("1GiB") as own, here.client() as stranger:
        own.ready()
        stranger.ready()
        seen = json.loads(here.run(python, VIEWS, limit="1GiB").stdout)
        assert seen["private"] == {"size": size, "lists": {}}
        assert seen["lists"]["nvmlDeviceGetComputeRunningProcesses_v3"] == [[own.process.pid, CONTEXT]], (
            "the public lists know no branches"
        )


REFUSALS = """
import ctypes as c
nvml = c.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
device, count = c.c_void_p(), c.c_uint(0)
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, c.byref(device)) == 0
stats = c.create_string_buffer(b"x" * 100, 100)
pids = (c.c_uint * 8)()
print(nvml.nvmlDeviceGetAccountingStats(device, {stranger}, stats), stats.raw == b"x" * 100)
print(nvml.nvmlDeviceGetAccountingStats(device, {own}, None), nvml.nvmlDeviceGetAccountingStats_v2(device, None))
size, list_pids, sessions = c.byref(count), nvml.nvmlDeviceGetAccountingPids, nvml.nvmlDeviceGetEncoderSessions
print(list_pids(device, None, pids), list_pids(None, size, pids))
print(list_pids(device, size, None), count.value)
count.value = 0
print(sessions(device, size, None), sessions(device, None, None))
print(nvml.nvmlDeviceGetBAR1MemoryInfo(device, None), nvml.nvmlDeviceGetConfComputeMemSizeInfo(device, None))
print(nvml.nvmlDeviceGetConfComputeProtectedMemoryUsage(device, None), nvml.nvmlDeviceGetAttributes_v2(device, stats))
nvml.nvmlShutdown()
print(list_pids(device, size, pids), nvml.nvmlDeviceGetBAR1MemoryInfo(device, stats))
"""


def test_a_stranger_is_not_found_and_mistakes_are_the_drivers_to_name(tmp_path, python):
    here = place(tmp_path, accounting="yes")
    with here.client("1GiB") as own, here.client() as stranger:
        own.ready()
        stranger.ready()
        code = REFUSALS.format(stranger=stranger.process.pid, own=own.process.pid)
        done = here.run(python, "-c", code, limit="1GiB")
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["6 True", "2 2", "2 2", "7 2", "0 2", "2 2", "2 3", "1 1"]


def test_without_confidential_computing_nothing_is_protected(tmp_path, python):
    here = place(tmp_path)
    with here.client("1GiB") as own:
        own.ready()
        seen = json.loads(here.run(python, VIEWS, limit="1GiB").stdout)
    assert seen["sizes"] == [0, GIB // 1024]
    assert seen["protected"] == [0, 0, 0]
    assert seen["attributes"] == [3, 3], "not a MIG device: the driver's own error"
    assert seen["accounting"] == 3
