# SPDX-License-Identifier: Apache-2.0
"""Containers that share a GPU in time slices: what waits, what does not, and what a death meanwhile changes."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from tests.native import scripted
from tests.native.running import MIB, SUCCESS, eventually
from tests.native.time_slices import LONG, SOON, Page
from vcuda import read_limits, read_time_slices, time_slice_clock, withhold_time_slice

NOT_READY = 600

SETUP = "keep(m=Handle(), f=Handle(), a=c_ulonglong(), s=Handle(), g=Handle(), x=Handle(), h=(ctypes.c_char * 4096)())"
LAUNCH = "cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, {}, None, None)"


def started(place, physical="2GiB", **extra):
    more = {"VCUDA_PHYSICAL_LIMIT": physical} if physical else {}
    program = scripted.Program(place.env("4GiB", **more, **extra)).ready()
    program.do(SETUP)
    for call in (
        "cuModuleLoadData(ref(m), b'image')",
        "cuModuleGetFunction(ref(f), m, b'work_1us')",
        "cuMemAlloc_v2(ref(a), c_size_t(1 << 20))",
        "cuStreamCreate(ref(s), 1)",
    ):
        assert program.do(call) == SUCCESS, call
    return program


@pytest.fixture
def program(place):
    with started(place) as program:
        yield program


WORK = {
    "kernel": LAUNCH.format("None"),
    "kernel on a stream": LAUNCH.format("s"),
    "kernel, per-thread": "cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, None, None, None)",
    "cooperative": "cuLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, None, None)",
    "copy to the GPU": "cuMemcpyHtoD_v2(a, h, c_size_t(4096))",
    "copy from the GPU": "cuMemcpyDtoH_v2(h, a, c_size_t(4096))",
    "copy in a stream": "cuMemcpyHtoDAsync_v2(a, h, c_size_t(4096), s)",
    "any copy": "cuMemcpy(a, a, c_size_t(16))",
    "fill": "cuMemsetD8_v2(a, 1, c_size_t(4096))",
    "fill in a stream": "cuMemsetD32Async(a, 1, c_size_t(1024), s)",
}


@pytest.mark.parametrize("work", WORK)
def test_work_waits_until_the_time_slice_comes(place, program, work):
    page = Page(place)
    page.hold(LONG)
    done = []
    thread = threading.Thread(target=lambda: done.append(program.do(WORK[work])))
    thread.start()
    assert eventually(lambda: page.usage().waiting)
    assert not done
    page.give(LONG)
    thread.join(60)
    assert done == [SUCCESS]
    usage = page.usage()
    assert usage.progress == 1
    assert usage.held_us > 0


def test_a_graph_waits_as_a_whole_and_its_making_does_not(place, program):
    page = Page(place)
    page.hold(LONG)
    assert program.do("cuStreamBeginCapture_v2(s, 2)") == SUCCESS
    assert program.do(LAUNCH.format("s")) == SUCCESS
    assert program.do("cuMemsetD32Async(a, 1, c_size_t(1024), s)") == SUCCESS
    assert program.do("cuStreamEndCapture(s, ref(g))") == SUCCESS
    assert program.do("cuGraphInstantiateWithFlags(ref(x), g, c_ulonglong(0))") == SUCCESS
    done = []
    thread = threading.Thread(target=lambda: done.append(program.do("cuGraphLaunch(x, s)")))
    thread.start()
    assert eventually(lambda: page.usage().waiting)
    assert not done
    page.free()
    thread.join(60)
    assert done == [SUCCESS]


def test_memory_and_queries_do_not_wait(place, program):
    Page(place).hold(LONG)
    program.do("keep(b=c_ulonglong())")
    for call in (
        "cuMemAlloc_v2(ref(b), c_size_t(1 << 20))",
        "cuMemFree_v2(b)",
        "cuStreamSynchronize(s)",
        "cuStreamQuery(s)",
        "cuCtxSynchronize()",
    ):
        assert program.do(call) == SUCCESS, call
    assert program.free() > 0


def test_an_agent_that_is_gone_leaves_no_thread_waiting(place, program):
    Page(place).hold(SOON)
    assert program.do(LAUNCH.format("None")) == SUCCESS  # without any agent doing anything
    assert time_slice_clock() > 0


def test_a_time_slice_keeps_queues_short(place):
    """Kernels of 5 ms: in its time slice a program is never far ahead of the GPU, else as far as it likes."""
    with started(place) as program:
        assert program.do("cuModuleGetFunction(ref(f), m, b'work_5ms')") == SUCCESS
        page = Page(place)
        launches = f"[{LAUNCH.format('None')} for _ in range(60)].count(0)"
        left = "[keep(t=time.monotonic()), cuCtxSynchronize(), time.monotonic() - t][2]"
        assert program.do(launches) == 60
        behind = program.do(left)
        page.give(LONG)
        assert program.do(launches) == 60
        assert program.do(left) < behind / 2


def test_queues_are_kept_short_while_no_container_has_a_time_slice_yet(place):
    with started(place) as program:
        assert program.do("cuModuleGetFunction(ref(f), m, b'work_5ms')") == SUCCESS
        page = Page(place)
        page.shorten(LONG)
        began = time.monotonic()
        assert program.do(f"[{LAUNCH.format('None')} for _ in range(60)].count(0)") == 60
        assert time.monotonic() - began > 0.2, "it waited for most of the 300 ms that they take"
        assert page.usage().held_us == 0


@pytest.mark.parametrize("lease", [LONG, SOON], ids=["in its time slice", "after it"])
def test_a_queue_that_does_not_move_holds_no_thread_for_ever(place, lease):
    """As one that waits for what the program does after its next launch."""
    with started(place) as program:
        assert program.do("cuModuleGetFunction(ref(f), m, b'work_30s')") == SUCCESS
        Page(place).give(lease)
        began = time.monotonic()
        assert program.do(f"[{LAUNCH.format('s')} for _ in range(6)].count(0)") == 6
        assert time.monotonic() - began < 15


def test_events_come_and_go_with_their_contexts(place):
    """Contexts in turn: one event at a time. A primary context that comes again, with the same handle: a new event."""
    with started(place) as program:
        made = lambda: json.loads(place.fakectl("state"))["calls"].get("cuEventCreate", 0)  # noqa: E731
        gone = lambda: json.loads(place.fakectl("state"))["calls"].get("cuEventDestroy_v2", 0)  # noqa: E731
        fill = "cuMemsetD8_v2({}, 1, c_size_t(4096))"
        Page(place).give(LONG)
        place.fakectl("count", "on")
        program.do("keep(p=Handle(), q=Handle(), b=c_ulonglong())")
        assert program.do("cuCtxGetCurrent(ref(p))") == SUCCESS
        assert program.do("cuCtxCreate_v2(ref(q), 0, 0)") == SUCCESS
        assert program.do("cuMemAlloc_v2(ref(b), c_size_t(1 << 20))") == SUCCESS
        for _ in range(20):
            assert program.do("cuCtxSetCurrent(p)") == SUCCESS
            assert [program.do(fill.format("a")) for _ in range(80)] == [SUCCESS] * 80
            assert program.do("cuCtxSetCurrent(q)") == SUCCESS
            assert [program.do(fill.format("b")) for _ in range(80)] == [SUCCESS] * 80
        assert made() > 2
        assert made() - gone() == 1
        assert program.do("cuCtxDestroy_v2(q)") == SUCCESS
        known = made()
        assert program.do("cuCtxCreate_v2(ref(q), 0, 0)") == SUCCESS
        assert program.do("cuMemAlloc_v2(ref(b), c_size_t(1 << 20))") == SUCCESS
        many = 5000  # more than a bundle ever has
        assert program.do(f"[{fill.format('b')} for _ in range({many})].count(0)") == many
        assert made() == known + 1


def test_events_go_with_green_contexts(place):
    """One that comes again with the same handle, while the primary context lives on: a new event, and none is left."""
    with started(place) as program:
        calls = lambda: json.loads(place.fakectl("state"))["calls"]  # noqa: E731
        Page(place).give(LONG)
        place.fakectl("count", "on")
        program.do(
            "keep(r=(ctypes.c_byte * 4096)(), n=c_uint(1), d=Handle(), g=Handle(), c=Handle(), p=Handle())"
        )
        split = "cuDevSmResourceSplitByCount(ref(r), ref(n), ref(r), None, 0, 8)"
        for call in (
            "cuDeviceGetDevResource(0, ref(r), 1)",
            split,
            "cuDevResourceGenerateDesc(ref(d), ref(r), 1)",
        ):
            assert program.do(call) == SUCCESS, call
        assert program.do("cuCtxGetCurrent(ref(p))") == SUCCESS
        handles = set()
        for made in range(1, 4):
            for call in (
                "cuGreenCtxCreate(ref(g), d, 0, 1)",
                "cuCtxFromGreenCtx(ref(c), g)",
                "cuCtxSetCurrent(c)",
            ):
                assert program.do(call) == SUCCESS, call
            handles.add(program.do("c.value"))
            many = 5000  # more than a bundle ever has
            assert program.do(f"[{LAUNCH.format('None')} for _ in range({many})].count(0)") == many
            assert calls()["cuEventCreate"] == made
            assert program.do("cuCtxSetCurrent(p), cuGreenCtxDestroy(g)") == [SUCCESS, SUCCESS]
            assert calls()["cuEventDestroy_v2"] == made
        assert len(handles) == 1


def test_who_is_held_says_whether_its_queue_still_runs(place):
    with started(place) as program:
        assert program.do("cuModuleGetFunction(ref(f), m, b'work_900ms')") == SUCCESS
        page = Page(place)
        assert program.do(LAUNCH.format("s")) == SUCCESS
        page.hold(LONG)
        thread = threading.Thread(target=lambda: program.do(LAUNCH.format("s")))
        thread.start()
        assert eventually(lambda: page.usage().waiting and page.usage().busy == 1)
        assert eventually(lambda: page.usage().waiting and page.usage().busy == 0), "it is done"
        page.free()
        thread.join(60)
        assert eventually(lambda: page.usage().busy == 0)


@pytest.mark.parametrize("wait", ["cuMemcpyDtoH_v2(h, a, c_size_t(4096))", "cuMemcpy(a, a, c_size_t(16))"])
def test_a_copy_that_waits_for_kernels_is_busy(place, wait):
    with started(place) as program:
        assert program.do("cuModuleGetFunction(ref(f), m, b'work_900ms')") == SUCCESS
        page = Page(place)
        assert program.do(LAUNCH.format("None")) == SUCCESS
        thread = threading.Thread(target=lambda: program.do(wait))
        thread.start()
        assert eventually(lambda: page.usage().busy == 1)
        thread.join(60)
        assert page.usage().busy == 0


def test_who_asks_again_and_again_whether_work_is_done_is_busy(place):
    with started(place) as program:
        assert program.do("cuModuleGetFunction(ref(f), m, b'work_2s')") == SUCCESS
        page = Page(place)
        assert program.do("cuStreamQuery(s)") == SUCCESS
        assert page.usage().busy == 0, "it is done"
        assert program.do(LAUNCH.format("s")) == SUCCESS
        assert page.usage().busy == 0, "no thread has asked"
        assert program.do("cuStreamQuery(s)") == NOT_READY
        assert page.usage().busy == 1
        assert eventually(lambda: page.usage().busy == 0), "no thread asks any more"


@pytest.mark.parametrize("ask", ["cuEventQuery(e)", "cuStreamQuery_ptsz(s)"])
def test_every_query_counts(place, ask):
    with started(place) as program:
        assert program.do("cuModuleGetFunction(ref(f), m, b'work_2s')") == SUCCESS
        program.do("keep(e=Handle())")
        assert program.do("cuEventCreate(ref(e), 2)") == SUCCESS
        assert program.do(LAUNCH.format("s")) == SUCCESS
        assert program.do("cuEventRecord(e, s)") == SUCCESS
        assert program.do(ask) == NOT_READY
        assert Page(place).usage().busy == 1


def test_pages_are_fetched_when_the_time_slice_comes_and_only_then(place):
    calls = lambda: json.loads(place.fakectl("state"))["calls"].get("cuMemPrefetchAsync", 0)  # noqa: E731
    with started(place) as program:
        program.do("keep(b=c_ulonglong(), c=c_ulonglong())")
        assert program.do("cuMemAlloc_v2(ref(b), c_size_t(1800 << 20))") == SUCCESS
        assert program.do("cuMemAlloc_v2(ref(c), c_size_t(1 << 30))") == SUCCESS
        page = Page(place)
        place.fakectl("count", "on")
        assert program.do(LAUNCH.format("None")) == SUCCESS
        page.give(LONG)
        assert program.do(LAUNCH.format("None")) == SUCCESS
        assert calls() == 0
        page.hold(LONG)
        done = []
        thread = threading.Thread(target=lambda: done.append(program.do(LAUNCH.format("None"))))
        thread.start()
        assert eventually(lambda: page.usage().waiting)
        page.give(LONG)
        thread.join(60)
        assert done == [SUCCESS]
        assert calls() == 1  # what is managed, and nothing else


def test_containers_without_host_memory_never_wait(place):
    with started(place, physical="") as program:
        uuid = read_limits(place.quota / "limits").gpus[0].uuid
        withhold_time_slice(place.quota / "limits", uuid, time_slice_clock() + LONG)
        assert program.do(LAUNCH.format("None")) == SUCCESS
        assert read_time_slices(place.quota / "ledger", [uuid]) == {}


def test_a_holder_that_is_killed_is_seen_as_dead(place):
    with started(place) as program:
        page = Page(place)
        assert page.usage().alive == 1
        program.process.kill()
        program.process.communicate()
        assert page.usage().alive == 0
        assert page.usage().managed == 0


def test_a_process_that_waits_for_its_work_is_busy(place):
    with started(place) as program:
        assert program.do("cuModuleGetFunction(ref(f), m, b'work_900ms')") == SUCCESS
        page = Page(place)
        assert page.usage().busy == 0
        assert program.do(LAUNCH.format("None")) == SUCCESS
        thread = threading.Thread(target=lambda: program.do("cuCtxSynchronize()"))
        thread.start()
        assert eventually(lambda: page.usage().busy == 1)
        thread.join(60)
        assert page.usage().busy == 0


def test_a_forked_child_takes_time_slices_too(place, program):
    page = Page(place)
    page.hold(SOON)
    child = program.do("(lambda pid: pid if pid else os._exit(0))(os.fork())")
    assert child > 0
    assert program.do(LAUNCH.format("None")) == SUCCESS
    assert os.getpid() != child
    time.sleep(0)
    assert program.do(f"cuMemFree_v2(a) + 0 * {MIB}") == SUCCESS
