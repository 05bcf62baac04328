# SPDX-License-Identifier: Apache-2.0
"""A process on the simulated driver that does what a test tells it.

Run as a program it reads one Python expression per line and answers with its value as one line of JSON. It reaches the
driver's entry points by their exact names through ctypes, so that a test decides which ABI is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from ctypes import byref, c_char, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

MIB = 1 << 20
GIB = 1 << 30

cu = ctypes.CDLL("libcuda.so.1")
nv = ctypes.CDLL("libnvidia-ml.so.1")


def call(name: str, *args: object) -> int:
    """Result code of any entry point; integers beyond 32 bits are passed as 64-bit ones."""
    library = cu if name.startswith("cu") else nv
    wide = [
        c_uint64(arg) if isinstance(arg, int) and not -(1 << 31) <= arg < 1 << 31 else arg for arg in args
    ]
    return int(getattr(library, name)(*wide))


def good(name: str, *args: object) -> None:
    code = call(name, *args)
    if code:
        raise RuntimeError(f"{name} returned {code}")


def context(device: int = 0) -> int:
    """Initialises, retains the device's primary context and makes it current."""
    handle = c_void_p()
    good("cuInit", 0)
    good("cuDevicePrimaryCtxRetain", byref(handle), device)
    good("cuCtxSetCurrent", handle)
    return handle.value or 0


def alloc(size: int) -> int:
    """Address, or minus the error code."""
    address = c_uint64(0)
    code = call("cuMemAlloc_v2", byref(address), c_size_t(size))
    return -code if code else address.value


def free(address: int) -> int:
    return call("cuMemFree_v2", c_uint64(address))


def info() -> tuple[int, int]:
    """Free and total bytes of the current context's GPU."""
    available, total = c_size_t(), c_size_t()
    good("cuMemGetInfo_v2", byref(available), byref(total))
    return available.value, total.value


def used() -> int:
    available, total = info()
    return total - available


def write(address: int, data: bytes) -> int:
    return call("cuMemcpyHtoD_v2", c_uint64(address), data, c_size_t(len(data)))


def read(address: int, size: int) -> str:
    """Bytes as hexadecimal digits."""
    buffer = ctypes.create_string_buffer(size)
    good("cuMemcpyDtoH_v2", buffer, c_uint64(address), c_size_t(size))
    return buffer.raw.hex()


def text(name: str, handle: int | c_void_p, size: int = 96) -> str:
    buffer = ctypes.create_string_buffer(size)
    good(name, c_void_p(handle) if isinstance(handle, int) else handle, buffer, c_uint(size))
    return buffer.value.decode()


def uuids() -> list[str]:
    """UUIDs of CUDA's devices in CUDA's order."""
    good("cuInit", 0)
    count = c_int()
    good("cuDeviceGetCount", byref(count))
    found = []
    for device in range(count.value):
        raw = (c_char * 16)()
        good("cuDeviceGetUuid_v2", raw, device)
        h = raw.raw.hex()
        found.append(f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}")
    return found


def proc(
    name: str, version: int, flags: int = 0, *, old: bool = False, preset: int = 0x1234
) -> tuple[int, int, int]:
    """(result, address, status) of cuGetProcAddress_v2, or of the first ABI, whose status is always -1."""
    address, status = c_void_p(preset), c_int(-1)
    if old:
        code = call("cuGetProcAddress", name.encode(), byref(address), version, c_uint64(flags))
    else:
        code = call(
            "cuGetProcAddress_v2", name.encode(), byref(address), version, c_uint64(flags), byref(status)
        )
    return code, address.value or 0, status.value


def export(name: str) -> int:
    """Address of an exported symbol."""
    return ctypes.cast(getattr(cu, name), c_void_p).value or 0


def handles(creator: str, *args: object) -> int:
    """A new handle from a call whose first argument is where it goes, or minus the error code."""
    handle = c_void_p()
    code = call(creator, byref(handle), *args)
    return -code if code else handle.value or 0


def function(name: str = "kernel", image: bytes = b"image") -> int:
    return handles("cuModuleGetFunction", c_void_p(handles("cuModuleLoadData", image)), name.encode())


def launch(kernel: int, stream: int = 0) -> int:
    return call("cuLaunchKernel", c_void_p(kernel), 1, 1, 1, 32, 1, 1, 0, c_void_p(stream), None, None)


def milliseconds(start: int, end: int) -> float:
    value = c_float()
    good("cuEventElapsedTime", byref(value), c_void_p(start), c_void_p(end))
    return value.value


def value64(name: str, *args: object) -> int:
    """What a call writes through its last argument, a 64-bit number."""
    value = c_uint64()
    good(name, *args, byref(value))
    return value.value


# --- graphs ---------------------------------------------------------------------------------------------------------


class AllocNodeParams(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS, with CUmemPoolProps written out."""

    _fields_ = [
        ("allocation_type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("device", c_int),
        ("rest_of_pool", c_char * 72),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("bytesize", c_size_t),
        ("address", c_uint64),
    ]


def graph_alloc(graph: int, size: int, device: int = 0, before: int = 0, where: int = 1) -> tuple[int, int]:
    """Node and address of an allocation that depends on the node BEFORE."""
    node = c_void_p()
    params = AllocNodeParams(allocation_type=1, location_type=where, device=device, bytesize=size)
    dependency = byref(c_void_p(before)) if before else None
    good(
        "cuGraphAddMemAllocNode",
        byref(node),
        c_void_p(graph),
        dependency,
        c_size_t(before > 0),
        byref(params),
    )
    return node.value or 0, params.address


def graph_free(graph: int, address: int, before: int = 0) -> int:
    """Node that frees the address, after the node BEFORE."""
    dependency = byref(c_void_p(before)) if before else None
    return handles(
        "cuGraphAddMemFreeNode", c_void_p(graph), dependency, c_size_t(before > 0), c_uint64(address)
    )


def graph_child(graph: int, child: int, move: bool = True) -> int:
    """A child node; the child graph moves into it, or is cloned. Minus the error code when it may not."""
    params = (c_uint64 * 32)(4, 0, child, 1 if move else 0)
    return handles("cuGraphAddNode", c_void_p(graph), None, c_size_t(0), params)


def graph_condition(graph: int, kind: int, value: int, size: int = 1) -> list[int]:
    """Bodies of a new conditional node (kind 0: if, 1: while, 2: switch) whose condition is VALUE at each launch."""
    context = c_void_p()
    good("cuCtxGetCurrent", byref(context))
    handle = c_uint64()
    good("cuGraphConditionalHandleCreate", byref(handle), c_void_p(graph), context, c_uint(value), c_uint(1))
    params = (c_uint64 * 32)(13, 0, handle.value, kind | size << 32, 0, context.value or 0)
    good("cuGraphAddNode", byref(c_void_p()), c_void_p(graph), None, c_size_t(0), params)
    return list((c_uint64 * size).from_address(params[4]))


def instantiate(graph: int, flags: int = 0) -> int:
    return handles("cuGraphInstantiateWithFlags", c_void_p(graph), c_uint64(flags))


def launch_graph(executable: int, stream: int = 0) -> int:
    return call("cuGraphLaunch", c_void_p(executable), c_void_p(stream))


def reserved(device: int = 0) -> int:
    """What the driver holds for graphs."""
    return value64("cuDeviceGetGraphMemAttribute", device, 2)


class MemLocation(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", MemLocation),
        ("win32", c_void_p),
        ("flags", c_char * 8),
    ]


class AccessDesc(ctypes.Structure):
    _fields_ = [("location", MemLocation), ("flags", c_int)]


def physical(size: int, device: int = 0, handle_types: int = 0) -> int:
    """cuMemCreate: a handle, or minus the error code."""
    prop = AllocationProp(type=1, handle_types=handle_types, location=MemLocation(1, device))
    handle = c_uint64()
    code = call("cuMemCreate", byref(handle), c_size_t(size), byref(prop), c_uint64(0))
    return -code if code else handle.value


def reserve(size: int) -> int:
    address = c_uint64()
    good("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
    return address.value


def map_physical(address: int, size: int, handle: int) -> int:
    code = call("cuMemMap", c_uint64(address), c_size_t(size), c_size_t(0), c_uint64(handle), c_uint64(0))
    desc = AccessDesc(MemLocation(1, 0), 3)
    return code or call("cuMemSetAccess", c_uint64(address), c_size_t(size), byref(desc), c_size_t(1))


# --- NVML -----------------------------------------------------------------------------------------------------------


def device(index: int) -> c_void_p:
    good("nvmlInit_v2")
    handle = c_void_p()
    good("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
    return handle


class MemoryLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t; that of Set is the same without its end."""

    _fields_ = [
        ("name_space", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def set_limit(group: str, hard: int, soft: int = 0, index: int = 0) -> int:
    limits = MemoryLimits(group.encode(), soft, hard)
    return call("nvmlDeviceSetMemoryLimits_v1", device(index), byref(limits))


def get_limit(group: str, index: int = 0) -> list[int]:
    """[soft, hard, used], or [minus the error code]."""
    limits = MemoryLimits(group.encode())
    code = call("nvmlDeviceGetMemoryLimits_v1", device(index), byref(limits))
    return [-code] if code else [limits.soft, limits.hard, limits.used]


def nvml_memory(index: int = 0) -> list[int]:
    """Total, free and used as nvmlDeviceGetMemoryInfo says; the second version must agree."""
    first, second = (c_uint64 * 3)(), (c_uint64 * 5)(40 | 2 << 24)
    good("nvmlDeviceGetMemoryInfo", device(index), first)
    good("nvmlDeviceGetMemoryInfo_v2", device(index), second)
    if (second[1], second[3]) != (first[0], first[1]):
        raise RuntimeError(f"{list(first)} and {list(second)}")
    return list(first)


class ProcessV1(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("used", ctypes.c_ulonglong)]


class ProcessV2(ctypes.Structure):
    _fields_ = [
        ("pid", c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    ]


class ProcessPrivate(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("padding", c_uint), ("used", ctypes.c_ulonglong), ("rest", c_char * 4112)]


def processes(index: int, kind: str = "Compute", suffix: str = "_v3") -> list[tuple[int, int]]:
    """(pid, bytes) of a GPU's processes."""
    entries = ((ProcessV1 if suffix == "" else ProcessV2) * 64)()
    count = c_uint(64)
    good(f"nvmlDeviceGet{kind}RunningProcesses{suffix}", device(index), byref(count), entries)
    return [(entry.pid, entry.used) for entry in entries[: count.value]]


def private_processes(index: int, slot: int = 213) -> list[tuple[int, int]]:
    """The same through the table that nvidia-smi reads."""
    handle = device(index)
    table = ctypes.POINTER(c_uint64)()
    good("nvmlInternalGetExportTable", byref(table), bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4"))
    entries = (ProcessPrivate * 64)()
    count = c_uint(64)
    lister = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)(table[slot])
    if lister(handle, ctypes.addressof(count), ctypes.addressof(entries)):
        raise RuntimeError("the private list failed")
    return [(entry.pid, entry.used) for entry in entries[: count.value]]


class Event(ctypes.Structure):
    _fields_ = [
        ("device", c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    ]


def event_set(*indices: int) -> int:
    """A set that hears of all XIDs of these GPUs."""
    good("nvmlInit_v2")
    made = c_void_p()
    good("nvmlEventSetCreate", byref(made))
    for index in indices:
        good("nvmlDeviceRegisterEvents", device(index), ctypes.c_ulonglong(8), made)
    return made.value or 0


def wait_event(made: int, timeout_ms: int) -> tuple[int, int, int]:
    """(result, XID, NVML index of the GPU)."""
    event = Event()
    code = call("nvmlEventSetWait_v2", c_void_p(made), byref(event), c_uint(timeout_ms))
    index = c_uint(0)
    if not code:
        good("nvmlDeviceGetIndex", c_void_p(event.device), byref(index))
    return code, event.data, index.value


def in_child(action: Callable[[], int]) -> int:
    """What ACTION returns (0 to 255) in a forked child."""
    pid = os.fork()
    if pid == 0:
        os._exit(action())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def race(rounds: int, *calls: tuple[object, ...]) -> list[list[int]]:
    """Each call again and again on a thread of its own, all at once; the codes that each gave."""
    codes: list[set[int]] = [set() for _ in calls]

    def run(index: int) -> None:
        name, *args = calls[index]
        for _ in range(rounds):
            codes[index].add(call(str(name), *args))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [sorted(each) for each in codes]


@contextlib.contextmanager
def _answering() -> Iterator[list[object]]:
    answer: list[object] = []
    try:
        yield answer
    except Exception as error:  # noqa: BLE001 - whatever it was, the test shall see it
        answer[:] = [{"error": f"{type(error).__name__}: {error}"}]


def main() -> None:
    for line in sys.stdin:
        with _answering() as answer:
            answer.append({"value": eval(line, globals())})
        print(json.dumps(answer[0]), flush=True)


if __name__ == "__main__":
    main()
