# SPDX-License-Identifier: Apache-2.0
"""What the library takes for granted about the driver, asked of the driver itself: one function a subject.

Each prints what it saw, and `check_NAME: [holds, saw]` for what it judges. Runs without the library. Nothing
here asks for more than 300 MiB that it gets, and for managed memory of 8 MiB.
"""

import ctypes
import os
import sys
import threading

from driver import (
    FD,
    MANAGED,
    MIB,
    OUT_OF_MEMORY,
    PINNED,
    RESERVED,
    USED,
    AllocNodeParams,
    Array3DDescriptor,
    Launch,
    Location,
    Nvml,
    PoolProps,
    allocate,
    allow,
    call,
    code,
    create,
    cuda,
    default_pool,
    done,
    has,
    kernel,
    map_at,
    missing,
    new_pool,
    new_stream,
    open_context,
    pointer,
    pool_value,
    ref,
    release,
    reserve,
    say,
    size_t,
    synchronize,
    u64,
    unmap,
    uuid,
)

RELAXED, NOT_READY, TOO_MUCH = 2, 600, 1 << 46
LEGACY, PER_THREAD = pointer(1), pointer(2)


def check(name, holds, saw):
    """One judgement."""
    say(**{f"check_{name}": [bool(holds), str(saw)]})


def relaxed():
    """This thread's capture mode is relaxed; the mode before."""
    mode = ctypes.c_int(RELAXED)
    call("cuThreadExchangeStreamCaptureMode", ref(mode))
    return mode


def failures():
    """Refusals, and a forked child."""
    open_context()
    mark, answers = 0x5A5A, {}
    for name in ("cuMemAlloc_v2", "cuMemCreate", "cuMemAllocAsync", "cuMemAllocPitch_v2"):
        out, pitch, prop = u64(mark), size_t(mark), PoolProps()
        if name == "cuMemAlloc_v2":
            result = code(name, ref(out), size_t(TOO_MUCH))
        elif name == "cuMemAllocAsync":
            result = code(name, ref(out), size_t(TOO_MUCH), None)
        elif name == "cuMemAllocPitch_v2":
            result = code(name, ref(out), ref(pitch), size_t(1 << 26), size_t(1 << 20), 4)
        else:
            prop.type, prop.location = PINNED, Location(1, 0)
            result = code(name, ref(out), size_t(TOO_MUCH), ref(prop), u64(0))
        answers[name] = [result, out.value in (mark, 0)]
    say(answers=answers)
    check("refusal_is_2", all(result == OUT_OF_MEMORY for result, _ in answers.values()), answers)
    check("outputs_untouched", all(same for result, same in answers.values()), answers)
    child = os.fork()
    if child == 0:
        os._exit(min(255, cuda.cuInit(0) or cuda.cuMemAlloc_v2(ref(u64()), size_t(4096))))
    _, status = os.waitpid(child, 0)
    check("forked_child_is_refused", os.WIFEXITED(status) and os.WEXITSTATUS(status) == 3, status >> 8)


def attempt(name, action):
    """Does ACTION while another stream is captured, with this thread's mode relaxed: its code, and the
    capture's end.
    """
    stream, graph = new_stream(), pointer()
    call("cuStreamBeginCapture_v2", stream, 0)
    mode = relaxed()
    result = action(stream)
    cuda.cuThreadExchangeStreamCaptureMode(ref(mode))
    ended = cuda.cuStreamEndCapture(stream, ref(graph))
    if ended == 0 and graph.value:
        cuda.cuGraphDestroy(graph)
    cuda.cuStreamDestroy_v2(stream)
    return [result, ended]


def capture():
    """What may be called while a stream is captured, in relaxed mode."""
    open_context()
    event, other, status = pointer(), new_stream(), ctypes.c_int()
    call("cuEventCreate", ref(event), 2)
    call("cuEventRecord", event, other)
    actions = {
        "cuMemPoolTrimTo": lambda _: cuda.cuMemPoolTrimTo(default_pool(), size_t(0)),
        "cuStreamSynchronize of another": lambda _: cuda.cuStreamSynchronize(other),
        "cuStreamQuery of another": lambda _: cuda.cuStreamQuery(other),
        "cuEventQuery": lambda _: cuda.cuEventQuery(event),
        "cuDeviceGraphMemTrim": lambda _: cuda.cuDeviceGraphMemTrim(0),
        "cuMemAlloc_v2": lambda _: allocate(4096)[0],
        "cuMemPoolGetAttribute": lambda _: pool_value(default_pool())[0],
        "cuEventCreate": lambda _: cuda.cuEventCreate(ref(pointer()), 2),
        "cuEventRecord of another": lambda _: cuda.cuEventRecord(event, other),
        "cuCtxGetDevice": lambda _: cuda.cuCtxGetDevice(ref(ctypes.c_int())),
        "cuStreamIsCapturing of it": lambda stream: cuda.cuStreamIsCapturing(stream, ref(status)),
    }
    found = {name: attempt(name, action) for name, action in actions.items()}
    say(in_capture=found)
    check(
        "relaxed_calls_pass",
        all(result == [0, 0] for result in found.values()),
        {name: result for name, result in found.items() if result != [0, 0]}
        or "all 0, all captures ended well",
    )
    check("capturing_is_told", status.value == 1, status.value)
    legacy = {"blocking": None, "answer": None}
    stream, graph = new_stream(0), pointer()
    call("cuStreamBeginCapture_v2", stream, 0)
    mode = relaxed()
    legacy["answer"] = cuda.cuStreamIsCapturing(LEGACY, ref(status))
    cuda.cuThreadExchangeStreamCaptureMode(ref(mode))
    legacy["end"] = cuda.cuStreamEndCapture(stream, ref(graph))
    check("asking_for_legacy_is_harmless", legacy["answer"] != 0 and legacy["end"] == 0, legacy)
    address = u64()
    call("cuStreamBeginCapture_v2", other, 0)
    before = pool_value(default_pool())[1]
    result = cuda.cuMemAllocAsync(ref(address), size_t(64 * MIB), other)
    ended = cuda.cuStreamEndCapture(other, ref(graph))
    after = pool_value(default_pool())[1]
    check(
        "captured_allocation_takes_nothing",
        result == ended == 0 and after == before,
        [result, ended, before, after],
    )


def pools():
    """Chunks, what gives memory back, and what a pool says when it is no more."""
    context, address = open_context(), u64()
    _, pool = new_pool()
    current, sizes = pointer(), []
    call("cuDeviceGetMemPool", ref(current), 0)
    handles = [current.value, default_pool().value, default_pool().value]
    check("the_default_pool_has_one_handle", len(set(handles)) == 1, handles)
    for size in (1, 1 * MIB, 3 * MIB, 40 * MIB, 100 * MIB):
        call("cuMemAllocFromPoolAsync", ref(address), size_t(size), pool, None)
        sizes.append([size, pool_value(pool)[1], address.value])
    synchronize()
    full = pool_value(pool)[1]
    say(reserved_by_size=[[size, reserved] for size, reserved, _ in sizes])
    check("pool_tells_what_it_holds", full >= 144 * MIB, full)
    check("pool_grows_in_chunks", all(reserved % (2 * MIB) == 0 for _, reserved, _ in sizes), sizes)
    stream = new_stream()
    call("cuMemFreeAsync", u64(sizes[-1][2]), stream)
    kept = pool_value(pool)[1]
    call("cuStreamSynchronize", stream)
    synced = pool_value(pool)[1]
    check("synchronising_gives_back", synced < full, {"full": full, "freed": kept, "synchronised": synced})
    call("cuMemFree_v2", u64(sizes[-2][2]))
    call("cuMemPoolTrimTo", pool, size_t(0))
    trimmed = pool_value(pool)[1]
    check("either_call_frees", trimmed < synced, [synced, trimmed])
    call("cuMemPoolDestroy", pool)
    left = cuda.cuMemFreeAsync(u64(sizes[0][2]), None)
    check("blocks_outlive_their_pool", left == 0, left)
    call("cuMemAllocAsync", ref(address), size_t(8 * MIB), None)
    synchronize()
    before = [pool_value(default_pool(), which) for which in (RESERVED, USED)]
    call("cuDevicePrimaryCtxRelease_v2", 0)
    gone = [pool_value(default_pool(), which) for which in (RESERVED, USED)]
    say(default_pool_before=before, default_pool_after_context=gone, context=context.value)
    check("default_pool_dies_with_contexts", gone[1][0] != 0 or gone[1][1] == 0, gone)
    say(after_reset_codes=[result for result, _ in gone])


def vmm():
    """Handles, mappings, and what keeps memory alive."""
    open_context()
    nvml = Nvml(uuid())
    _, handle = create(64 * MIB, FD)
    address, again, base = reserve(128 * MIB), u64(), None
    say(map_code=map_at(address, 64 * MIB, handle), access=allow(address, 64 * MIB))
    call("cuMemRetainAllocationHandle", ref(again), pointer(address))
    check("retained_handle_is_the_same", again.value == handle, [handle, again.value])
    call("cuMemRelease", again)
    descriptor, imported = ctypes.c_int(-1), u64()
    exported = cuda.cuMemExportToShareableHandle(ref(descriptor), u64(handle), FD, u64(0))
    result = cuda.cuMemImportFromShareableHandle(ref(imported), pointer(descriptor.value), FD)
    say(export=exported, import_own=[result, imported.value == handle])
    check("own_export_can_be_imported", exported == result == 0, [exported, result])
    before = nvml.used()
    if result == 0:
        call("cuMemRelease", imported)
    os.close(descriptor.value) if descriptor.value >= 0 else None
    call("cuMemRelease", u64(handle))
    check("a_mapping_keeps_memory", nvml.used() >= before, [before, nvml.used()])
    part = unmap(address, 32 * MIB)
    check("mappings_end_whole", part != 0, part)
    _, second = create(64 * MIB)
    map_at(address + 64 * MIB, 64 * MIB, second)
    call("cuMemRelease", u64(second))
    both = unmap(address, 128 * MIB)
    after = nvml.used()
    say(used_before=before, used_after=after)
    check("one_unmap_for_several", both == 0, both)
    check("the_last_hold_gives_back", after <= before - 60 * MIB, [before, after])
    base = cuda.cuMemMap(u64(address), size_t(64 * MIB), size_t(0), u64(handle), u64(0))
    check("a_dead_handle_is_refused", base != 0, base)


def graph_of(size, freed=True):
    """(graph, executable) with one allocation of SIZE, and its free."""
    graph, node, end, runnable = (pointer() for _ in range(4))
    call("cuGraphCreate", ref(graph), 0)
    params = AllocNodeParams(pool=PoolProps(type=PINNED, location=Location(1, 0)), bytesize=size)
    call("cuGraphAddMemAllocNode", ref(node), graph, None, size_t(0), ref(params))
    if freed:
        call("cuGraphAddMemFreeNode", ref(end), graph, ref(node), size_t(1), u64(params.dptr))
    call("cuGraphInstantiateWithFlags", ref(runnable), graph, u64(0))
    return runnable, params.dptr


def addresses_of(size):
    """Addresses of two allocations of a graph, of which the second comes when the first is free again."""
    graph, after, found = pointer(), [], []
    call("cuGraphCreate", ref(graph), 0)
    for _ in range(2):
        node, released = pointer(), pointer()
        params = AllocNodeParams(pool=PoolProps(type=PINNED, location=Location(1, 0)), bytesize=size)
        before = (pointer * 1)(*(one.value for one in after[-1:]))
        call(
            "cuGraphAddMemAllocNode",
            ref(node),
            graph,
            before if after else None,
            size_t(len(after[-1:])),
            ref(params),
        )
        call("cuGraphAddMemFreeNode", ref(released), graph, ref(node), size_t(1), u64(params.dptr))
        after.append(released)
        found.append(params.dptr)
    return found


def nodes_of(size):
    """(number of nodes, parameters of the first, its type) of a graph with one allocation, as they are read back."""
    graph, node, kind = pointer(), pointer(), ctypes.c_int()
    call("cuGraphCreate", ref(graph), 0)
    params = AllocNodeParams(pool=PoolProps(type=PINNED, location=Location(1, 0)), bytesize=size)
    call("cuGraphAddMemAllocNode", ref(node), graph, None, size_t(0), ref(params))
    count, nodes, found = size_t(4), (pointer * 4)(), AllocNodeParams()
    call("cuGraphGetNodes", graph, nodes, ref(count))
    call("cuGraphNodeGetType", pointer(nodes[0]), ref(kind))
    call("cuGraphMemAllocNodeGetParams", pointer(nodes[0]), ref(found))
    return count.value, found, kind.value


def graph_memory(which=2):
    """RESERVED_MEM_CURRENT of the device's graph memory."""
    value = u64()
    call("cuDeviceGetGraphMemAttribute", 0, which, ref(value))
    return value.value


def graphs():
    """When graph memory is taken, shared and given back."""
    open_context()
    stream, other = new_stream(), new_stream()
    seen = {"start": graph_memory()}
    first, _ = graph_of(64 * MIB)
    second, _ = graph_of(64 * MIB)
    seen["instantiated"] = graph_memory()
    call("cuGraphLaunch", first, stream)
    synchronize()
    seen["launched"] = graph_memory()
    call("cuGraphLaunch", first, stream)
    synchronize()
    seen["again"] = graph_memory()
    call("cuGraphLaunch", second, stream)
    synchronize()
    seen["another in the same stream"] = graph_memory()
    call("cuGraphLaunch", second, other)
    call("cuGraphLaunch", first, stream)
    synchronize()
    seen["both in two streams"] = graph_memory()
    call("cuGraphExecDestroy", first)
    call("cuGraphExecDestroy", second)
    seen["destroyed"] = graph_memory()
    call("cuDeviceGraphMemTrim", 0)
    seen["trimmed"] = graph_memory()
    leaving, address = graph_of(64 * MIB, freed=False)
    call("cuGraphLaunch", leaving, stream)
    synchronize()
    call("cuGraphExecDestroy", leaving)
    call("cuDeviceGraphMemTrim", 0)
    seen["left allocated, trimmed"] = graph_memory()
    freed = cuda.cuMemFree_v2(u64(address))
    synchronize()
    call("cuDeviceGraphMemTrim", 0)
    seen["freed and trimmed"] = graph_memory()
    say(reserved=seen, free_code=freed)
    check("taken_at_launch", seen["instantiated"] == seen["start"] and seen["launched"] >= 64 * MIB, seen)
    first, second = addresses_of(64 * MIB)
    check("addresses_are_used_again", first == second != 0, [first, second])
    node, params, kind = nodes_of(64 * MIB)
    check(
        "nodes_can_be_read",
        params.bytesize == 64 * MIB and params.dptr != 0 and kind == 10,
        [node, params.bytesize, kind],
    )
    check("in_pages_of_2_mib", all(value % (2 * MIB) == 0 for value in seen.values()), seen)
    check("no_more_than_the_pages", seen["launched"] - seen["start"] <= 96 * MIB, seen["launched"])
    check("a_settled_launch_adds_nothing", seen["again"] == seen["launched"], seen)
    check("one_stream_shares_pages", seen["another in the same stream"] == seen["launched"], seen)
    check("two_streams_take_twice_at_most", seen["both in two streams"] <= 2 * seen["launched"], seen)
    check("destroying_keeps_it", seen["destroyed"] > 0, seen)
    check("trimming_gives_back", seen["trimmed"] == 0, seen)
    check("left_allocations_stay", seen["left allocated, trimmed"] >= 64 * MIB, seen)


def contexts():
    """Handles and lives of contexts."""
    first, again, current, made = open_context(), pointer(), pointer(), pointer()
    call("cuDevicePrimaryCtxRetain", ref(again), 0)
    call("cuCtxGetCurrent", ref(current))
    check("primary_has_one_handle", first.value == again.value == current.value, [first.value, again.value])
    call("cuDevicePrimaryCtxRelease_v2", 0)
    flags, active = ctypes.c_uint(), ctypes.c_int()
    call("cuDevicePrimaryCtxGetState", 0, ref(flags), ref(active))
    check("state_tells_who_is_left", active.value == 1, active.value)
    call("cuCtxCreate_v2", ref(made), 0, 0)
    nvml = Nvml(uuid())
    _, address = allocate(64 * MIB)
    before = nvml.used()
    call("cuCtxDestroy_v2", made)
    call("cuCtxSetCurrent", first)
    check("memory_dies_with_its_context", nvml.used() <= before - 60 * MIB, [before, nvml.used(), address])
    green(first)
    _, held = create(32 * MIB)
    call("cuDevicePrimaryCtxReset_v2", 0)
    call("cuDevicePrimaryCtxGetState", 0, ref(flags), ref(active))
    say(active_after_reset=active.value)
    check("reset_ends_it", active.value == 0, active.value)
    kept = nvml.used()
    result = cuda.cuMemRelease(u64(held))
    say(release_after_reset=result, used_before=kept, used_after=nvml.used())
    check("handles_outlive_contexts", result == 0, result)


def green(primary):
    """A green context holds a reference to the primary one."""
    resource, description, made, active = (ctypes.c_ubyte * 256)(), pointer(), pointer(), ctypes.c_int()
    if not has("cuGreenCtxCreate") or cuda.cuDeviceGetDevResource(0, resource, 1) != 0:
        check("green_contexts_hold_the_primary", True, "this driver has none")
        return
    call("cuDevResourceGenerateDesc", ref(description), resource, 1)
    call("cuGreenCtxCreate", ref(made), description, 0, 1)
    call("cuDevicePrimaryCtxRelease_v2", 0)
    call("cuDevicePrimaryCtxGetState", 0, ref(ctypes.c_uint()), ref(active))
    held = active.value
    call("cuDevicePrimaryCtxRetain", ref(pointer()), 0)
    call("cuGreenCtxDestroy", made)
    call("cuCtxSetCurrent", primary)
    check("green_contexts_hold_the_primary", held == 1, held)


def in_thread(function):
    """FUNCTION's answer in another thread."""
    answer = []
    thread = threading.Thread(target=lambda: answer.append(function()))
    thread.start()
    thread.join(30)
    return answer[0] if answer else None


def streams():
    """Asking about work from another thread, and work that outlives its stream."""
    context = open_context()
    work = Launch(300_000_000, "work_300ms")  # long beside the delays of a busy machine
    stream, event, found = new_stream(), pointer(), pointer()
    call("cuEventCreate", ref(event), 2)
    work.into(stream)
    synchronize()

    def ask():
        call("cuCtxPushCurrent_v2", context)
        answer = cuda.cuStreamQuery(stream)
        call("cuCtxPopCurrent_v2", ref(pointer()))
        return answer

    call("cuStreamGetCtx", stream, ref(found))
    check("a_stream_tells_its_context", found.value == context.value, [found.value, context.value])
    code_of_launch = work.into(stream)
    during = in_thread(ask)
    synchronize()
    check(
        "another_thread_may_ask",
        [code_of_launch, during, in_thread(ask)] == [0, NOT_READY, 0],
        [during, in_thread(ask)],
    )
    work.into(stream)
    call("cuEventRecord", event, stream)
    destroyed = cuda.cuStreamDestroy_v2(stream)
    running = cuda.cuEventQuery(event)
    synchronize()
    check(
        "work_outlives_its_stream",
        [destroyed, running, cuda.cuEventQuery(event)] == [0, NOT_READY, 0],
        [destroyed, running],
    )
    work.into(None)
    legacy = in_thread(lambda: [cuda.cuCtxSetCurrent(context), cuda.cuStreamQuery(LEGACY)])
    synchronize()
    check(
        "the_shared_default_stream_tells",
        legacy == [0, NOT_READY] and cuda.cuStreamQuery(LEGACY) == 0,
        legacy,
    )
    work.into(PER_THREAD)
    call("cuEventRecord", event, LEGACY)
    running = cuda.cuEventQuery(event)
    synchronize()
    check("legacy_waits_for_per_thread", running == NOT_READY and cuda.cuEventQuery(event) == 0, running)
    begun = work.into(new_stream())
    other = in_thread(lambda: [cuda.cuCtxSetCurrent(context), cuda.cuEventQuery(event)])
    check("events_can_be_asked_by_any_thread", begun == 0 and other == [0, 0], other)
    synchronize()


def managed():
    """Managed memory: little of it."""
    open_context()
    value, address = ctypes.c_int(), u64()
    call("cuDeviceGetAttribute", ref(value), 89, 0)
    say(concurrent_managed_access=value.value)
    check("pages_can_move", value.value == 1, value.value)
    nvml = Nvml(uuid())
    before = nvml.used()
    call("cuMemAllocManaged", ref(address), size_t(8 * MIB), 1)
    say(grown_by_8_mib_untouched=nvml.used() - before)
    alignment = ctypes.c_int()
    call("cuDeviceGetAttribute", ref(alignment), 51, 0)
    check("a_pitch_of_512_is_enough", alignment.value > 0 and 512 % alignment.value == 0, alignment.value)
    advice = [cuda.cuMemAdvise(address, size_t(8 * MIB), which, 0) for which in (3, 5)]
    check("advice_is_taken", advice == [0, 0], advice)
    fetched = cuda.cuMemPrefetchAsync(address, size_t(8 * MIB), 0, None)
    check("a_prefetch_is_taken", fetched == 0, fetched)
    handle = ctypes.create_string_buffer(64)
    shared = cuda.cuIpcGetMemHandle(handle, address)
    check("it_cannot_be_shared", shared != 0, shared)
    begin, size = u64(), size_t()
    ranged = cuda.cuMemGetAddressRange_v2(ref(begin), ref(size), u64(address.value + 4096))
    check("its_range_is_known", ranged == 0 and begin.value == address.value, [ranged, size.value])
    release(address.value)
    version = ctypes.c_int()
    call("cuDriverGetVersion", ref(version))
    result, pool = new_pool(kind=MANAGED)
    say(managed_pool=result, version=version.value)
    check("cuda_13_has_managed_pools", (result == 0) == (version.value >= 13000), [result, version.value])
    if result == 0:
        call("cuMemAllocFromPoolAsync", ref(address), size_t(4 * MIB), pool, None)
        check("they_tell_what_they_hold", pool_value(pool)[0] == 0, pool_value(pool))
        call("cuMemFreeAsync", address, None)
        call("cuMemPoolDestroy", pool)


def limits():
    """The heap of the device's malloc and the buffer of its printf."""
    open_context()
    nvml, value = Nvml(uuid()), size_t()
    module, _ = kernel()
    seen = {}
    for name, which in (("printf", 1), ("heap", 2)):
        call("cuCtxGetLimit", ref(value), which)
        first, used = value.value, nvml.used()
        result = cuda.cuCtxSetLimit(which, size_t(first + 100 * MIB + 1))
        call("cuCtxGetLimit", ref(value), which)
        seen[name] = {"first": first, "set": result, "reads": value.value, "grown": nvml.used() - used}
    Launch(1000).into()
    synchronize()
    seen["after a launch"] = nvml.used()
    say(limits=seen, module=module.value)
    check(
        "limits_can_be_read",
        all(seen[n]["reads"] >= seen[n]["first"] + 100 * MIB for n in ("printf", "heap")),
        seen,
    )
    check(
        "never_more_than_read",
        all(seen[n]["grown"] <= seen[n]["reads"] + 8 * MIB for n in ("printf", "heap")),
        seen,
    )


SHAPES = (
    ("1D float4", (65536, 0, 0, 0x20, 4, 0)),
    ("2D uint8", (4096, 4096, 0, 0x01, 1, 0)),
    ("2D uint8x4 odd", (1001, 1003, 0, 0x01, 4, 0)),
    ("2D half2", (2000, 2000, 0, 0x10, 2, 0)),
    ("3D float", (256, 256, 64, 0x20, 1, 0)),
    ("layered float", (512, 512, 16, 0x20, 1, 1)),
    ("cubemap uint8x4", (256, 256, 6, 0x01, 4, 4)),
    ("small float", (16, 16, 0, 0x20, 1, 0)),
    ("NV12", (1920, 1080, 0, 0xB0, 3, 0)),
    ("BC7", (1024, 1024, 0, 0x9D, 4, 0)),
)
UNITS = {0x01: (1, 1, 1, 1), 0x10: (1, 1, 2, 1), 0x20: (1, 1, 4, 1), 0xB0: (2, 2, 6, 0), 0x9D: (4, 4, 16, 0)}


def predicted(width, height, depth, form, channels, _):
    """Bytes by the formula of native/cuda/format.c."""
    wide, high, size, each = UNITS[form]
    row = -(-max(width, 1) // wide) * size * (channels if each else 1)
    rows = -(-max(height, 1) // high)
    row, rows = -(-row // 64) * 64, -(-rows // 8) * 8 if rows > 1 else rows
    return -(-row * rows * max(depth, 1) // 65536) * 65536


def arrays():
    """What arrays take of the GPU against what the library charges for them."""
    open_context()
    nvml, seen = Nvml(uuid()), {}
    for name, shape in SHAPES:
        charge, made, answer = predicted(*shape), [], 0
        used = nvml.used()
        for _ in range(max(1, min(200, 64 * MIB // charge))):
            array, shaped = pointer(), Array3DDescriptor(*shape)
            answer = cuda.cuArray3DCreate_v2(ref(array), ref(shaped))
            if answer != 0:
                break
            made.append(array)
        real = nvml.used() - used
        for array in made:
            cuda.cuArrayDestroy(array)
        seen[name] = {"count": len(made), "code": answer, "charge": charge * len(made), "real": real}
    say(arrays=seen)
    empty = {}
    for name, flags in (("sparse", 0x40), ("deferred", 0x80)):
        array, used = pointer(), nvml.used()
        answer = cuda.cuArray3DCreate_v2(ref(array), ref(Array3DDescriptor(4096, 4096, 0, 0x20, 1, flags)))
        empty[name] = [answer, nvml.used() - used]
        if answer == 0:
            cuda.cuArrayDestroy(array)
    check("empty_arrays_take_nothing", all(grown <= 2 * MIB for _, grown in empty.values()), empty)
    told = {name: one for name, one in seen.items() if one["count"]}
    check(
        "arrays_can_be_made", len(told) >= 7, {name: one["code"] for name, one in seen.items() if one["code"]}
    )
    check(
        "charge_covers_arrays",
        bool(told) and all(one["real"] <= one["charge"] + 4 * MIB for one in told.values()),
        told,
    )


def multicast():
    """Objects of one GPU, where the machine has them."""
    open_context()
    value = ctypes.c_int()
    if cuda.cuDeviceGetAttribute(ref(value), 132, 0) != 0 or not value.value or not has("cuMulticastCreate"):
        missing("this GPU has no multicast objects")

    class Prop(ctypes.Structure):
        _fields_ = (
            ("devices", ctypes.c_uint),
            ("size", size_t),
            ("types", ctypes.c_ulonglong),
            ("flags", ctypes.c_ulonglong),
        )

    nvml, handle, size = Nvml(uuid()), u64(), 64 * MIB
    result = cuda.cuMulticastCreate(ref(handle), ref(Prop(1, size, 0, 0)))
    if result != 0:
        missing(f"cuMulticastCreate answers {result} on this machine")
    _, held = create(size)
    call("cuMulticastAddDevice", handle, 0)
    bound = cuda.cuMulticastBindMem(handle, size_t(0), u64(held), size_t(0), size_t(size), u64(0))
    used = nvml.used()
    call("cuMemRelease", u64(held))
    kept = nvml.used()
    call("cuMemRelease", handle)
    say(bound=bound, used=[used, kept, nvml.used()])
    check("a_binding_keeps_memory", bound != 0 or kept == used, [used, kept])


if __name__ == "__main__":
    subjects = (failures, capture, pools, vmm, graphs, contexts, streams, managed, limits, arrays, multicast)
    next(one for one in subjects if one.__name__ == sys.argv[1])()
    done()
