# SPDX-License-Identifier: Apache-2.0
"""NVML beyond memory, processes and topology."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLIENT = """
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
assert n.nvmlDeviceGetTemperature(gpu, n.NVML_TEMPERATURE_GPU) == 34
assert n.nvmlDeviceGetPowerUsage(gpu) < n.nvmlDeviceGetEnforcedPowerLimit(gpu)
assert n.nvmlDeviceGetPersistenceMode(gpu) == n.NVML_FEATURE_ENABLED
assert n.nvmlDeviceGetComputeMode(gpu) == n.NVML_COMPUTEMODE_DEFAULT
assert n.nvmlDeviceGetPerformanceState(gpu) == 0
assert n.nvmlDeviceGetEccMode(gpu) == [1, 1]
assert n.nvmlDeviceGetMigMode(gpu) == [0, 0]
assert n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM) <= n.nvmlDeviceGetMaxClockInfo(gpu, n.NVML_CLOCK_SM)
assert n.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total == 256 << 30
assert n.nvmlDeviceGetSupportedEventTypes(gpu) & n.nvmlEventTypeXidCriticalError
assert n.nvmlDeviceGetArchitecture(gpu) == n.NVML_DEVICE_ARCH_HOPPER
assert n.nvmlDeviceGetFieldValues(gpu, [n.NVML_FI_DEV_NVLINK_LINK_COUNT])[0].value.uiVal == 18
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(gpu))) == 0
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(gpu).busIdLegacy)) == 0
for missing in (n.nvmlDeviceGetFanSpeed, n.nvmlDeviceGetNumaNodeId, n.nvmlDeviceGetGpuInstanceId):
    try:
        missing(gpu)
    except n.NVMLError_NotSupported:
        continue
    raise AssertionError(missing)
assert n.nvmlSystemGetProcessName(__import__("os").getpid())
n.nvmlShutdown()
try:
    n.nvmlDeviceGetName(gpu)
except n.NVMLError_Uninitialized:
    print("done")
"""


def test_what_tools_ask(machine):
    done = subprocess.run(
        [sys.executable, "-c", CLIENT],
        env=machine("dgx-h200").env(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


def test_initialisation_is_counted(small):
    peer = small.peer()
    assert peer("call('nvmlDeviceGetCount_v2', byref(c_uint()))") == 1
    assert peer("[call('nvmlInit'), call('nvmlInit_v2'), call('nvmlInitWithFlags', 0)]") == [0, 0, 0]
    assert peer(
        "[call('nvmlShutdown'), call('nvmlShutdown'), call('nvmlDeviceGetCount', byref(c_uint()))]"
    ) == [0, 0, 0]
    assert peer(
        "[call('nvmlShutdown'), call('nvmlDeviceGetCount', byref(c_uint())), call('nvmlShutdown')]"
    ) == [0, 1, 1]


def test_sizes_of_lists_and_texts(small):
    holder, peer = small.peer(), small.peer()
    holder("context(0)")
    assert peer(
        "[c := c_uint(0), call('nvmlDeviceGetComputeRunningProcesses_v3', device(0), byref(c), None), c.value][1:]"
    ) == [7, 1]
    assert peer(
        "[c := c_uint(0), call('nvmlDeviceGetComputeRunningProcesses_v3', device(1), byref(c), None), c.value][1:]"
    ) == [0, 0]
    assert peer("call('nvmlDeviceGetUUID', device(0), ctypes.create_string_buffer(40), c_uint(40))") == 7
    assert peer("call('nvmlDeviceGetName', c_void_p(4096), ctypes.create_string_buffer(40), c_uint(40))") == 2
    assert peer("call('nvmlDeviceGetMemoryInfo_v2', device(0), ctypes.create_string_buffer(40))") == 25


def test_process_utilisation(small):
    holder, peer = small.peer(), small.peer()
    holder("context(0)")
    ask = (
        "[c := c_uint(8), b := ctypes.create_string_buffer(8 * 32), "
        "call('nvmlDeviceGetProcessUtilization', device(0), b, byref(c), c_uint64(0)), "
        "c.value, int.from_bytes(b.raw[:4], 'little')][2:]"
    )
    assert peer(ask) == [6, 0, 0]
    holder("launch(function('work_10ms'))")
    assert peer(ask) == [0, 1, holder.pid]


def test_accounting_is_a_mode(small):
    holder, peer = small.peer(), small.peer()
    holder("context(0)")
    assert peer(
        "[m := c_uint(9), call('nvmlDeviceGetAccountingMode', device(0), byref(m)), m.value][1:]"
    ) == [0, 0]
    assert peer("call('nvmlDeviceGetAccountingPids', device(0), byref(c_uint(0)), None)") == 3
    assert peer("call('nvmlDeviceGetAccountingStats', device(0), 1, ctypes.create_string_buffer(64))") == 3


def test_sessions_are_those_of_graphics_processes(small):
    holder, peer = small.peer(FAKEDRIVER_PROCESS="graphics"), small.peer()
    holder("context(0)")
    ask = (
        "[c := c_uint(%d), b := ctypes.create_string_buffer(2 * 32), "
        "call('nvmlDeviceGetEncoderSessions', device(0), byref(c), b), "
        "c.value, int.from_bytes(b.raw[4:8], 'little')][2:]"
    )
    assert peer(ask % 0) == [0, 1, 0]
    assert peer(ask % 2) == [0, 1, holder.pid]


def words(peer, call, size, version):
    """What a call writes into a structure of NVML of SIZE bytes, as 32-bit numbers behind its first; or its error."""
    answer = f"[s := (c_uint * {size // 4})({size} | {version} << 24), call('{call}', s), list(s)[1:]][1:]"
    code, numbers = peer(answer)
    return code or numbers


@pytest.mark.parametrize("on", [True, False])
def test_confidential_computing_is_the_systems(written, on):
    peer = written(f"gpus: 1\nconfidential: {'yes' if on else 'no'}\n").peer()
    peer("good('nvmlInit_v2')")
    state = [2, 1, 0] if on else [0, 0, 0]
    assert peer("[s := (c_uint * 3)(), good('nvmlSystemGetConfComputeState', s), list(s)][2]") == state
    assert words(peer, "nvmlSystemGetConfComputeSettings", 20, 1) == [*state, 0]
    assert words(peer, "nvmlSystemGetConfComputeSettings_v2", 24, 2) == [*state, 0, 0]
    assert words(peer, "nvmlSystemGetConfComputeSettings_v2", 20, 1) == 25, "another version"
    ready = "[s := c_uint(7), call('nvmlSystemGetConfComputeGpusReadyState', byref(s)), s.value][1:]"
    assert peer(ready) == ([0, 1] if on else [3, 7])
    able = peer("[s := (c_uint * 2)(), good('nvmlSystemGetConfComputeCapabilities', s), list(s)][2]")
    assert [number > 0 for number in able] == [on, on]


def test_what_the_system_does_not_have(small):
    peer = small.peer()
    peer("good('nvmlInit_v2')")
    assert peer("call('nvmlUnitGetHandleByIndex', c_uint(0), byref(c_void_p()))") == 2
    assert peer(
        "[n := c_uint(2), call('nvmlSystemGetHicVersion', byref(n), (c_char * 72)()), n.value][1:]"
    ) == [0, 0]


def test_the_branch_is_that_of_the_version(written):
    peer = written("driver_version: 555.58.02\ngpus: 1\n").peer()
    peer("good('nvmlInit_v2')")
    ask = "[s := (c_char * 84)(), ctypes.memmove(s, bytes([84, 0, 0, 1]), 4), call('nvmlSystemGetDriverBranch', s, {})]"
    assert peer(f"[{ask.format(80)}[2], s[4:12].decode()]") == [0, "r555_00\0"]
    assert peer(f"{ask.format(7)}[2]") == 7, "too small"


def test_sets_of_system_events_come_and_go(small):
    peer = small.peer()
    peer("good('nvmlInit_v2')")
    peer("globals().update(s=(c_uint64 * 2)(16 | 1 << 24))")
    assert peer("[call('nvmlSystemEventSetCreate', s), s[1] > 0]") == [0, True]
    assert peer("[call('nvmlSystemEventSetFree', s), call('nvmlSystemEventSetFree', s)]") == [0, 2]
    assert peer("call('nvmlSystemEventSetCreate', (c_uint64 * 2)())") == 25
