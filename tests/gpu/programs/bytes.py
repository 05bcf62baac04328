# SPDX-License-Identifier: Apache-2.0
"""What each operation takes of the GPU, by NVML: of this process, and of all. Run plain, or under the
library.

One object a step: `step`: [grown of this process, grown of the GPU, grown by cuMemGetInfo, microseconds].
The kernel of a step is launched once, so that what the driver loads lazily is seen where it comes.
"""

import ctypes
import os
import sys
import time

from driver import (
    GIB,
    MIB,
    AllocNodeParams,
    Launch,
    Nvml,
    PoolProps,
    allocate,
    allow,
    call,
    create,
    done,
    free,
    kernel,
    map_at,
    memory,
    new_pool,
    new_stream,
    open_context,
    pointer,
    ref,
    release,
    reserve,
    say,
    size_t,
    synchronize,
    u64,
    unmap,
)

steps, kept = {}, {}


class Gpu:
    """The GPU's bytes before and after a step."""

    def __init__(self):
        self.nvml = Nvml()
        self.context = False
        self.last = self.reading()

    def reading(self):
        """(own, all, free by CUDA)."""
        own = self.nvml.processes().get(os.getpid(), 0)
        return own, self.nvml.used(), free() if self.context else 0

    def step(self, name, action):
        """Does it, and says what it took."""
        begun = time.perf_counter_ns()
        answer = action()
        took = (time.perf_counter_ns() - begun) // 1000
        now = self.reading()
        quota = self.last[2] - now[2] if self.last[2] else 0
        steps[name] = [now[0] - self.last[0], now[1] - self.last[1], quota, took]
        say(**{f"step {name}": steps[name]})
        self.last = now
        return answer


def check(name, holds, saw):
    """One judgement."""
    say(**{f"check_{name}": [bool(holds), str(saw)]})


def blocks(count, size):
    """That many allocations."""
    kept[size] = [allocate(size)[1] for _ in range(count)]


def give(size):
    """Frees them."""
    for address in kept.pop(size):
        release(address)


def big_mapping():
    """1 GiB of physical memory, mapped in pieces of 2 MiB."""
    address = reserve(GIB)
    kept["mapping"] = address
    for at in range(0, GIB, 2 * MIB):
        _, handle = create(2 * MIB)
        map_at(address + at, 2 * MIB, handle)
        call("cuMemRelease", u64(handle))
    allow(address, GIB)


def cublas(path):
    """A handle of cuBLAS, and a product."""
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        return str(error)
    handle = pointer()
    if library.cublasCreate_v2(ref(handle)) != 0:
        return "cublasCreate_v2 failed"
    kept["cublas"] = (library, handle)
    return 0


def graph():
    """One launch of a graph with a memory node of 64 MiB."""
    made, node, end, runnable = (pointer() for _ in range(4))
    call("cuGraphCreate", ref(made), 0)
    params = AllocNodeParams(pool=PoolProps(type=1), bytesize=64 * MIB)
    params.pool.location.type = 1
    call("cuGraphAddMemAllocNode", ref(node), made, None, size_t(0), ref(params))
    call("cuGraphAddMemFreeNode", ref(end), made, ref(node), size_t(1), u64(params.dptr))
    call("cuGraphInstantiateWithFlags", ref(runnable), made, u64(0))
    call("cuGraphLaunch", runnable, None)
    synchronize()


def async_memory(size):
    """A block of the default pool."""
    address = u64()
    call("cuMemAllocAsync", ref(address), size_t(size), None)
    synchronize()
    kept["async"] = address


def async_free():
    """And back, with a trim."""
    pool = pointer()
    call("cuMemFreeAsync", kept["async"], None)
    synchronize()
    call("cuDeviceGetDefaultMemPool", ref(pool), 0)
    call("cuMemPoolTrimTo", pool, size_t(0))


def array():
    """A small mipmapped world: one 2D array of a single texel."""
    from driver import ArrayDescriptor

    kept["arrays"] = []
    for side in (1, 2048):
        made = pointer()
        call("cuArrayCreate_v2", ref(made), ref(ArrayDescriptor(side, side, 0x20, 1)))
        kept["arrays"].append(made)


def module(table):
    """A module with a static array."""
    kept["module"], _ = kernel("work_3us", table)


def second_context():
    """One that is made, not retained."""
    kept["context"] = pointer()
    call("cuCtxCreate_v2", ref(kept["context"]), 0, 0)


def memset(size):
    """Fills of both widths, which bring kernels of the driver's own."""
    _, address = allocate(size)
    call("cuMemsetD8_v2", u64(address), 0x5A, size_t(size))
    call("cuMemsetD32_v2", u64(address), 7, size_t(size // 4))
    synchronize()
    release(address)


def host():
    """Pinned host memory, and a copy each way."""
    pinned = pointer()
    call("cuMemAllocHost_v2", ref(pinned), size_t(16 * MIB))
    _, address = allocate(16 * MIB)
    call("cuMemcpyHtoD_v2", u64(address), pinned, size_t(16 * MIB))
    call("cuMemcpyDtoH_v2", pinned, u64(address), size_t(16 * MIB))
    release(address)
    call("cuMemFreeHost", pinned)


def main(blas):
    """Every step in its order."""
    call("cuInit", 0)
    gpu = Gpu()
    before = os.getpid() in gpu.nvml.processes()
    context = gpu.step("context", open_context)
    after = os.getpid() in gpu.nvml.processes()
    check("a_context_makes_it_listed", (before, after) == (False, True), [before, after])
    gpu.context, gpu.last = True, gpu.reading()
    say(total=memory()[1])
    gpu.step("1 byte", lambda: blocks(1, 1))
    gpu.step("31 x 64 KiB", lambda: blocks(31, 64 << 10))
    gpu.step("and 8 more", lambda: kept.update(more=[allocate(64 << 10)[1] for _ in range(8)]))
    gpu.step("2 MiB", lambda: blocks(1, 2 * MIB))
    gpu.step("2 MiB and 1 byte", lambda: blocks(1, 2 * MIB + 1))
    gpu.step("1 GiB", lambda: blocks(1, GIB))
    gpu.step("1 GiB freed", lambda: give(GIB))
    gpu.step(
        "the small ones freed",
        lambda: [
            give(1),
            give(2 * MIB),
            give(2 * MIB + 1),
            give(64 << 10),
            [release(a) for a in kept.pop("more")],
        ],
    )
    gpu.step("fills", lambda: memset(4 * MIB))
    gpu.step("copies", host)
    work = gpu.step("first kernel", lambda: Launch(1000))
    gpu.step("its launch", lambda: [work.into(), synchronize()])
    gpu.step("64 streams", lambda: [new_stream() for _ in range(64)])
    gpu.step(
        "launches in all of them",
        lambda: [Launch(1000).into(new_stream()) for _ in range(16)] and synchronize(),
    )
    gpu.step("module with 64 MiB", lambda: module(64 * MIB))
    gpu.step("module unloaded", lambda: call("cuModuleUnload", kept["module"]))
    gpu.step("1 byte of a pool", lambda: async_memory(1))
    gpu.step("given back", async_free)
    gpu.step("pool of its own", new_pool)
    gpu.step("graph of 64 MiB", graph)
    gpu.step("graph trimmed", lambda: call("cuDeviceGraphMemTrim", 0))
    gpu.step("two arrays", array)
    gpu.step("arrays gone", lambda: [call("cuArrayDestroy", one) for one in kept["arrays"]])
    gpu.step("1 GiB in 512 mappings", big_mapping)
    gpu.step("unmapped", lambda: [unmap(kept["mapping"] + at, 2 * MIB) for at in range(0, GIB, 2 * MIB)])
    gpu.step("second context", second_context)
    gpu.step("and gone", lambda: [call("cuCtxDestroy_v2", kept["context"]), call("cuCtxSetCurrent", context)])
    if blas:
        say(cublas=gpu.step("cublas", lambda: cublas(blas)))
    judge()
    done()


def judge():
    """What the design takes for granted of these numbers."""
    own = {name: values[0] for name, values in steps.items()}
    check("context_is_measured", 1 * MIB < own["context"] < 4 * GIB, own["context"])
    check(
        "contexts_cost_the_same",
        abs(own["second context"] - own["context"]) <= 64 * MIB or own["second context"] <= own["context"],
        [own["context"], own["second context"]],
    )
    check(
        "memory_is_seen_at_once",
        own["1 GiB"] == GIB and own["1 GiB freed"] == -GIB,
        [own["1 GiB"], own["1 GiB freed"]],
    )
    rounded = own["2 MiB"] == 2 * MIB and 0 < own["2 MiB and 1 byte"] <= 4 * MIB
    check(
        "rounded_by_2_mib",
        rounded,
        {name: own[name] for name in ("1 byte", "31 x 64 KiB", "and 8 more", "2 MiB", "2 MiB and 1 byte")},
    )
    check("static_arrays_are_seen", own["module with 64 MiB"] >= 64 * MIB, own["module with 64 MiB"])
    check(
        "unloading_gives_back",
        own["module unloaded"] <= -own["module with 64 MiB"] + 4 * MIB,
        own["module unloaded"],
    )
    check(
        "page_tables_are_small", own["1 GiB in 512 mappings"] - GIB <= 8 * MIB, own["1 GiB in 512 mappings"]
    )
    check(
        "own_and_gpu_agree",
        all(abs(v[0] - v[1]) <= 64 * MIB for v in steps.values()),
        {name: values[:2] for name, values in steps.items() if abs(values[0] - values[1]) > 64 * MIB}
        or "all within 64 MiB",
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
