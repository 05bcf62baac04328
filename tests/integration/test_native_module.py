# SPDX-License-Identifier: Apache-2.0
"""Modules, libraries and context limits: memory that the driver takes for code and data is charged like any other."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.fakedriver.env import library_directory, write_machine
from tests.native.running import (
    CONTEXT,
    GIB,
    INVALID_VALUE,
    MIB,
    OUT_OF_MEMORY,
    ROOT,
    SUCCESS,
    Place,
    eventually,
)
from tests.native.scripted import Program

MODULE = 64 * MIB
INVALID_IMAGE_FILE = 301
UNSUPPORTED_LIMIT = 215
HEAP, PRINTF, STACK = 2, 1, 0
LOADS = {
    "cuModuleLoad": "cuModuleLoad(ref(m), __file.encode())",
    "cuModuleLoadData": "cuModuleLoadData(ref(m), b'image')",
    "cuModuleLoadDataEx": "cuModuleLoadDataEx(ref(m), b'image', 0, None, None)",
    "cuModuleLoadFatBinary": "cuModuleLoadFatBinary(ref(m), b'image')",
}
LIBRARIES = {
    "cuLibraryLoadData": "cuLibraryLoadData(ref(m), b'image', None, None, 0, None, None, 0)",
    "cuLibraryLoadFromFile": "cuLibraryLoadFromFile(ref(m), __file.encode(), None, None, 0, None, None, 0)",
}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "image").write_bytes(b"image")
    machine = write_machine(tmp_path, gpus=2, context_memory="100MiB", module_memory="64MiB")
    return Place(tmp_path, machine)


@pytest.fixture
def start(place):
    running = []

    def start(limit=str(GIB), **extra):
        program = Program(place.env(limit, **extra))
        running.append(program)
        program.do(f"keep(__file={str(place.directory / 'image')!r}, m=Handle(), n=Handle(), o=Handle())")
        return program

    yield start
    for program in running:
        program.__exit__()


@pytest.mark.parametrize("call", LOADS.values(), ids=LOADS)
def test_a_loaded_module_is_charged_until_it_is_unloaded(start, call):
    program = start().ready()
    assert program.free() == GIB - CONTEXT
    assert program.do(call) == SUCCESS
    assert program.free() == GIB - CONTEXT - MODULE
    assert program.do("cuModuleUnload(m)") == SUCCESS
    assert program.free() == GIB - CONTEXT


@pytest.mark.parametrize("call", LOADS.values(), ids=LOADS)
def test_a_module_that_does_not_fit_is_refused_and_leaves_nothing(start, call):
    program = start(str(CONTEXT + MODULE + MIB)).ready()
    assert program.do("cuModuleLoadData(ref(n), b'image')") == SUCCESS
    program.do("keep(m=Handle(0x5555))")
    assert program.do(call) == OUT_OF_MEMORY
    assert program.do("m.value") == 0x5555, "the output is untouched"
    assert program.free() == MIB
    assert program.later_free() == MIB, "and the driver has taken it back"
    assert program.do("cuModuleUnload(n)") == SUCCESS
    assert program.do(call) == SUCCESS


@pytest.mark.parametrize("call", LIBRARIES.values(), ids=LIBRARIES)
def test_a_library_is_charged_when_its_code_comes_to_the_gpu(start, call):
    program = start().ready()
    assert program.do(call) == SUCCESS
    assert program.later_free() == GIB - CONTEXT, "nothing is there yet"
    assert program.do("cuLibraryGetModule(ref(n), m)") == SUCCESS
    assert program.later_free() == GIB - CONTEXT - MODULE
    assert program.do("cuLibraryUnload(m)") == SUCCESS
    assert program.free() == GIB - CONTEXT


@pytest.mark.parametrize("call", LIBRARIES.values(), ids=LIBRARIES)
def test_a_library_can_be_loaded_without_a_context(start, call):
    program = start()
    assert program.do("cuInit(0)") == SUCCESS
    assert program.do(call) == SUCCESS
    assert program.do("cuLibraryUnload(m)") == SUCCESS


def test_lazily_loaded_code_is_counted_before_a_large_allocation(start):
    program = start().ready()
    assert program.do("cuLibraryLoadData(ref(m), b'image', None, None, 0, None, None, 0)") == SUCCESS
    assert program.do("cuLibraryGetModule(ref(n), m)") == SUCCESS
    program.do("time.sleep(0.25)")
    assert program.do(f"cuMemAlloc_v2(ref(o), c_size_t({GIB - CONTEXT - MIB}))") == OUT_OF_MEMORY
    assert program.do(f"cuMemAlloc_v2(ref(o), c_size_t({GIB - CONTEXT - MODULE}))") == SUCCESS
    assert program.free() == 0


def test_code_that_is_gone_refuses_nothing(start):
    """What was measured went by a way that is not hooked: before a refusal it is measured again."""
    program = start().ready()
    assert program.do("cuModuleLoadData(ref(m), b'image')") == SUCCESS
    assert program.free() == GIB - CONTEXT - MODULE
    program.do(f"keep(unload=behind_the_hooks('cuModuleUnload', {_offset('cuModuleUnload')}))")
    assert program.do("unload(m)") == SUCCESS
    assert program.do(f"cuMemAlloc_v2(ref(o), c_size_t({GIB - CONTEXT}))") == SUCCESS


def _offset(function: str) -> int:
    """Where a function of the simulated driver lies in its file."""
    command = ["nm", "-D", str(library_directory() / "libcuda.so.1")]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return next(int(line.split()[0], 16) for line in table.splitlines() if line.endswith(f" {function}"))


@pytest.mark.parametrize("end", ["cuCtxDestroy_v2(c)", "cuDevicePrimaryCtxReset_v2(0)"])
def test_modules_die_with_their_context(start, end):
    program = start().ready(1)
    program.do("keep(c=Handle())")
    if "Destroy" in end:
        assert program.do("cuCtxCreate_v2(ref(c), 0, 0)") == SUCCESS
    else:
        assert program.do("cuDevicePrimaryCtxRetain(ref(c), 0)") == SUCCESS
    assert program.do("cuCtxSetCurrent(c)") == SUCCESS
    assert program.do("cuModuleLoadData(ref(m), b'image')") == SUCCESS
    assert program.do("cuModuleLoadData(ref(n), b'image')") == SUCCESS
    assert program.free() == GIB - CONTEXT - 2 * MODULE
    assert program.do(end) == SUCCESS
    program.do("keep(k=Handle())")
    assert program.do("cuCtxCreate_v2(ref(k), 0, 0)") == SUCCESS
    assert program.free() == GIB - CONTEXT


def test_threads_that_load_at_once_do_not_count_each_others_growth(start):
    program = start().ready()
    program.do("keep(many=[Handle() for _ in range(8)])")
    program.do(
        "keep(load=lambda h: lambda: (cuda.cuCtxSetCurrent(primary), cuda.cuModuleLoadData(ref(h), b'image'))[1])"
    )
    for _ in range(3):
        assert program.do("at_once(*map(load, many))") == [SUCCESS] * 8
        assert program.later_free() == GIB - CONTEXT - 8 * MODULE
        assert program.do("[cuModuleUnload(h) for h in many]") == [SUCCESS] * 8
        assert program.free() == GIB - CONTEXT


def test_loading_beside_allocations_counts_nothing_twice(start):
    program = start().ready()
    program.do("keep(many=[Handle() for _ in range(6)], p=[c_ulonglong() for _ in range(6)])")
    program.do(
        "keep(load=lambda h: lambda: (cuda.cuCtxSetCurrent(primary), cuda.cuModuleLoadData(ref(h), b'image'))[1],"
        f" take=lambda p: lambda: (cuda.cuCtxSetCurrent(primary), cuda.cuMemAlloc_v2(ref(p), c_size_t({32 * MIB})))[1])"
    )
    assert program.do("at_once(*map(load, many), *map(take, p))") == [SUCCESS] * 12
    assert program.later_free() == GIB - CONTEXT - 6 * MODULE - 6 * 32 * MIB


def test_another_processs_memory_is_never_ours(start, place):
    program = start().ready()
    with Program(place.plain_env()) as neighbour:
        neighbour.ready()
        neighbour.do("keep(p=c_ulonglong())")
        assert neighbour.do(f"cuMemAlloc_v2(ref(p), c_size_t({3 * GIB}))") == SUCCESS
        assert program.do("cuModuleLoadData(ref(m), b'image')") == SUCCESS
        assert program.later_free() == GIB - CONTEXT - MODULE


def test_what_cannot_be_told_apart_is_not_charged(start):
    """NVML's list does not have the process (as in a PID namespace): the agent's part."""
    program = start(FAKEDRIVER_PROCESS="graphics").ready()
    assert program.do("cuModuleLoadData(ref(m), b'image')") == SUCCESS
    assert program.later_free() == GIB - CONTEXT
    assert program.do("cuModuleUnload(m)") == SUCCESS
    assert program.free() == GIB - CONTEXT


def test_two_processes_share_the_limit_for_their_modules(start):
    one, other = start(str(2 * CONTEXT + MODULE)).ready(), start(str(2 * CONTEXT + MODULE)).ready()
    assert one.do("cuModuleLoadData(ref(m), b'image')") == SUCCESS
    assert other.free() == 0
    assert other.do("cuModuleLoadData(ref(m), b'image')") == OUT_OF_MEMORY
    assert one.do("cuModuleUnload(m)") == SUCCESS
    assert other.do("cuModuleLoadData(ref(m), b'image')") == SUCCESS


def test_errors_are_the_drivers_own(start):
    program = start()
    assert program.do("cuModuleLoadData(ref(m), b'image')") == 3
    program.ready()
    assert program.do("cuModuleLoadData(None, b'image')") == INVALID_VALUE
    assert program.do("cuModuleLoadData(ref(m), None)") == INVALID_VALUE
    assert program.do("cuModuleLoad(ref(m), b'/nonexistent')") == INVALID_IMAGE_FILE
    assert program.do("cuModuleUnload(c_void_p(64))") != SUCCESS
    assert program.do("cuLibraryUnload(c_void_p(64))") != SUCCESS
    assert program.do("cuModuleLoadData(ref(m), b'image')") == SUCCESS
    assert program.do("cuModuleUnload(m)") == SUCCESS
    assert program.do("cuModuleUnload(m)") != SUCCESS, "unloaded twice"
    assert program.free() == GIB - CONTEXT


# --- limits of contexts ----------------------------------------------------------------------------------------------


def set_limit(program, limit, value):
    return program.do(f"cuCtxSetLimit({limit}, c_size_t({value}))")


@pytest.mark.parametrize("limit", [HEAP, PRINTF], ids=["heap", "printf"])
def test_heap_and_printf_buffer_are_charged_as_they_grow(start, limit):
    program = start().ready()
    first = 8 * MIB if limit == HEAP else 7 * MIB
    assert set_limit(program, limit, first + 100 * MIB) == SUCCESS
    assert program.free() == GIB - CONTEXT - 100 * MIB
    assert set_limit(program, limit, first + 100 * MIB) == SUCCESS, "the same again costs nothing"
    assert set_limit(program, limit, first + 300 * MIB) == SUCCESS
    assert program.later_free() == GIB - CONTEXT - 300 * MIB
    assert set_limit(program, limit, 4 * GIB) == OUT_OF_MEMORY
    assert program.free() == GIB - CONTEXT - 300 * MIB
    assert (
        program.do(f"(lambda v: (cuCtxGetLimit(ref(v), {limit}), v.value)[1])(c_size_t())")
        == first + 300 * MIB
    )
    assert program.do("cuDevicePrimaryCtxReset_v2(0)") == SUCCESS
    program.ready()
    assert program.free() == GIB - CONTEXT


def test_a_buffer_that_shrinks_gives_back_what_it_was_charged(start):
    program = start().ready()
    assert set_limit(program, PRINTF, 107 * MIB) == SUCCESS
    assert set_limit(program, PRINTF, 27 * MIB) == SUCCESS
    assert program.free() == GIB - CONTEXT - 20 * MIB
    assert set_limit(program, PRINTF, MIB) == SUCCESS
    assert program.free() == GIB - CONTEXT
    assert set_limit(program, HEAP, 108 * MIB) == SUCCESS
    assert set_limit(program, HEAP, 8 * MIB) == SUCCESS
    assert program.free() == GIB - CONTEXT - 100 * MIB, "the driver keeps a heap that it has"


@pytest.mark.parametrize(
    ("limit", "values"),
    [
        (PRINTF, [1, 7, 1, 57, 7, 3, 27, 2, 7]),
        (PRINTF, [57, 1, 57, 1, 7]),
        (HEAP, [1, 8, 2, 58, 1, 58, 8]),
        (HEAP, [58, 1, 8, 108]),
    ],
)
def test_no_order_of_changes_leaves_anything_charged(start, limit, values):
    program = start().ready()
    first = held = 8 if limit == HEAP else 7
    for value in values:
        assert set_limit(program, limit, value * MIB) == SUCCESS
        held = max(held, value) if limit == HEAP else value  # a heap never shrinks
        assert program.free() == GIB - CONTEXT - max(0, held - first) * MIB, (value, values)


def test_each_context_has_limits_of_its_own(start):
    program = start().ready()
    program.do("keep(c=Handle())")
    assert set_limit(program, PRINTF, MIB) == SUCCESS
    assert program.do("cuCtxCreate_v2(ref(c), 0, 0)") == SUCCESS
    assert set_limit(program, PRINTF, 57 * MIB) == SUCCESS
    assert program.free() == GIB - 2 * CONTEXT - 50 * MIB
    assert program.do("cuCtxSetCurrent(primary)") == SUCCESS
    assert set_limit(program, PRINTF, 7 * MIB) == SUCCESS
    assert program.free() == GIB - 2 * CONTEXT - 50 * MIB
    assert program.do("cuCtxDestroy_v2(c)") == SUCCESS
    assert program.free() == GIB - CONTEXT


def test_a_limit_that_cannot_be_read_is_not_set(start, place):
    program = start().ready()
    fail(place, "cuCtxGetLimit", 999)
    assert set_limit(program, HEAP, 108 * MIB) == 999
    assert program.later_free() == GIB - CONTEXT
    assert set_limit(program, HEAP, 108 * MIB) == SUCCESS
    assert program.free() == GIB - CONTEXT - 100 * MIB


def test_a_limit_that_cannot_be_read_again_is_charged_in_full_until_it_can(start, place):
    program = start(FAKEDRIVER_LATENCY="cuCtxSetLimit=1s")
    place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", 999, 1000)  # nothing is measured
    program.ready()
    assert set_limit(program, HEAP, 108 * MIB) == SUCCESS
    place.fakectl("count", "on")
    program.do(
        "keep(t=threading.Thread(target=lambda: cuCtxSetCurrent(primary) or cuCtxSetLimit(2, c_size_t(0))))"
    )
    program.do("t.start()")
    assert eventually(lambda: "cuCtxGetLimit" in json.loads(place.fakectl("state"))["calls"])
    fail(place, "cuCtxGetLimit", 999)
    program.do("t.join()")
    assert program.free() == GIB - CONTEXT - 100 * MIB, "who knows whether it shrank"
    assert set_limit(program, HEAP, 58 * MIB) == SUCCESS
    assert program.free() == GIB - CONTEXT - 100 * MIB, "it did not"


def test_a_heap_that_the_driver_rounds_up_and_keeps_is_charged_although_it_does_not_fit(tmp_path):
    place = Place(tmp_path, write_machine(tmp_path, gpus=1, context_memory="100MiB", granularity="2MiB"))
    with Program(place.env(str(CONTEXT + 101 * MIB))) as program:
        program.ready()
        assert set_limit(program, HEAP, 9 * MIB) == SUCCESS
        assert program.free() == 99 * MIB, "10 MiB, says the driver"
        assert set_limit(program, HEAP, 109 * MIB) == OUT_OF_MEMORY
        assert program.free() == 0, "the driver has 110 MiB"
        assert set_limit(program, HEAP, 8 * MIB) == SUCCESS
        assert program.do("keep(p=c_ulonglong()), cuMemAlloc_v2(ref(p), c_size_t(256))")[1] == OUT_OF_MEMORY
        assert program.do("cuDevicePrimaryCtxReset_v2(0)") == SUCCESS
        assert program.ready().free() == 101 * MIB


def test_other_limits_go_to_the_driver(start):
    program = start().ready()
    assert set_limit(program, STACK, 4096) == SUCCESS
    assert set_limit(program, 99, 1) == UNSUPPORTED_LIMIT
    assert program.free() == GIB - CONTEXT
    assert program.do("cuCtxSetCurrent(None)") == SUCCESS
    assert set_limit(program, HEAP, 4 * GIB) == 201


def test_a_limit_of_no_sense_is_out_of_memory(start):
    program = start().ready()
    assert set_limit(program, HEAP, 2**64 - 1) == OUT_OF_MEMORY
    assert program.free() == GIB - CONTEXT


def fail(place, call, code):
    command = [str(ROOT / "build/fakedriver/fakectl"), "fail", call, str(code)]
    subprocess.run(command, env=place.plain_env(), check=True)


def test_small_steps_cost_what_one_large_step_does(start):
    program = start().ready()
    for more in [*range(1, 601), 0]:
        assert set_limit(program, PRINTF, 7 * MIB + more) == SUCCESS
        charged = GIB - CONTEXT - program.free()
        assert charged == -(-more // 256) * 256, more


def test_a_failing_call_charges_nothing(start, place):
    program = start().ready()
    fail(place, "cuCtxSetLimit", 999)
    assert set_limit(program, HEAP, 108 * MIB) == 999
    fail(place, "cuModuleLoadData", 218)
    assert program.do("cuModuleLoadData(ref(m), b'image')") == 218
    assert program.later_free() == GIB - CONTEXT
