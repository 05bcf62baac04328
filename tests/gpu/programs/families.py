# SPDX-License-Identifier: Apache-2.0
"""Every family of allocations at the quota's edge. Arguments: family, limit in bytes.

linear, pitched, pool, own_pool, vmm, array, mipmap: take blocks until one is refused, report what the allocation table
and the GPU say, give all back, and take them again. The others tell what one operation costs and when it is
refused.

`used` is the growth that cuMemGetInfo shows, `real` the growth of the whole GPU as NVML shows it to a
process without the library: what other programs do meanwhile blurs it.
"""

import ctypes
import subprocess
import sys

from driver import (
    GIB,
    MIB,
    PTX,
    AllocNodeParams,
    Array3DDescriptor,
    ArrayDescriptor,
    Location,
    PoolProps,
    allocate,
    call,
    create,
    cuda,
    default_pool,
    done,
    free,
    kernel,
    load,
    map_at,
    memory,
    new_pool,
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
from runtime import used as real_used

BLOCK = 64 * MIB
LIMIT = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[1] != "open" else 0
PINNED, ON_DEVICE, FLOAT = 1, 1, 0x20


def until_refused(take):
    """Blocks taken, and the code of the refusal; without a refusal it ends soon after the limit."""
    taken = []
    while len(taken) < LIMIT // (16 * MIB) + 2:
        code, block = take()
        if code != 0:
            return taken, code
        taken.append(block)
    return taken, 0


def edge(take, give, block=BLOCK, settle=None):
    """The common part: to the limit, back, and to the limit again."""
    give(take()[1])  # what the family needs once is there
    synchronize()
    (settle or trim)()
    before, real_before = free(), real_used()
    taken, code = until_refused(take)
    at_limit, real = free(), real_used() - real_before
    say(blocks=len(taken), block=block, code=code, used=before - at_limit, real=real)
    for one in taken:
        give(one)
    synchronize()
    (settle or trim)()
    say(lost=before - free())
    again, _ = until_refused(take)
    for one in again:
        give(one)
    say(again=len(again))


def trim():
    """What the default pool keeps goes back to the GPU."""
    call("cuMemPoolTrimTo", default_pool(), size_t(0))


def linear():
    """cuMemAlloc."""

    def take():
        code, address = allocate(BLOCK)
        return code, address

    edge(take, release)


def pitched():
    """cuMemAllocPitch, with a width that is a pitch already."""

    def take():
        address, pitch = u64(), size_t()
        code = cuda.cuMemAllocPitch_v2(ref(address), ref(pitch), size_t(8192), size_t(BLOCK // 8192), 4)
        return code, address.value

    edge(take, release)


def pool():
    """cuMemAllocAsync on the default stream."""

    def take():
        address = u64()
        return cuda.cuMemAllocAsync(ref(address), size_t(BLOCK), None), address.value

    edge(take, lambda address: call("cuMemFreeAsync", u64(address), None))


def own_pool():
    """A pool that the program made."""
    _, made = new_pool()

    def take():
        address = u64()
        return cuda.cuMemAllocFromPoolAsync(ref(address), size_t(BLOCK), made, None), address.value

    edge(
        take,
        lambda address: call("cuMemFreeAsync", u64(address), None),
        settle=lambda: call("cuMemPoolTrimTo", made, size_t(0)),
    )


def vmm():
    """cuMemCreate and cuMemRelease."""
    edge(lambda: create(BLOCK), lambda handle: call("cuMemRelease", u64(handle)))


def array():
    """Two-dimensional arrays of floats."""
    side = 4096
    description = ArrayDescriptor(side, side, FLOAT, 1)

    def take():
        made = pointer()
        return cuda.cuArrayCreate_v2(ref(made), ref(description)), made.value

    edge(take, lambda made: call("cuArrayDestroy", pointer(made)), side * side * 4)


def mipmap():
    """Mipmapped arrays of one level, which are as large as arrays."""
    side = 4096
    description = Array3DDescriptor(side, side, 0, FLOAT, 1, 0)

    def take():
        made = pointer()
        return cuda.cuMipmappedArrayCreate(ref(made), ref(description), 1), made.value

    edge(take, lambda made: call("cuMipmappedArrayDestroy", pointer(made)), side * side * 4)


def mapped():
    """Release first, unmap later."""
    before = free()
    _, handle = create(BLOCK)
    address = reserve(BLOCK)
    map_at(address, BLOCK, handle)
    call("cuMemRelease", u64(handle))
    say(while_mapped=before - free(), block=BLOCK)
    unmap(address, BLOCK)
    say(after=before - free())


def graph_of(size):
    """(code of the first launch, exec) of a graph that takes SIZE bytes and frees them."""
    made, node, released, runnable = (pointer() for _ in range(4))
    call("cuGraphCreate", ref(made), 0)
    params = AllocNodeParams(pool=PoolProps(type=PINNED, location=Location(ON_DEVICE, 0)), bytesize=size)
    call("cuGraphAddMemAllocNode", ref(node), made, None, size_t(0), ref(params))
    call("cuGraphAddMemFreeNode", ref(released), made, ref(node), size_t(1), u64(params.dptr))
    code = cuda.cuGraphInstantiateWithFlags(ref(runnable), made, u64(0))
    if code == 0:
        code = cuda.cuGraphLaunch(runnable, None)
        synchronize()
    return code, runnable


def graph():
    """One that fits, and one that does not."""
    before = free()
    code, runnable = graph_of(BLOCK)
    say(code=code, held=before - free(), block=BLOCK)
    over, _ = graph_of(LIMIT)
    call("cuGraphExecDestroy", runnable)
    call("cuDeviceGraphMemTrim", 0)
    say(over=over, after=before - free())


def managed():
    """One block, and the refusal of one as large as the quota: the GPU has room for that."""
    before, address = free(), u64()
    code = cuda.cuMemAllocManaged(ref(address), size_t(BLOCK), 1)
    say(code=code, held=before - free(), block=BLOCK)
    say(over=cuda.cuMemAllocManaged(ref(u64()), size_t(LIMIT), 1))
    release(address.value)
    say(after=before - free())


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, passed by value."""

    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def ipc():
    """Exported here, opened by another process of the quota, which says what that took of it."""
    before, handle = free(), IpcHandle()
    _, address = allocate(GIB)
    call("cuIpcGetMemHandle", ref(handle), u64(address))
    say(exported=before - free(), block=GIB)
    command = [sys.executable, __file__, "open", bytes(handle).hex()]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    words = child.stdout.split()
    if len(words) != 2:
        sys.exit(f"the other process ended with {child.returncode} and said {child.stdout!r}")
    say(opened=int(words[0]), opening_took=int(words[1]))


def open_handle(text):
    """The other process of ipc(): its code, and what opening took."""
    open_context()
    before, address = free(), u64()
    code = cuda.cuIpcOpenMemHandle_v2(ref(address), IpcHandle.from_buffer_copy(bytes.fromhex(text)), 1)
    print(code, before - free(), flush=True)
    sys.exit(0)


def module():
    """A static array that fits, and one for which nothing is left."""
    before = free()
    made, _ = kernel("work_1us", BLOCK)
    say(held=before - free(), block=BLOCK)
    call("cuModuleUnload", made)
    say(after=before - free())
    code, address = allocate(free() - BLOCK // 2)
    text = (PTX % {"name": "work_2us", "table": 2 * BLOCK}).encode()
    say(left=free(), filled=code, over=load(text)[0])
    if code == 0:
        release(address)


def heap():
    """A heap that fits, and one that does not."""
    before, value = free(), size_t()
    call("cuCtxGetLimit", ref(value), 2)
    code = cuda.cuCtxSetLimit(2, size_t(value.value + BLOCK))
    say(code=code, held=before - free(), block=BLOCK)
    say(over=cuda.cuCtxSetLimit(2, size_t(LIMIT)))


if __name__ == "__main__":
    if sys.argv[1] == "open":
        open_handle(sys.argv[2])
    open_context()
    say(total=memory()[1])
    families = (
        linear,
        pitched,
        pool,
        own_pool,
        vmm,
        array,
        mipmap,
        mapped,
        graph,
        managed,
        ipc,
        module,
        heap,
    )
    next(one for one in families if one.__name__ == sys.argv[1])()
    done()
