# SPDX-License-Identifier: Apache-2.0
"""Orders: failures, latencies, counters, XIDs, lost GPUs."""

from __future__ import annotations

import time

import pytest

OOM, INVALID_CONTEXT = 2, 201
TIMEOUT, LOST = 10, 15


def test_the_next_call_fails_and_only_that(small):
    peer = small.peer()
    peer("context(0)")
    small.order("fail", "cuMemAlloc_v2", OOM)
    assert peer("call('cuMemAllocManaged', byref(c_uint64()), c_size_t(1), 1)") == 0
    assert peer("alloc(4096)") == -OOM
    assert peer("alloc(4096)") > 0
    assert small.state()["failures"] == []


def test_several_calls_fail(small):
    peer = small.peer()
    peer("context(0)")
    small.order("fail", "cuMemAlloc_v2", 999, 3)
    assert peer("[alloc(4096) > 0 for _ in range(5)]") == [False, False, False, True, True]


def test_only_one_process_fails(small):
    first, second = small.peer(), small.peer()
    first("context(0)")
    second("context(0)")
    small.order("fail", "cuMemAlloc_v2", OOM, 1, "--pid", second.pid)
    assert first("alloc(4096)") > 0
    assert second("alloc(4096)") == -OOM


def test_initialisation_can_fail(small):
    peer = small.peer()
    small.order("fail", "cuInit", 100)
    small.order("fail", "nvmlInit_v2", 9)
    assert peer("call('cuInit', 0)") == 100
    assert peer("call('cuInit', 0)") == 0
    assert peer("call('nvmlInit_v2')") == 9
    assert peer("call('nvmlInit_v2')") == 0


def test_nvml_calls_can_fail(small):
    peer = small.peer()
    peer("good('nvmlInit_v2')")
    small.order("fail", "nvmlDeviceGetMemoryInfo", 999)
    assert peer("call('nvmlDeviceGetMemoryInfo', device(0), ctypes.create_string_buffer(24))") == 999
    assert peer("call('nvmlDeviceGetMemoryInfo', device(0), ctypes.create_string_buffer(24))") == 0


def test_reset_takes_orders_back(small):
    peer = small.peer()
    peer("context(0)")
    small.order("fail", "cuMemAlloc_v2", OOM, 10)
    small.order("count", "on")
    small.order("reset")
    assert peer("alloc(4096)") > 0
    assert small.state()["calls"] == {}


def test_calls_are_counted(small):
    peer = small.peer()
    peer("context(0)")
    small.order("count", "on")
    peer("[free(alloc(4096)) for _ in range(5)]")
    peer("call('cuMemAlloc', byref(c_uint()), c_uint(1))")
    calls = small.state()["calls"]
    assert calls == {"cuMemAlloc_v2": 5, "cuMemFree_v2": 5, "cuMemAlloc": 1}
    small.order("count", "off")
    peer("alloc(4096)")
    assert small.state()["calls"] == calls


def test_counters_from_the_machine_file(written):
    machine = written("gpus: 1\ncounters: yes\n")
    machine.peer()("context(0)")
    assert machine.state()["calls"]["cuDevicePrimaryCtxRetain"] == 1


def test_latencies(written):
    machine = written("gpus: 1\nlatency: cuMemAlloc_v2=30ms, cuMemFree*=20ms, *=0\n")
    peer = machine.peer()
    peer("context(0)")
    timed = "[t := __import__('time').monotonic(), {}, __import__('time').monotonic() - t][-1]"
    assert peer(timed.format("p := alloc(1)")) >= 0.03
    assert peer(timed.format("free(p)")) >= 0.02
    other = machine.peer(FAKEDRIVER_LATENCY="cuMemAlloc_v2=1ms,nvmlInit*=40ms")
    other("context(0)")
    assert other(timed.format("alloc(1)")) >= 0.001
    assert other(timed.format("good('nvmlInit_v2')")) >= 0.04


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cuMemAloc_v2=3us", 'no call is named "cuMemAloc_v2"'),
        ("cuMemAlloc_v2", '"cuMemAlloc_v2" is not <call>=<time>'),
        ("cuMemAlloc_v2=fast", '"cuMemAlloc_v2=fast" is not <call>=<time>'),
        ("cuMemAlloc_v2=3", '"cuMemAlloc_v2=3" is not <call>=<time>'),
    ],
)
def test_bad_latencies(small, text, complaint):
    peer = small.peer(FAKEDRIVER_LATENCY=text)
    assert peer("call('cuInit', 0)") == 802
    err = peer.end()
    assert complaint in err
    assert err.count("\n") == 1


def test_xids_reach_who_waits_for_them(small):
    peer = small.peer()
    first, other = peer("event_set(0, 1)"), peer("event_set(0)")
    assert peer(f"wait_event({first}, 1)")[0] == TIMEOUT
    small.order("xid", 1, 79)
    small.order("xid", 0, 48)
    assert peer(f"wait_event({first}, 5000)") == [0, 79, 1]
    assert peer(f"wait_event({first}, 5000)") == [0, 48, 0]
    assert peer(f"wait_event({first}, 1)")[0] == TIMEOUT
    assert peer(f"wait_event({other}, 5000)") == [0, 48, 0]
    assert peer(f"call('nvmlEventSetFree', c_void_p({first}))") == 0
    assert peer(f"wait_event({first}, 1)")[0] == 2


def test_a_wait_ends_when_the_xid_comes(small):
    peer = small.peer()
    events = peer("event_set(0)")
    assert peer.process.stdin is not None and peer.process.stdout is not None
    peer.process.stdin.write(f"wait_event({events}, 60000)\n")
    time.sleep(0.05)
    small.order("xid", 0, 13)
    assert peer.process.stdout.readline() == '{"value": [0, 13, 0]}\n'


def test_a_lost_gpu(small):
    peer, late = small.peer(), small.peer()
    peer("context(0)")
    events = peer("event_set(0, 1)")
    small.order("lost", 0)
    assert peer("alloc(4096)") == -999
    late("good('cuInit', 0)")
    assert late("handles('cuCtxCreate_v2', 0, 0)") == -46
    assert peer("call('nvmlDeviceGetHandleByIndex_v2', c_uint(0), byref(c_void_p()))") == LOST
    assert peer("call('nvmlDeviceGetHandleByIndex_v2', c_uint(1), byref(c_void_p()))") == 0
    assert peer(
        f"[good('nvmlInit_v2'), e := Event(), call('nvmlEventSetWait_v2', c_void_p({events}), byref(e), 5000), "
        "e.data][2:]"
    ) == [0, 79]
    small.order("found", 0)
    assert peer("alloc(4096)") > 0


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "usage: fakectl"),
        (("fial",), '"fial"'),
        (("fail", "cuMemAloc", "2"), 'no call of the simulated driver is named "cuMemAloc"'),
        (("fail", "cuMemAlloc_v2", "0"), 'not an error code: "0"'),
        (("fail", "cuMemAlloc_v2", "oom"), 'not an error code: "oom"'),
        (("fail", "cuMemAlloc_v2", "2", "-1"), 'not a count: "-1"'),
        (("fail", "cuMemAlloc_v2", "2", "--pid", "me"), 'not a PID: "me"'),
        (("xid", "2", "79"), 'this machine has no GPU "2"'),
        (("xid", "0", "many"), 'not a number: "many"'),
        (("count", "maybe"), 'neither on nor off: "maybe"'),
    ],
)
def test_bad_orders(small, args, complaint):
    done = small.fakectl(*args)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not args or done.stderr.count("\n") == 1


def test_too_many_failures(small):
    for _ in range(32):
        small.order("fail", "cuMemAlloc_v2", OOM)
    done = small.fakectl("fail", "cuMemAlloc_v2", OOM)
    assert done.returncode == 1
    assert "fakectl reset" in done.stderr
