# SPDX-License-Identifier: Apache-2.0
"""What a program sees of NVML's starts and ends is its own, whatever the library does with NVML meanwhile.

Most tests run the same program without the library and under it, where making a context starts NVML for the library:
what it prints must not differ.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.native.running import ROOT

UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND = 1, 2, 3, 6
ALL_REFUSED = [UNINITIALIZED] * 22
FAKECTL = str(ROOT / "build/fakedriver/fakectl")

PROGRAM = """
import ctypes, json, os, subprocess, sys, threading
from ctypes import byref as ref, c_size_t, c_uint, c_ulonglong, c_void_p, create_string_buffer

nvml, cuda = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
context, block, device, said = c_void_p(), c_ulonglong(), c_void_p(), []

def cuda_works():  # makes a context on the first call; what it takes makes the library measure itself again
    codes = [cuda.cuInit(0)]
    if not context:
        codes += [cuda.cuDevicePrimaryCtxRetain(ref(context), 0), cuda.cuCtxSetCurrent(context)]
    threading.Event().wait(0.25)
    codes += [cuda.cuMemAlloc_v2(ref(block), c_size_t(4 << 20)), cuda.cuMemFree_v2(block)]
    assert not any(codes), codes

def say(*codes):
    said.append(list(codes))

def versioned(size, version):  # a structure of NVML that begins with its size and version
    return create_string_buffer((size | version << 24).to_bytes(4, "little"), size)

def ask():  # calls without a handle, and with one that was good once
    count, handle, text, memory = c_uint(), c_void_p(), create_string_buffer(96), create_string_buffer(64)
    uuid = versioned(52, 1)
    uuid[4] = 1  # as text, of which there is none
    say(nvml.nvmlDeviceGetCount_v2(ref(count)), nvml.nvmlDeviceGetCount(ref(count)),
        nvml.nvmlDeviceGetHandleByIndex_v2(0, ref(handle)), nvml.nvmlDeviceGetHandleByIndex(1, ref(handle)),
        nvml.nvmlDeviceGetHandleByUUID(b"GPU-1", ref(handle)), nvml.nvmlDeviceGetHandleByUUIDV(uuid, ref(handle)),
        nvml.nvmlDeviceGetHandleBySerial(b"1", ref(handle)),
        nvml.nvmlDeviceGetHandleByPciBusId(b"00:1f.0", ref(handle)),
        nvml.nvmlDeviceGetHandleByPciBusId_v2(b"00000000:00:1f.0", ref(handle)),
        nvml.nvmlUnitGetCount(ref(count)), nvml.nvmlUnitGetHandleByIndex(0, ref(handle)),
        nvml.nvmlSystemGetDriverVersion(text, 96), nvml.nvmlSystemGetDriverBranch(versioned(84, 1), 80),
        nvml.nvmlSystemGetHicVersion(ref(c_uint()), None), nvml.nvmlSystemGetTopologyGpuSet(0, ref(count), None),
        nvml.nvmlSystemGetConfComputeCapabilities(text), nvml.nvmlSystemGetConfComputeState(text),
        nvml.nvmlSystemGetConfComputeGpusReadyState(ref(count)),
        nvml.nvmlSystemGetConfComputeSettings(versioned(20, 1)),
        nvml.nvmlSystemGetConfComputeSettings_v2(versioned(24, 2)),
        nvml.nvmlEventSetCreate(ref(handle)), nvml.nvmlSystemEventSetCreate(versioned(16, 1)))
    if device:
        say(nvml.nvmlDeviceGetMemoryInfo(device, memory))

def open_device():
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ref(device)) == 0

def name():
    say(nvml.nvmlDeviceGetName(device, create_string_buffer(96), 96))

def fail(call):
    subprocess.run([sys.argv[2], "fail", call, "999"], check=True)

exec(sys.argv[1])
print(json.dumps(said))
"""


@pytest.fixture
def same(place, python) -> Callable[[str], list[list[int]]]:
    """Runs BODY under the driver alone and under the library; both say the same, which is returned."""

    def said(env: dict[str, str], body: str) -> list[list[int]]:
        done = subprocess.run(
            [python, "-c", PROGRAM, body, FAKECTL],
            env=env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    def same(body: str) -> list[list[int]]:
        plain = said(place.plain_env(), body)
        assert said(place.env("1GiB"), body) == plain
        return plain

    return same


def test_without_a_start_nvml_is_not_initialised(same):
    seen = same("cuda_works(); ask(); say(nvml.nvmlShutdown()); cuda_works(); ask()")
    assert seen == [ALL_REFUSED, [UNINITIALIZED], ALL_REFUSED]


@pytest.mark.parametrize("start", ["nvmlInit()", "nvmlInit_v2()", "nvmlInitWithFlags(0)"])
def test_starts_and_ends_balance(same, start):
    seen = same(
        f"cuda_works(); say(nvml.{start}); open_device(); ask(); say(nvml.{start}); cuda_works(); ask();"
        "say(nvml.nvmlShutdown()); ask(); say(nvml.nvmlShutdown()); ask(); cuda_works(); ask();"
        f"say(nvml.nvmlShutdown()); say(nvml.{start}); ask(); say(nvml.nvmlShutdown()); ask()"
    )
    assert seen[0] == [0]
    assert seen[1] == [0] * 4 + [NOT_FOUND] * 5 + [0, INVALID, 0, 0, 0, 0, 0, 0, NOT_SUPPORTED, 0, 0, 0, 0]
    assert seen[-1] == [UNINITIALIZED]


def test_the_end_of_the_programs_use_ends_every_handle(same):
    """Also for functions that the library does not hook: it has let go of NVML as well."""
    seen = same("cuda_works(); nvml.nvmlInit_v2(); open_device(); name(); nvml.nvmlShutdown(); name()")
    assert seen == [[0], [UNINITIALIZED]]


def test_a_program_that_had_started_before_the_library(same):
    same(
        "nvml.nvmlInit_v2(); open_device(); cuda_works(); ask(); say(nvml.nvmlShutdown()); ask(); cuda_works(); ask()"
    )


def test_a_start_that_fails_is_none(same):
    seen = same(
        "cuda_works(); fail('nvmlInitWithFlags'); say(nvml.nvmlInitWithFlags(0)); ask(); say(nvml.nvmlShutdown())"
    )
    assert seen == [[999], ALL_REFUSED, [UNINITIALIZED]]


def test_an_end_that_fails_is_none(same):
    seen = same(
        "cuda_works(); nvml.nvmlInit_v2(); fail('nvmlShutdown'); say(nvml.nvmlShutdown()); ask();"
        "say(nvml.nvmlShutdown()); ask()"
    )
    assert (seen[0], seen[1][0], seen[2:]) == ([999], 0, [[0], ALL_REFUSED])


def test_a_library_that_cannot_start_nvml_changes_nothing(same):
    same(
        "fail('nvmlInit_v2'); cuda_works(); ask(); say(nvml.nvmlInit()); ask(); say(nvml.nvmlShutdown()); ask()"
    )


def test_threads_that_start_and_end(same):
    """A user that has started NVML finds it started, whatever others and the library do, and at the end it is not."""
    seen = same(
        """
cuda_works()
wrong = []
def work():
    cuda.cuCtxSetCurrent(context)
    mine = c_ulonglong()
    for i in range(200):
        count = c_uint()
        codes = [nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(ref(count)), nvml.nvmlShutdown()]
        if i % 10 == 0:
            codes += [cuda.cuMemAlloc_v2(ref(mine), c_size_t(4 << 20)), cuda.cuMemFree_v2(mine)]
        if any(codes):
            wrong.append(codes)
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
say(*wrong)
cuda_works()
ask()
"""
    )
    assert seen == [[], ALL_REFUSED]


@pytest.mark.parametrize("started", [0, 1])
def test_a_forked_child_goes_on_counting(same, started):
    same(
        f"""
cuda_works()
if {started}:
    nvml.nvmlInit_v2()
ask()
read, write = os.pipe()
if os.fork() == 0:
    said.clear()
    ask()
    for _ in range(2):
        say(nvml.nvmlShutdown())
        ask()
    say(nvml.nvmlInit_v2())
    ask()
    os.write(write, json.dumps(said).encode())
    os._exit(0)
os.wait()
said.append(json.loads(os.read(read, 100000)))
ask()
say(nvml.nvmlShutdown())
ask()
"""
    )
