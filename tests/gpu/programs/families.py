"""Every family of allocations at the quota's edge, through ctypes. Arguments: family, limit in bytes. Prints JSON.

pool, vmm, array: take blocks until one is refused, report what the books and the card say, give all back.
graph:            a graph whose memory node fits, launched and trimmed, and one whose node does not.
mapped:           physical memory that is released while it is mapped stays charged until it is unmapped.

`used` is the growth that cuMemGetInfo shows, `real` the growth of the whole card as NVML in a process without the
library shows it: what other programs do meanwhile blurs it.
"""

import ctypes
import json
import subprocess
import sys

from driver import OUT_OF_MEMORY, call, cuda, memory, open_context

MIB = 1 << 20
BLOCK = 64 * MIB
LIMIT = int(sys.argv[2])
NVML_USED = """
import ctypes, sys
nvml, device, numbers = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
nvml.nvmlInit_v2(); nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(numbers)); print(numbers[2])
"""


class Location(ctypes.Structure):
    """CUmemLocation: a device by its ordinal."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class PoolProps(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


class AllocNodeParams(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS."""

    _fields_ = (
        ("pool", PoolProps),
        ("access", ctypes.c_void_p),
        ("access_count", ctypes.c_size_t),
        ("bytesize", ctypes.c_size_t),
        ("dptr", ctypes.c_uint64),
    )


class ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    )


PINNED, ON_DEVICE, FLOAT = 1, 1, 0x20


def free():
    """Free bytes as cuMemGetInfo has it."""
    return memory()[0]


def real_used():
    """Bytes in use on the whole card, asked by a process that has no quota."""
    done = subprocess.run(
        [sys.executable, "-c", NVML_USED], env={}, capture_output=True, text=True, check=False
    )
    return int(done.stdout or 0)


def until_refused(take):
    """Blocks taken, and the code of the refusal; without a refusal it ends soon after the limit."""
    taken = []
    while len(taken) < LIMIT // (16 * MIB) + 2:
        code, block = take()
        if code != 0:
            return taken, code
        taken.append(block)
    return taken, 0


def edge(take, give, block=BLOCK):
    """The common part: to the limit, back, and to the limit again."""
    before, real_before = free(), real_used()
    taken, code = until_refused(take)
    at_limit, real = free(), real_used() - real_before
    for one in taken:
        give(one)
    call("cuCtxSynchronize")
    settle()
    back = free()
    again, _ = until_refused(take)
    for one in again:
        give(one)
    return {
        "blocks": len(taken), "block": block, "code": code, "again": len(again),
        "used": before - at_limit, "real": real, "lost": before - back,
    }  # fmt: skip


def settle():
    """What the default pool keeps goes back to the card."""
    pool = ctypes.c_void_p()
    if hasattr(cuda, "cuDeviceGetDefaultMemPool"):
        call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)
        call("cuMemPoolTrimTo", pool, ctypes.c_size_t(0))


def pool():
    """cuMemAllocAsync on the default stream."""

    def take():
        address = ctypes.c_uint64()
        code = cuda.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(BLOCK), None)
        return code, address.value

    return edge(take, lambda address: call("cuMemFreeAsync", ctypes.c_uint64(address), None))


def properties():
    """Pinned memory of device 0."""
    return AllocationProp(type=PINNED, location=Location(ON_DEVICE, 0))


def take_physical():
    """cuMemCreate of a block."""
    handle, prop = ctypes.c_uint64(), properties()
    code = cuda.cuMemCreate(
        ctypes.byref(handle), ctypes.c_size_t(BLOCK), ctypes.byref(prop), ctypes.c_uint64(0)
    )
    return code, handle.value


def vmm():
    """cuMemCreate and cuMemRelease."""
    return edge(take_physical, lambda handle: call("cuMemRelease", ctypes.c_uint64(handle)))


def array():
    """Two-dimensional arrays of floats."""
    side = 4096
    description = ArrayDescriptor(side, side, FLOAT, 1)

    def take():
        made = ctypes.c_void_p()
        return cuda.cuArrayCreate_v2(ctypes.byref(made), ctypes.byref(description)), made.value

    return edge(take, lambda made: call("cuArrayDestroy", ctypes.c_void_p(made)), side * side * 4)


def mapped():
    """Release first, unmap later."""
    before = free()
    _, handle = take_physical()
    address, size = ctypes.c_uint64(), ctypes.c_size_t(BLOCK)
    zero = ctypes.c_uint64(0)
    call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero)
    call("cuMemMap", address, size, ctypes.c_size_t(0), ctypes.c_uint64(handle), zero)
    call("cuMemRelease", ctypes.c_uint64(handle))
    while_mapped = before - free()
    call("cuMemUnmap", address, size)
    return {"while_mapped": while_mapped, "after": before - free(), "block": BLOCK}


def graph_of(size):
    """An instantiated graph that takes SIZE bytes and frees them; (code of the first launch, exec)."""
    graph, node, released, runnable = (ctypes.c_void_p() for _ in range(4))
    call("cuGraphCreate", ctypes.byref(graph), 0)
    params = AllocNodeParams(pool=PoolProps(type=PINNED, location=Location(ON_DEVICE, 0)), bytesize=size)
    call("cuGraphAddMemAllocNode", ctypes.byref(node), graph, None, ctypes.c_size_t(0), ctypes.byref(params))
    call(
        "cuGraphAddMemFreeNode", ctypes.byref(released), graph, ctypes.byref(node), ctypes.c_size_t(1),
        ctypes.c_uint64(params.dptr),
    )  # fmt: skip
    code = cuda.cuGraphInstantiateWithFlags(ctypes.byref(runnable), graph, ctypes.c_ulonglong(0))
    if code == 0:
        code = cuda.cuGraphLaunch(runnable, None)
        call("cuCtxSynchronize")
    return code, runnable


def graph():
    """One that fits, and one that does not."""
    before = free()
    code, runnable = graph_of(BLOCK)
    held = before - free()
    over, _ = graph_of(LIMIT)
    call("cuGraphExecDestroy", runnable)
    call("cuDeviceGraphMemTrim", 0)
    return {"code": code, "held": held, "over": over, "after": before - free(), "block": BLOCK}


if __name__ == "__main__":
    open_context()
    answer = {"pool": pool, "vmm": vmm, "array": array, "mapped": mapped, "graph": graph}[sys.argv[1]]()
    print(json.dumps(answer | {"refusal": OUT_OF_MEMORY}))
