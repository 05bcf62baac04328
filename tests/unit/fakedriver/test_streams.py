# SPDX-License-Identifier: Apache-2.0
"""Streams, events and the time of work."""

from __future__ import annotations

CAPTURED = "call('cuStreamIsCapturing', c_void_p({}), byref(c_int()))"


def test_kernels_take_the_time_in_their_name(small):
    peer = small.peer()
    peer("context(0)")
    stream = peer("handles('cuStreamCreate', 0)")
    start, end = (peer("handles('cuEventCreate', 0)") for _ in range(2))
    kernel = peer("function('work_50ms')")
    assert peer(f"call('cuEventRecord', c_void_p({start}), c_void_p({stream}))") == 0
    assert peer(f"launch({kernel}, {stream})") == 0
    assert peer(f"call('cuEventRecord', c_void_p({end}), c_void_p({stream}))") == 0
    assert peer(f"call('cuStreamQuery', c_void_p({stream}))") == 600
    assert peer(f"call('cuEventQuery', c_void_p({end}))") == 600
    assert peer(f"call('cuEventElapsedTime', byref(c_float()), c_void_p({start}), c_void_p({end}))") == 600
    assert peer(f"call('cuStreamSynchronize', c_void_p({stream}))") == 0
    assert peer(f"call('cuStreamQuery', c_void_p({stream}))") == 0
    assert peer(f"milliseconds({start}, {end})") >= 50


def test_an_event_makes_another_stream_wait(small):
    peer = small.peer()
    peer("context(0)")
    first, second = (peer("handles('cuStreamCreate', 1)") for _ in range(2))
    event = peer("handles('cuEventCreate', 2)")
    peer(f"launch(function('work_200ms'), {first})")
    peer(f"good('cuEventRecord', c_void_p({event}), c_void_p({first}))")
    assert peer(f"call('cuStreamQuery', c_void_p({second}))") == 0
    assert peer(f"call('cuStreamWaitEvent_ptsz', c_void_p({second}), c_void_p({event}), 0)") == 0
    assert peer(f"call('cuStreamQuery', c_void_p({second}))") == 600
    other = peer("handles('cuEventCreate', 0)")
    assert peer(f"call('cuEventElapsedTime', byref(c_float()), c_void_p({event}), c_void_p({other}))") == 400


def test_callbacks_and_host_functions(small):
    peer = small.peer()
    peer("context(0)")
    peer("globals().update(seen=[])")
    peer("globals().update(host=ctypes.CFUNCTYPE(None, c_void_p)(lambda data: seen.append(data)))")
    assert peer("[call('cuLaunchHostFunc', None, host, c_void_p(5)), seen]") == [0, [5]]


def test_destroyed_handles_are_refused(small):
    peer = small.peer()
    peer("context(0)")
    stream = peer("handles('cuStreamCreate', 0)")
    assert peer(f"call('cuStreamDestroy_v2', c_void_p({stream}))") == 0
    for name in ("cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamQuery"):
        assert peer(f"call({name!r}, c_void_p({stream}))") == 400
    assert peer("call('cuEventSynchronize', c_void_p(64))") == 400
    assert peer("call('cuStreamSynchronize', c_void_p(4096))") == 400
    assert peer("[call('cuStreamSynchronize', c_void_p(default)) for default in (0, 1, 2)]") == [0, 0, 0]


def test_values_in_memory(small):
    peer = small.peer()
    peer("context(0)")
    address = peer("alloc(64)")
    assert peer(f"call('cuStreamWriteValue32_v2', None, c_uint64({address}), c_uint(0xabcd), 0)") == 0
    assert peer(f"call('cuStreamWriteValue64_v2_ptsz', None, c_uint64({address + 8}), c_uint64(1), 0)") == 0
    assert peer(f"read({address}, 16)") == "cdab0000000000000100000000000000"
    assert peer(f"call('cuStreamWaitValue32_v2', None, c_uint64({address}), c_uint(0xabcd), 1)") == 0
    assert peer(f"call('cuStreamWaitValue32_v2', None, c_uint64({address}), c_uint(0xabce), 0)") == 801
    assert peer(f"call('cuStreamWriteValue32_v2', None, c_uint64({address + 62}), c_uint(1), 0)") == 1


def test_utilisation_follows_work(small):
    peer, watcher = small.peer(), small.peer()
    peer("context(0)")
    ask = "[u := (c_uint * 2)(), good('nvmlDeviceGetUtilizationRates', device({}), u), u[0]][2]"
    assert watcher(ask.format(0)) == 0
    peer("[launch(function('work_100ms')), good('cuCtxSynchronize')]")
    assert 0 < watcher(ask.format(0)) <= 100
    assert watcher(ask.format(1)) == 0


def test_launches_are_counted_per_process(small):
    peer = small.peer()
    peer("context(0)")
    peer("globals().update(kernel=function())")
    assert peer("[launch(kernel) for _ in range(1000)].count(0)") == 1000
    peer(
        "exec('import threading as t; ts=[t.Thread(target=lambda: [context(0)] + [launch(kernel) for _ in range(500)]) "
        "for _ in range(12)]; [x.start() for x in ts]; [x.join() for x in ts]', globals())"
    )
    assert small.state()["processes"][0]["launches"] == 1000 + 12 * 500


def test_records_elsewhere_than_the_last_launch_are_counted(small):
    peer = small.peer()
    peer("context(0)")
    first, second = (peer("handles('cuStreamCreate', 1)") for _ in range(2))
    event, kernel = peer("handles('cuEventCreate', 2)"), peer("function('kernel')")
    record = f"good('cuEventRecord', c_void_p({event}), c_void_p({{}}))"
    peer(record.format(first))
    assert small.state()["processes"][0]["records"] == 0, "this thread has launched nothing"
    for into, recorded in ((first, first), (first, second), (0, 0), (0, first), (second, 0)):
        peer(f"launch({kernel}, {into})")
        peer(record.format(recorded))
    process = small.state()["processes"][0]
    assert (process["records"], process["foreign_records"]) == (5, 3)


def test_bad_launches(small):
    peer = small.peer()
    peer("context(0)")
    kernel = peer("function()")
    shape = "call('cuLaunchKernel', c_void_p({}), {}, {}, 1, {}, 1, 1, 0, None, None, None)"
    assert peer(shape.format(kernel, 1, 1, 1024)) == 0
    assert peer(shape.format(kernel, 0, 1, 1)) == 1
    assert peer(shape.format(kernel, 1, 1, 1025)) == 1
    assert peer(shape.format(4096, 1, 1, 1)) == 400
    assert (
        peer(f"call('cuLaunchKernel_ptsz', c_void_p({kernel}), 1, 1, 1, 1, 1, 1, 0, None, None, None)") == 0
    )
    assert (
        peer(f"call('cuLaunchCooperativeKernel', c_void_p({kernel}), 1, 1, 1, 1, 1, 1, 0, None, None)") == 0
    )
    assert small.state()["processes"][0]["launches"] == 3


BEGIN = "call('cuStreamBeginCapture_v2', c_void_p({}), {})"
END = "[g := c_void_p(), call('cuStreamEndCapture', c_void_p({}), byref(g))][1]"
STATUS = "[s := c_int(), call('cuStreamIsCapturing', c_void_p({}), byref(s)), s.value][1:]"
MODE = "call('cuThreadExchangeStreamCaptureMode', byref(c_int({})))"
GLOBAL, RELAXED = 0, 2


def test_waiting_for_a_stream_ends_what_it_captures(small):
    peer = small.peer()
    peer("context(0)")
    stream = peer("handles('cuStreamCreate', 0)")
    assert peer(BEGIN.format(stream, RELAXED)) == 0
    assert peer(STATUS.format(stream)) == [0, 1]
    assert peer(f"call('cuStreamSynchronize', c_void_p({stream}))") == 900
    assert peer(STATUS.format(stream)) == [0, 2]
    assert peer(END.format(stream)) == 901
    assert peer(STATUS.format(stream)) == [0, 0]


def test_a_capture_forbids_waiting_unless_the_thread_takes_it_upon_itself(small):
    peer = small.peer()
    peer("context(0)")
    stream, other = peer("handles('cuStreamCreate', 1)"), peer("handles('cuStreamCreate', 1)")
    assert peer(BEGIN.format(stream, GLOBAL)) == 0
    assert peer(MODE.format(RELAXED)) == 0
    assert peer(f"call('cuStreamSynchronize', c_void_p({other}))") == 0
    assert peer(END.format(stream)) == 0
    assert peer(BEGIN.format(stream, GLOBAL)) == 0
    assert peer(MODE.format(GLOBAL)) == 0
    assert peer(f"call('cuStreamSynchronize', c_void_p({other}))") == 900
    assert peer(END.format(stream)) == 901


def test_the_shared_default_stream_is_out_of_reach_while_another_is_captured(small):
    peer = small.peer()
    peer("context(0)")
    stream = peer("handles('cuStreamCreate', 0)")
    assert peer(BEGIN.format(stream, RELAXED)) == 0
    assert peer(STATUS.format(0))[0] == 906
    assert peer(STATUS.format(stream)) == [0, 1], "asking does no harm"
    assert peer(MODE.format(RELAXED)) == 0
    assert peer("call('cuStreamSynchronize', None)") == 906
    assert peer(END.format(stream)) == 901
    assert peer("call('cuStreamSynchronize', None)") == 0
