# SPDX-License-Identifier: Apache-2.0
"""Contexts of every kind: OpenGL's, VDPAU's, green ones, several GPUs in any order, threads without one."""

from __future__ import annotations

import pytest

from tests.native.running import CONTEXT, GIB, INVALID_CONTEXT, MIB, OUT_OF_MEMORY, SUCCESS
from tests.native.scripted import Program

KINDS = {
    "cuGLCtxCreate": "cuGLCtxCreate({}, 0, {})",
    "cuGLCtxCreate_v2": "cuGLCtxCreate_v2({}, 0, {})",
    "cuVDPAUCtxCreate": "cuVDPAUCtxCreate({}, 0, {}, 7, c_void_p(1))",
    "cuVDPAUCtxCreate_v2": "cuVDPAUCtxCreate_v2({}, 0, {}, 7, c_void_p(1))",
}
GREEN = "cuGreenCtxCreate({}, desc, {}, 1)"


@pytest.fixture
def start(place):
    running = []

    def start(limit=str(GIB), **extra):
        program = Program(place.env(limit, **extra))
        running.append(program)
        program.do("keep(a=Handle(), b=Handle(), c=Handle(), p=c_ulonglong(), q=c_ulonglong())")
        assert program.do("cuInit(0)") == SUCCESS
        return program

    yield start
    for program in running:
        program.__exit__()


def describe_part(program, device=0):
    """A description of some of the processors, kept as `desc`."""
    program.do("keep(resource=ctypes.create_string_buffer(256), desc=Handle())")
    assert program.do(f"cuDeviceGetDevResource({device}, resource, 1)") == SUCCESS
    assert program.do("cuDevResourceGenerateDesc(ref(desc), resource, 1)") == SUCCESS


def alloc(program, name, size):
    return program.do(f"cuMemAlloc_v2(ref({name}), c_size_t({size}))")


# --- OpenGL and VDPAU ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", KINDS.values(), ids=KINDS)
def test_a_context_of_another_kind_costs_what_a_context_costs(start, call):
    program = start()
    assert program.do(call.format("ref(a)", 0)) == SUCCESS
    assert program.free() == GIB - CONTEXT
    assert alloc(program, "p", MIB) == SUCCESS
    assert program.do(call.format("ref(b)", 0)) == SUCCESS
    assert program.free() == GIB - 2 * CONTEXT - MIB
    assert program.do("cuCtxDestroy_v2(a)") == SUCCESS
    assert program.free() == GIB - CONTEXT, "its allocation went with it"


@pytest.mark.parametrize("call", KINDS.values(), ids=KINDS)
def test_a_context_of_another_kind_that_does_not_fit_is_refused(start, call):
    program = start(str(CONTEXT + MIB))
    assert program.do(call.format("ref(a)", 0)) == SUCCESS
    program.do("keep(b=Handle(0x5555))")
    assert program.do(call.format("ref(b)", 0)) == OUT_OF_MEMORY
    assert program.do("b.value") == 0x5555
    assert program.free() == MIB
    assert program.do(call.format("ref(b)", 9)) == 101, "the driver's own error"
    assert program.do(call.format("None", 0)) == 1


# --- green contexts --------------------------------------------------------------------------------------------------


def test_a_green_context_brings_about_the_primary_one_and_pays_for_it(start):
    program = start()
    describe_part(program)
    assert program.do(GREEN.format("ref(a)", 0)) == SUCCESS
    assert program.do("cuCtxFromGreenCtx(ref(b), a)") == SUCCESS
    assert program.do("cuCtxSetCurrent(b)") == SUCCESS
    assert program.free() == GIB - CONTEXT
    assert alloc(program, "p", 10 * MIB) == SUCCESS
    assert program.free() == GIB - CONTEXT - 10 * MIB
    assert program.do(GREEN.format("ref(c)", 0)) == SUCCESS, "another one costs nothing more"
    assert program.free() == GIB - CONTEXT - 10 * MIB
    assert program.do("cuGreenCtxDestroy(a)") == SUCCESS
    assert program.do("cuCtxFromGreenCtx(ref(b), c)") == SUCCESS
    assert program.do("cuCtxSetCurrent(b)") == SUCCESS
    assert program.free() == GIB - CONTEXT - 10 * MIB, "memory belongs to the primary context, which lives"
    assert program.do("cuGreenCtxDestroy(c)") == SUCCESS
    program.ready()
    assert program.free() == GIB - CONTEXT, "the last reference took it along"


def test_memory_of_a_green_context_lives_as_long_as_the_primary_one(start):
    program = start().ready()
    describe_part(program)
    assert program.do(GREEN.format("ref(a)", 0)) == SUCCESS
    assert program.do("cuCtxFromGreenCtx(ref(b), a)") == SUCCESS
    assert program.do("cuCtxSetCurrent(b)") == SUCCESS
    assert alloc(program, "p", 10 * MIB) == SUCCESS
    assert program.do("cuGreenCtxDestroy(a)") == SUCCESS
    assert program.do("cuCtxSetCurrent(primary)") == SUCCESS
    assert program.free() == GIB - CONTEXT - 10 * MIB
    assert program.do("cuMemFree_v2(p)") == SUCCESS
    assert program.free() == GIB - CONTEXT


def test_a_primary_context_that_began_green_is_known_by_its_own_handle(start):
    program = start()
    describe_part(program)
    assert program.do(GREEN.format("ref(a)", 0)) == SUCCESS
    program.ready()
    assert program.do("cuGreenCtxDestroy(a)") == SUCCESS
    assert alloc(program, "p", 10 * MIB) == SUCCESS
    assert program.free() == GIB - CONTEXT - 10 * MIB
    assert program.do("cuDevicePrimaryCtxRelease_v2(0)") == SUCCESS
    assert program.do("cuDevicePrimaryCtxRetain(ref(b), 0), cuCtxSetCurrent(b)") == [SUCCESS, SUCCESS]
    assert program.free() == GIB - CONTEXT


def test_a_reset_ends_green_contexts_too(start):
    program = start().ready()
    describe_part(program)
    assert program.do(GREEN.format("ref(a)", 0)) == SUCCESS
    assert alloc(program, "p", 10 * MIB) == SUCCESS
    assert program.do("cuDevicePrimaryCtxReset_v2(0)") == SUCCESS
    assert program.do("cuGreenCtxDestroy(a)") == SUCCESS
    program.ready()
    assert program.free() == GIB - CONTEXT
    assert alloc(program, "p", 10 * MIB) == SUCCESS
    assert program.free() == GIB - CONTEXT - 10 * MIB


def test_a_green_context_that_does_not_fit_is_refused_and_undone(start):
    program = start("50MiB")
    describe_part(program)
    program.do("keep(a=Handle(0x5555))")
    assert program.do(GREEN.format("ref(a)", 0)) == OUT_OF_MEMORY
    assert program.do("a.value") == 0x5555
    state = "(lambda f, a: (cuDevicePrimaryCtxGetState(0, ref(f), ref(a)), a.value)[1])(c_uint(), c_int())"
    assert program.do(state) == 0, "no reference to the primary context is left"


def test_green_contexts_on_two_gpus_are_charged_where_they_are(start):
    program = start("0=1GiB,1=2GiB")
    for device, name in ((1, "a"), (0, "b")):
        describe_part(program, device)
        assert program.do(GREEN.format(f"ref({name})", device)) == SUCCESS
        assert program.do(f"cuCtxFromGreenCtx(ref(c), {name}), cuCtxSetCurrent(c)") == [SUCCESS, SUCCESS]
        assert alloc(program, "p", (device + 1) * MIB) == SUCCESS
        assert program.free() == (device + 1) * GIB - CONTEXT - (device + 1) * MIB
    assert program.do("cuGreenCtxDestroy(a)") == SUCCESS
    assert program.free() == GIB - CONTEXT - MIB
    program.ready(1)
    assert program.free() == 2 * GIB - CONTEXT


def test_errors_of_green_contexts_are_the_drivers_own(start):
    program = start()
    describe_part(program)
    assert program.do(GREEN.format("None", 0)) == 1
    assert program.do(GREEN.format("ref(a)", 9)) == 101
    assert program.do("cuGreenCtxCreate(ref(a), desc, 0, 0)") == 1
    assert program.do("cuGreenCtxDestroy(c_void_p(64))") == INVALID_CONTEXT
    program.ready()
    assert program.free() == GIB - CONTEXT


# --- threads and GPUs -----------------------------------------------------------------------------------------------


def test_a_thread_without_a_context_gets_the_drivers_error_and_is_not_charged(start):
    program = start().ready()
    program.do(f"keep(take=lambda: cuda.cuMemAlloc_v2(ref(p), c_size_t({MIB})))")
    program.do("keep(load=lambda: cuda.cuModuleLoadData(ref(a), b'image'))")
    program.do(f"keep(heap=lambda: cuda.cuCtxSetLimit(2, c_size_t({100 * MIB})))")
    assert program.do("at_once(take, load, heap)") == [INVALID_CONTEXT] * 3
    assert program.free() == GIB - CONTEXT


@pytest.mark.parametrize("order", ["1,0", "0,1", "{1},{0}", "{0},{1}", "1", "{1}"])
def test_limits_follow_the_gpu_in_whatever_order_it_is_selected(place, start, order):
    uuids = uuids_of(place)
    visible = order.format(*uuids)
    gpus = [uuids.index(item) if "-" in item else int(item) for item in visible.split(",")]
    program = start(f"{uuids[0]}=1GiB,{uuids[1]}=2GiB", CUDA_VISIBLE_DEVICES=visible)
    for device, gpu in enumerate(gpus):
        program.ready(device)
        assert program.free() == (gpu + 1) * GIB - CONTEXT
        assert alloc(program, "p", (gpu + 1) * MIB) == SUCCESS
    for device, gpu in enumerate(gpus):
        program.ready(device)
        assert program.free() == (gpu + 1) * GIB - CONTEXT - (gpu + 1) * MIB


def uuids_of(place):
    """UUIDs of the machine's GPUs in NVML's order."""
    with Program(place.plain_env()) as plain:
        plain.do("cuInit(0)")
        raw = plain.do(
            "[(lambda u: (cuDeviceGetUuid_v2(u, i), u.raw.hex())[1])(ctypes.create_string_buffer(16)) for i in (0, 1)]"
        )
    parts = [(text[:8], text[8:12], text[12:16], text[16:20], text[20:]) for text in raw]
    return ["GPU-" + "-".join(part) for part in parts]
