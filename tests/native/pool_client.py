# SPDX-License-Identifier: Apache-2.0
"""A process that uses stream-ordered memory, and evaluates what a test tells it (tests/unit/fakedriver/client.py)."""

from __future__ import annotations

import ctypes
import random
import threading
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_ushort, c_void_p
from typing import NamedTuple

from tests.unit.fakedriver import client
from tests.unit.fakedriver.client import (
    MIB,
    MemLocation,
    call,
    context,
    function,
    good,
    handles,
    launch,
    value64,
)

DEVICE, HOST, NUMA, NOWHERE = 1, 2, 3, 0
PINNED, MANAGED = 1, 2
THRESHOLD, RESERVED, USED = 4, 5, 7
GLOBAL, RELAXED = 0, 2
INVALIDATED = 2


class Names(NamedTuple):
    """The entry points of one kind of default stream."""

    take: str
    take_from: str
    give: str
    sync: str


TWINS = {
    "": Names("cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuStreamSynchronize"),
    "_ptsz": Names(
        "cuMemAllocAsync_ptsz",
        "cuMemAllocFromPoolAsync_ptsz",
        "cuMemFreeAsync_ptsz",
        "cuStreamSynchronize_ptsz",
    ),
}


class PoolProps(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", MemLocation),
        ("security", c_void_p),
        ("most", c_size_t),
        ("usage", c_ushort),
        ("reserved", c_char * 54),
    ]


def take(size: int, stream: int = 0, pool: int = 0, twin: str = "") -> int:
    """An address, or minus the error code. A refused call leaves the output alone."""
    address = c_uint64(0x5555)
    names = TWINS[twin]
    if pool:
        code = call(names.take_from, byref(address), c_size_t(size), c_void_p(pool), c_void_p(stream))
    else:
        code = call(names.take, byref(address), c_size_t(size), c_void_p(stream))
    assert code == 0 or address.value == 0x5555
    return -code if code else address.value


def give(address: int, stream: int = 0, twin: str = "") -> int:
    return call(TWINS[twin].give, c_uint64(address), c_void_p(stream))


def sync(stream: int = 0, twin: str = "") -> int:
    return call(TWINS[twin].sync, c_void_p(stream))


def make_pool(
    device: int = 0, where: int = DEVICE, kind: int = PINNED, most: int = 0, handle_types: int = 0
) -> int:
    props = PoolProps(type=kind, handle_types=handle_types, location=MemLocation(where, device), most=most)
    return handles("cuMemPoolCreate", byref(props))


def default_pool(device: int = 0) -> int:
    return handles("cuDeviceGetDefaultMemPool", device)


def keep(pool: int, threshold: int) -> int:
    return call("cuMemPoolSetAttribute", c_void_p(pool), THRESHOLD, byref(c_uint64(threshold)))


def trim(pool: int, least: int = 0) -> int:
    return call("cuMemPoolTrimTo", c_void_p(pool), c_size_t(least))


def destroy(pool: int) -> int:
    return call("cuMemPoolDestroy", c_void_p(pool))


def attribute(pool: int, which: int) -> int:
    return value64("cuMemPoolGetAttribute", c_void_p(pool), which)


def make_stream(flags: int = 0) -> int:
    return handles("cuStreamCreate", flags)


def begin_capture(stream: int, mode: int = GLOBAL) -> int:
    return call("cuStreamBeginCapture_v2", c_void_p(stream), mode)


def end_capture(stream: int) -> int:
    """A graph, or minus the error code."""
    graph = c_void_p()
    code = call("cuStreamEndCapture", c_void_p(stream), byref(graph))
    return -code if code else graph.value or 0


def event_sync(stream: int) -> int:
    event = c_void_p(handles("cuEventCreate", 0))
    good("cuEventRecord", event, c_void_p(stream))
    return call("cuEventSynchronize", event)


def gpu_used(index: int = 0) -> int:
    """Bytes used of a GPU as NVML shows it: physically, in a process without the library."""
    memory = (c_uint64 * 3)()
    good("nvmlDeviceGetMemoryInfo", client.device(index), memory)
    return memory[2]


def race(threads: int, rounds: int, size: int, pool: int = 0) -> list[int]:
    """THREADS allocate and free up to three blocks each on streams of their own; in the end all hold what they get at
    the same time, however few of them the machine runs at once. Codes other than success."""
    current, codes, all_here = c_void_p(), list[int](), threading.Barrier(threads)
    good("cuCtxGetCurrent", byref(current))

    def run(seed: int) -> None:
        good("cuCtxSetCurrent", current)
        chance, stream, mine = random.Random(seed), make_stream(1), list[int]()
        for _ in range(rounds):
            if len(mine) < 3:
                got = take(chance.randrange(1, size), stream, pool)
                (mine if got > 0 else codes).append(abs(got))
            if mine and chance.random() < 0.6:
                give(mine.pop(chance.randrange(len(mine))), stream)
            if chance.random() < 0.1:
                sync(stream)
        while len(mine) < 3 and (got := take(size // 2, stream, pool)) > 0:
            mine.append(got)
        all_here.wait(timeout=60)
        for address in mine:
            give(address, stream)
        sync(stream)

    running = [threading.Thread(target=run, args=(seed,)) for seed in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return codes


client.__dict__.update({name: value for name, value in globals().items() if not name.startswith("_")})

if __name__ == "__main__":
    _ = (MIB, context, function, launch)
    client.main()
