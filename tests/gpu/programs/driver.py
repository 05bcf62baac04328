# SPDX-License-Identifier: Apache-2.0
"""What the programs here share: the driver API and NVML through ctypes, and lines of JSON.

A program prints objects as it goes (`say`) and `done` at its end: what it found before it hung or was killed is kept.
"""

import ctypes
import json
import os
import sys
import time

OUT_OF_MEMORY = 2
MIB, GIB = 1 << 20, 1 << 30
PINNED, MANAGED, ON_DEVICE, FLOAT, FD = 1, 2, 1, 0x20, 1
cuda = ctypes.CDLL("libcuda.so.1")
size_t, u64, ref, pointer = ctypes.c_size_t, ctypes.c_uint64, ctypes.byref, ctypes.c_void_p

# Busy for `length` nanoseconds of the GPU's own clock. On the simulated driver the kernel's name says how long.
PTX = """
.version 6.3
.target sm_52
.address_size 64
.visible .global .align 4 .b8 table[%(table)d];
.visible .entry %(name)s(.param .u64 length)
{
  .reg .u64 %%r<4>;
  .reg .pred %%more;
  ld.param.u64 %%r0, [length];
  mov.u64 %%r1, %%globaltimer;
again:
  mov.u64 %%r2, %%globaltimer;
  sub.u64 %%r3, %%r2, %%r1;
  setp.lt.u64 %%more, %%r3, %%r0;
  @%%more bra again;
  ret;
}
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


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


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


class Array3DDescriptor(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t, versions 2 and 3."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def say(**numbers):
    """Prints what was found so far."""
    print(json.dumps(numbers, default=str), flush=True)


def done():
    """The program has come to its end."""
    say(done=True)


def missing(why):
    """The machine lacks what this program needs."""
    say(missing=why)
    sys.exit(0)


def has(name):
    """Whether the driver has the function."""
    return hasattr(cuda, name)


def code(name, *args):
    """A driver function's answer."""
    return getattr(cuda, name)(*args)


def call(name, *args):
    """Calls a driver function and ends the program when it fails."""
    result = code(name, *args)
    if result != 0:
        sys.exit(f"{name} returned {result}")


def open_context():
    """Makes the primary context of device 0 current, and returns it."""
    context = pointer()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ref(context), 0)
    call("cuCtxSetCurrent", context)
    return context


def memory():
    """(free, total) as cuMemGetInfo has it."""
    free, total = size_t(), size_t()
    call("cuMemGetInfo_v2", ref(free), ref(total))
    return free.value, total.value


def free():
    """Free bytes as cuMemGetInfo has it."""
    return memory()[0]


def allocate(size):
    """(result code, address)."""
    address = u64()
    return cuda.cuMemAlloc_v2(ref(address), size_t(size)), address.value


def release(address):
    """cuMemFree."""
    call("cuMemFree_v2", u64(address))


def synchronize():
    """Waits for all work of the context."""
    call("cuCtxSynchronize")


# The compiler in a driver forgets old targets, and an old GPU knows no new ones.
TARGETS = ((b"6.3", b"sm_52"), (b"6.3", b"sm_70"), (b"7.0", b"sm_80"), (b"7.8", b"sm_90"))


def load(image):
    """(code, module) of cuModuleLoadData, for the first target that the driver takes. Refusals for memory are final."""
    module, result = pointer(), 0
    for version, target in TARGETS:
        text = image.replace(b".version 6.3", b".version " + version).replace(b"sm_52", target)
        result = cuda.cuModuleLoadData(ref(module), text)
        if result in (0, OUT_OF_MEMORY):
            break
    return result, module


def loaded(image):
    """The module; ends the program when it cannot be loaded."""
    result, module = load(image)
    if result != 0:
        sys.exit(f"cuModuleLoadData returned {result}")
    return module


def kernel(name="work_1us", table=4):
    """(module, function) of the kernel above, with a static array of TABLE bytes."""
    module, function = loaded((PTX % {"name": name, "table": table}).encode()), pointer()
    call("cuModuleGetFunction", ref(function), module, name.encode())
    return module, function


class Launch:
    """The kernel with its one parameter, ready to be launched; blocks of 32 threads."""

    def __init__(self, nanoseconds, name="work_1us", blocks=1):
        self.module, self.function = kernel(name)
        self.length, self.blocks = u64(nanoseconds), blocks
        self.params = (pointer * 1)(ctypes.addressof(self.length))

    def into(self, stream=None):
        """The answer of one launch."""
        return cuda.cuLaunchKernel(self.function, self.blocks, 1, 1, 32, 1, 1, 0, stream, self.params, None)


def new_stream(flags=1):
    """A stream; flags 1: it does not wait for the default one."""
    stream = pointer()
    call("cuStreamCreate", ref(stream), flags)
    return stream


def device_memory(handle_types=0):
    """Properties of pinned memory of device 0."""
    return AllocationProp(type=PINNED, handle_types=handle_types, location=Location(ON_DEVICE, 0))


def create(size, handle_types=0):
    """(code, handle) of cuMemCreate."""
    handle, prop = u64(), device_memory(handle_types)
    return cuda.cuMemCreate(ref(handle), size_t(size), ref(prop), u64(0)), handle.value


def reserve(size):
    """An address range without memory."""
    address = u64()
    call("cuMemAddressReserve", ref(address), size_t(size), size_t(0), u64(0), u64(0))
    return address.value


def map_at(address, size, handle):
    """Code of cuMemMap."""
    return cuda.cuMemMap(u64(address), size_t(size), size_t(0), u64(handle), u64(0))


def allow(address, size):
    """Makes a mapping readable and writable for device 0."""
    access = AccessDesc(Location(ON_DEVICE, 0), 3)
    return cuda.cuMemSetAccess(u64(address), size_t(size), ref(access), size_t(1))


def unmap(address, size):
    """Code of cuMemUnmap."""
    return cuda.cuMemUnmap(u64(address), size_t(size))


def new_pool(handle_types=0, kind=PINNED):
    """(code, pool)."""
    pool, props = pointer(), PoolProps(type=kind, handle_types=handle_types, location=Location(ON_DEVICE, 0))
    return cuda.cuMemPoolCreate(ref(pool), ref(props)), pool


def default_pool():
    """The device's own pool."""
    pool = pointer()
    call("cuDeviceGetDefaultMemPool", ref(pool), 0)
    return pool


RESERVED, USED = 5, 7


def pool_value(pool, attribute=RESERVED):
    """(code, value) of an attribute."""
    value = u64()
    return cuda.cuMemPoolGetAttribute(pool, attribute, ref(value)), value.value


def uuid():
    """UUID of device 0 as NVML writes it."""
    raw = (ctypes.c_ubyte * 16)()
    call("cuDeviceGetUuid_v2" if has("cuDeviceGetUuid_v2") else "cuDeviceGetUuid", ref(raw), 0)
    text = bytes(raw).hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class Nvml:
    """NVML's view of one GPU: the one that is named, else that of the run (GPU_UUID), else the first."""

    NOT_AVAILABLE = (1 << 64) - 1

    def __init__(self, name=None):
        self.lib, self.device = ctypes.CDLL("libnvidia-ml.so.1"), pointer()
        if self.lib.nvmlInit_v2() != 0:
            sys.exit("nvmlInit failed")
        name = name or os.environ.get("GPU_UUID")
        found = (
            self.lib.nvmlDeviceGetHandleByIndex_v2(0, ref(self.device))
            if name is None
            else self.lib.nvmlDeviceGetHandleByUUID(name.encode(), ref(self.device))
        )
        if found != 0:
            sys.exit(f"NVML finds no GPU: {found}")

    def memory(self):
        """(total, free, used)."""
        numbers = (ctypes.c_ulonglong * 3)()
        if self.lib.nvmlDeviceGetMemoryInfo(self.device, ref(numbers)) != 0:
            sys.exit("nvmlDeviceGetMemoryInfo failed")
        return tuple(numbers)

    def used(self):
        """Bytes in use on the GPU."""
        return self.memory()[2]

    def processes(self):
        """PID -> bytes; -1 where NVML does not say."""
        count, infos = ctypes.c_uint(256), (ProcessInfo * 256)()
        result = self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.device, ref(count), infos)
        if result != 0:
            sys.exit(f"nvmlDeviceGetComputeRunningProcesses_v3 returned {result}")
        return {
            infos[i].pid: -1 if infos[i].bytes == self.NOT_AVAILABLE else infos[i].bytes
            for i in range(count.value)
        }


def quantiles(times):
    """[p50, p99, count] of a list of nanoseconds."""
    ordered = sorted(times)
    return [
        ordered[len(ordered) // 2],
        ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        len(ordered),
    ]


def timed(function, times, seconds=10.0):
    """quantiles() of so many calls, fewer when the time is over."""
    taken, end = [], time.monotonic() + seconds
    while len(taken) < times and (time.monotonic() < end or len(taken) < 3):
        begun = time.perf_counter_ns()
        function()
        taken.append(time.perf_counter_ns() - begun)
    return quantiles(taken)
