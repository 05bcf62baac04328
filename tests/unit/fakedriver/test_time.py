# SPDX-License-Identifier: Apache-2.0
"""The simulated time of a GPU: its processes share it evenly, each in order."""

from __future__ import annotations

import pytest

NOW = "__import__('time').monotonic()"
TIMED = f"[t := {NOW}, good('cuCtxSynchronize'), {NOW} - t][2]"


def busy(machine) -> list[int]:
    """Milliseconds of GPU 0 that each process had."""
    return [process["busy_ns"][0] // 1_000_000 for process in machine.state()["processes"]]


def test_kernels_of_one_process_run_one_after_the_other(small):
    peer = small.peer()
    peer("context(0)")
    streams = [peer("handles('cuStreamCreate', 1)") for _ in range(2)]
    for stream in streams:
        peer(f"launch(function('work_100ms'), {stream})")
    assert peer(TIMED) >= 0.15, "200 ms since the first launch"
    assert busy(small) == [200]


def test_processes_share_a_gpu_evenly(small):
    first, second = small.peer(), small.peer()
    for peer in (first, second):
        peer("context(0)")
        peer("globals().update(kernel=function('work_300ms'))")
    first("launch(kernel)")
    second("launch(kernel)")
    assert first(TIMED) >= 0.3, "the other one had the GPU half of the time"
    second(TIMED)
    assert busy(small) == [300, 300]


def test_a_short_kernel_beside_a_long_one_takes_twice_its_time_and_no_longer(small):
    long, short = small.peer(), small.peer()
    for peer in (long, short):
        peer("context(0)")
    start, end = (short("handles('cuEventCreate', 0)") for _ in range(2))
    kernel = short("function('work_50ms')")
    long("launch(function('work_2s'))")
    short(f"good('cuEventRecord', c_void_p({start}), None)")
    short(f"launch({kernel})")
    short(f"good('cuEventRecord', c_void_p({end}), None)")
    short(TIMED)
    assert short(f"milliseconds({start}, {end})") >= 99
    assert long("call('cuStreamQuery', None)") == 600, "the long one goes on"
    assert busy(small)[1] == 50


def test_other_gpus_are_not_slowed_down(small):
    peer, other = small.peer(), small.peer()
    peer("context(0)")
    other("context(1)")
    start, end = (other("handles('cuEventCreate', 0)") for _ in range(2))
    peer("launch(function('work_2s'))")
    kernel = other("function('work_20ms')")
    other(f"good('cuEventRecord', c_void_p({start}), None)")
    other(f"launch({kernel})")
    other(f"good('cuEventRecord', c_void_p({end}), None)")
    other(TIMED)
    taken = other(f"milliseconds({start}, {end})")
    assert taken >= 20
    assert small.state()["processes"][1]["busy_ns"] == [0, 20_000_000]


def test_work_of_a_killed_process_leaves_the_round(small):
    victim, other = small.peer(), small.peer()
    for peer in (victim, other):
        peer("context(0)")
    victim("[launch(function('work_60s')) for _ in range(10)] and 0")
    victim.kill()
    other("launch(function('work_100ms'))")
    other(TIMED)
    assert [process["busy_ns"][0] for process in small.state()["processes"]] == [100_000_000]


@pytest.mark.parametrize("pause", [0, 30])
def test_events_say_when_it_was(small, pause):
    peer = small.peer()
    peer("context(0)")
    kernel = peer("function('work_20ms')")
    start, end = (peer("handles('cuEventCreate', 0)") for _ in range(2))
    peer(f"launch({kernel})")
    peer(f"good('cuEventRecord', c_void_p({start}), None)")
    peer(f"[good('cuCtxSynchronize'), __import__('time').sleep({pause / 1000})] and 0")
    peer(f"launch({kernel})")
    peer(f"good('cuEventRecord', c_void_p({end}), None)")
    peer("good('cuCtxSynchronize')")
    assert peer(f"milliseconds({start}, {end})") >= 20 + pause - 1
