# SPDX-License-Identifier: Apache-2.0
"""Captures, instantiates, launches and destroys graphs for SECONDS, while another thread launches, allocates and asks.

Every answer must be 0; a capture that another thread's call has spoilt is one that is not.
"""

import ctypes
import sys
import threading
import time

from driver import (
    MIB,
    Launch,
    allocate,
    call,
    cuda,
    done,
    new_stream,
    open_context,
    pointer,
    ref,
    release,
    say,
    size_t,
    u64,
)

GLOBAL, OWN_THREAD, RELAXED = 0, 1, 2
context, stop, wrong, rounds = open_context(), threading.Event(), {}, {"captures": 0, "beside": 0}
seconds = float(sys.argv[1])


def must(name, code):
    """Counts what is not 0."""
    if code != 0:
        key = f"{name}: {code}"
        wrong[key] = wrong.get(key, 0) + 1


def beside():
    """What another thread of a program does meanwhile; nothing that a capture forbids."""
    call("cuCtxSetCurrent", context)
    mode = ctypes.c_int(RELAXED)
    call("cuThreadExchangeStreamCaptureMode", ref(mode))
    stream, event, work = new_stream(), pointer(), Launch(20_000, "work_20us")
    call("cuEventCreate", ref(event), 2)
    while not stop.is_set():
        must("launch beside", work.into(stream))
        must("record beside", cuda.cuEventRecord(event, stream))
        must("query beside", cuda.cuEventQuery(event) % 600)
        code, address = allocate(2 * MIB)
        must("allocate beside", code)
        if code == 0:
            release(address)
        must("wait beside", cuda.cuStreamSynchronize(stream))
        rounds["beside"] += 1


def capture(work, stream, mode, memory):
    """One graph from its capture to its end."""
    graph, runnable, address = pointer(), pointer(), u64()
    must("begin", cuda.cuStreamBeginCapture_v2(stream, mode))
    for _ in range(5):
        must("launch", work.into(stream))
    if memory:
        must("allocate", cuda.cuMemAllocAsync(ref(address), size_t(4 * MIB), stream))
        must("free", cuda.cuMemFreeAsync(address, stream))
    must("end", cuda.cuStreamEndCapture(stream, ref(graph)))
    must("instantiate", cuda.cuGraphInstantiateWithFlags(ref(runnable), graph, u64(0)))
    for _ in range(3):
        must("launch graph", cuda.cuGraphLaunch(runnable, stream))
    must("wait", cuda.cuStreamSynchronize(stream))
    must("destroy", cuda.cuGraphExecDestroy(runnable) or cuda.cuGraphDestroy(graph))
    rounds["captures"] += 1


other = threading.Thread(target=beside)
other.start()
kernel, line, end = Launch(20_000, "work_20us"), new_stream(), time.monotonic() + seconds
number = 0
while time.monotonic() < end and len(wrong) < 20:
    capture(kernel, line, (GLOBAL, OWN_THREAD, RELAXED)[number % 3], number % 2 == 1)
    number += 1
stop.set()
other.join()
say(wrong=wrong, **rounds)
done()
