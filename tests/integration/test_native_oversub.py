# SPDX-License-Identifier: Apache-2.0
"""Beyond the physical share memory is managed, and the program takes it for the GPU's own."""

from __future__ import annotations

import pytest

from tests.fakedriver.env import write_machine
from tests.native import scripted
from tests.native.running import (
    CONTEXT,
    GIB,
    INVALID_VALUE,
    MIB,
    NOT_READY,
    OUT_OF_MEMORY,
    SUCCESS,
    Client,
    Place,
)
from vcuda import read_ledger, read_limits, set_memory_limit, set_physical_limit

MEMORY, PHYSICAL = 8 * GIB, 4 * GIB
NOT_SUPPORTED, CAPTURE_UNSUPPORTED = 801, 900
DEVICE_TYPE, MEMORY_TYPE, HOST_POINTER, IS_MANAGED = 2, 2, 4, 8


def oversubscribed(place: Place, **extra: str) -> dict[str, str]:
    return place.env("8GiB", VCUDA_PHYSICAL_LIMIT="4GiB", **extra)


@pytest.fixture
def client(place):
    with Client(oversubscribed(place)) as client:
        yield client.ready()


@pytest.fixture
def cuda13(tmp_path):
    """A machine whose driver has pools of managed memory."""
    return Place(tmp_path, write_machine(tmp_path, like="two-24g", name="machine-13", cuda_version=13000))


def parts(place: Place) -> tuple[int, int]:
    """Real and managed bytes of GPU 0 in the ledger."""
    usage = read_ledger(place.quota / "ledger")
    uuid = usage.gpu_uuids[0]
    return usage.used(uuid) - usage.managed(uuid), usage.managed(uuid)


# --- linear memory --------------------------------------------------------------------------------------------------


def test_real_first_then_managed_then_nothing(place, client):
    for name in "abcdefg":
        assert client.do(f"alloc {name}", GIB).code == SUCCESS
    real, managed = parts(place)
    assert real == 3 * GIB + CONTEXT
    assert managed == 4 * GIB
    assert client.do("alloc h", GIB).code == OUT_OF_MEMORY
    assert client.do("info").first == MEMORY - 7 * GIB - CONTEXT
    assert client.do("total a", 0).first == MEMORY
    assert client.do("free a").code == SUCCESS
    assert parts(place) == (real - GIB, managed)
    assert client.do("alloc a", GIB).code == SUCCESS  # what is free on the GPU is used first
    assert parts(place) == (real, managed)
    for name in "abcdefg":
        assert client.do(f"free {name}").code == SUCCESS
    assert parts(place) == (CONTEXT, 0)


def test_a_quota_is_not_exceeded_by_many_processes(place):
    clients = [Client(oversubscribed(place)).ready() for _ in range(3)]
    try:
        allocated = 0
        for i in range(60):
            allocated += clients[i % 3].do(f"alloc {chr(97 + i // 3)}", 200 * MIB).code == SUCCESS
        real, managed = parts(place)
        assert real <= PHYSICAL
        assert managed <= MEMORY - PHYSICAL
        assert allocated == (real - 3 * CONTEXT + managed) // (200 * MIB)
        assert PHYSICAL - real < 200 * MIB
        assert MEMORY - PHYSICAL - managed < 200 * MIB
    finally:
        for client in clients:
            client.kill()
    with Client(oversubscribed(place)) as client:
        assert client.ready().do("alloc a", 3 * GIB).code == SUCCESS
        assert client.do("alloc b", 4 * GIB).code == SUCCESS
        assert parts(place) == (3 * GIB + CONTEXT, 4 * GIB)


def test_pitched_memory_beyond_the_share(place, client):
    assert client.do("alloc a", 3800 * MIB).code == SUCCESS
    before = parts(place)
    answer = client.do("pitch b", 1000, 600000)
    assert answer.code == SUCCESS
    assert answer.second == 1024
    assert parts(place) == (before[0], 1024 * 600000)
    assert client.do("free b").code == SUCCESS
    assert parts(place) == (before[0], 0)


def test_the_oldest_calls_stay_real(place, client):
    assert client.do("alloc a", 3800 * MIB).code == SUCCESS
    assert client.do("alloc1 b", 300 * MIB).code == OUT_OF_MEMORY
    assert parts(place)[1] == 0


def test_a_full_gpu_is_evaded(place):
    """The physical share has room, the GPU has none: a process without limits has it."""
    with Client(place.plain_env()) as greedy, Client(oversubscribed(place)) as client:
        client.ready()
        left = greedy.ready().do("info").first
        assert greedy.do("alloc a", left - 100 * MIB).code == SUCCESS
        assert client.do("alloc a", GIB).code == SUCCESS
        assert parts(place) == (CONTEXT, GIB)
        assert client.do("pitch b", 1024, 200 * MIB // 1024).code == SUCCESS
        assert parts(place) == (CONTEXT, GIB + 200 * MIB)


def test_limits_change_live(place, client):
    assert client.do("alloc a", 3 * GIB).code == SUCCESS
    page = place.quota / "limits"
    uuid = read_limits(page).gpus[0].uuid
    set_physical_limit(page, uuid, MEMORY)
    assert client.do("alloc b", 2 * GIB).code == SUCCESS
    assert parts(place)[1] == 0
    set_physical_limit(page, uuid, PHYSICAL)
    assert client.do("alloc c", GIB).code == SUCCESS
    assert parts(place) == (5 * GIB + CONTEXT, GIB)
    set_memory_limit(page, uuid, 5 * GIB)
    assert client.do("alloc d", MIB).code == OUT_OF_MEMORY


def test_a_killed_process_leaves_nothing(place):
    for _ in range(3):
        with Client(oversubscribed(place)) as client:
            assert client.ready().do("alloc a", 3 * GIB).code == SUCCESS
            assert client.do("alloc b", 4 * GIB).code == SUCCESS
            client.kill()
    assert parts(place) == (0, 0)


def test_managed_memory_of_the_program_fills_the_host_budget_first(place, client):
    assert client.do("managed a", 3 * GIB).code == SUCCESS
    assert parts(place) == (CONTEXT, 3 * GIB)
    assert client.do("managed b", 2 * GIB).code == SUCCESS
    assert parts(place) == (2 * GIB + CONTEXT, 3 * GIB)
    assert client.do("managed c", 3 * GIB).code == OUT_OF_MEMORY


def test_physical_memory_by_handle_stays_real(place, client):
    assert client.do("alloc a", 3 * GIB).code == SUCCESS
    assert client.do("physical p", GIB).code == OUT_OF_MEMORY
    assert client.do("alloc b", GIB).code == SUCCESS
    assert client.do("physical p", 512 * MIB).code == SUCCESS


def test_fork_starts_with_empty_tables(place, client):
    assert client.do("alloc a", 5 * GIB).code == OUT_OF_MEMORY
    assert client.do("alloc a", 4 * GIB).code == SUCCESS
    assert client.do("fork").code == SUCCESS
    assert parts(place)[1] == 4 * GIB


# --- what the program sees ------------------------------------------------------------------------------------------


@pytest.fixture
def program(place):
    with scripted.Program(oversubscribed(place)) as program:
        program.ready()
        assert (
            program.do(
                "[keep(a=c_ulonglong(), b=c_ulonglong()), cuMemAlloc_v2(ref(a), c_size_t(3 << 30))][1]"
            )
            == SUCCESS
        )
        assert program.do("cuMemAlloc_v2(ref(b), c_size_t(1 << 30))") == SUCCESS
        assert parts(place) == (3 * GIB + CONTEXT, GIB)
        yield program


def attribute(
    program: scripted.Program, number: int, address: str, kind: str = "c_ulonglong"
) -> tuple[int, int]:
    program.do(f"keep(out={kind}(77))")
    code = program.do(f"cuPointerGetAttribute(ref(out), {number}, {address})")
    return code, program.do("out.value or 0")


@pytest.mark.parametrize("address", ["a", "b", "c_ulonglong(b.value + 12345)"])
def test_pointer_attributes_are_those_of_device_memory(program, address):
    assert attribute(program, IS_MANAGED, address, "ctypes.c_ubyte") == (SUCCESS, 0)
    assert attribute(program, MEMORY_TYPE, address, "c_uint") == (SUCCESS, DEVICE_TYPE)
    assert attribute(program, HOST_POINTER, address)[0] == INVALID_VALUE


def test_many_pointer_attributes_at_once(program):
    program.do("keep(kinds=(c_int * 3)(2, 4, 8), t=c_uint(9), h=c_void_p(9), m=ctypes.c_ubyte(9))")
    program.do("keep(where=(c_void_p * 3)(*(ctypes.addressof(x) for x in (t, h, m))))")
    assert program.do("cuPointerGetAttributes(3, kinds, where, b)") == SUCCESS
    assert program.do("[t.value, h.value, m.value]") == [DEVICE_TYPE, None, 0]
    program.do("keep(c=c_ulonglong())")
    assert program.do("cuMemAllocManaged(ref(c), c_size_t(1 << 20), 1)") == SUCCESS
    assert program.do("cuPointerGetAttributes(3, kinds, where, c)") == SUCCESS
    assert program.do("m.value") == 1  # what the program itself made managed says so


@pytest.mark.parametrize("address", ["b", "c_ulonglong(b.value + 4096)"])
def test_a_thread_without_a_context_is_told_the_same(program, address):
    assert program.do("cuCtxSetCurrent(None)") == SUCCESS
    assert attribute(program, IS_MANAGED, address, "ctypes.c_ubyte") == (SUCCESS, 0)
    assert attribute(program, HOST_POINTER, address)[0] == INVALID_VALUE


def test_only_device_memory_can_be_shared_and_the_reason_is_said(program):
    program.do("keep(handle=(ctypes.c_char * 64)(), fd=c_int())")
    assert program.do("cuIpcGetMemHandle(handle, a)") == SUCCESS
    assert program.do("cuIpcGetMemHandle(handle, b)") == INVALID_VALUE
    assert (
        program.do("cuMemGetHandleForAddressRange(ref(fd), b, c_size_t(1 << 21), 1, c_ulonglong(0))")
        == NOT_SUPPORTED
    )
    lines = program.close().splitlines()
    assert len(lines) == 2
    assert all("beyond the physical share" in line and "larger physical share" in line for line in lines)


def test_advice_is_for_managed_memory(program):
    assert program.do("cuMemAdvise(b, c_size_t(1 << 20), 3, 0)") == INVALID_VALUE
    assert program.do("cuMemPrefetchAsync(b, c_size_t(1 << 20), 0, None)") == INVALID_VALUE
    program.do("keep(c=c_ulonglong())")
    assert program.do("cuMemAllocManaged(ref(c), c_size_t(1 << 20), 1)") == SUCCESS
    assert program.do("cuMemAdvise(c, c_size_t(1 << 20), 3, 0)") == SUCCESS
    assert program.do("cuMemPrefetchAsync(c, c_size_t(1 << 20), 0, None)") == SUCCESS


# Calls for managed memory alone, in all their versions: b is ours, c the program's own.
FOR_MANAGED = [
    "cuMemAdvise({}, c_size_t(1 << 20), 3, 0)",
    "cuMemAdvise_v2({}, c_size_t(1 << 20), 3, Location(1, 0))",
    "cuMemPrefetchAsync({}, c_size_t(1 << 20), 0, None)",
    "cuMemPrefetchAsync_ptsz({}, c_size_t(1 << 20), 0, None)",
    "cuMemPrefetchAsync_v2({}, c_size_t(1 << 20), Location(1, 0), 0, None)",
    "cuMemPrefetchAsync_v2_ptsz({}, c_size_t(1 << 20), Location(1, 0), 0, None)",
    "cuMemRangeGetAttribute(ref(c_int()), c_size_t(4), 2, {}, c_size_t(1 << 20))",
    "cuMemRangeGetAttributes((c_void_p * 1)(ctypes.addressof(word)), (c_size_t * 1)(4), (c_int * 1)(2), c_size_t(1), "
    "{}, c_size_t(1 << 20))",
    "cuStreamAttachMemAsync(None, {}, c_size_t(0), 1)",
    "cuStreamAttachMemAsync_ptsz(None, {}, c_size_t(0), 1)",
]


@pytest.mark.parametrize("call", FOR_MANAGED, ids=[call.partition("(")[0] for call in FOR_MANAGED])
def test_calls_for_managed_memory_take_it_for_device_memory(program, call):
    program.do("keep(c=c_ulonglong(), word=c_int())")
    program.do(
        "keep(Location=type('Location', (ctypes.Structure,), {'_fields_': [('type', c_int), ('id', c_int)]}))"
    )
    assert program.do("cuMemAllocManaged(ref(c), c_size_t(1 << 20), 1)") == SUCCESS
    assert program.do(call.format("a")) == INVALID_VALUE, "what the driver says of device memory"
    assert program.do(call.format("b")) == INVALID_VALUE
    assert program.do(call.format("c")) == SUCCESS


def test_freed_in_stream_order_it_waits_for_the_stream(place, program):
    program.do("keep(stream=Handle())")
    assert program.do("cuStreamCreate(ref(stream), 1)") == SUCCESS
    assert program.do("cuMemFreeAsync(b, stream)") == SUCCESS
    assert parts(place) == (3 * GIB + CONTEXT, 0)


def test_in_a_capture_nothing_is_managed(place, program):
    program.do("keep(stream=Handle(), c=c_ulonglong(), graph=Handle())")
    assert program.do("cuStreamCreate(ref(stream), 1)") == SUCCESS
    assert program.do("cuStreamBeginCapture_v2(stream, 2)") == SUCCESS
    assert program.do("cuMemFreeAsync(b, stream)") != SUCCESS
    assert parts(place) == (3 * GIB + CONTEXT, GIB)
    program.do("cuStreamEndCapture(stream, ref(graph))")
    assert program.do("cuMemFree_v2(b)") == SUCCESS


def test_a_capture_elsewhere_survives_that_its_stream_is_waited_for(place, program):
    program.do("keep(stream=Handle(), captured=Handle(), graph=Handle())")
    assert program.do("cuStreamCreate(ref(stream), 1)") == SUCCESS
    assert program.do("cuStreamCreate(ref(captured), 1)") == SUCCESS
    assert program.do("cuStreamBeginCapture_v2(captured, 0)") == SUCCESS
    assert program.do("cuMemFreeAsync(b, stream)") == SUCCESS
    assert parts(place) == (3 * GIB + CONTEXT, 0)
    assert program.do("cuStreamSynchronize(stream)") == CAPTURE_UNSUPPORTED, "the thread's mode is as it was"
    program.do("cuStreamEndCapture(captured, ref(graph))")
    assert program.do("cuStreamBeginCapture_v2(captured, 0)") == SUCCESS
    assert program.do("cuMemFreeAsync(a, stream)") == SUCCESS, "what the driver does with the GPU's own"
    assert program.do("cuStreamEndCapture(captured, ref(graph))") == SUCCESS


# --- stream-ordered memory ------------------------------------------------------------------------------------------


def test_stream_ordered_memory_without_managed_pools_is_refused(place):
    with scripted.Program(oversubscribed(place)) as program:
        program.ready().do("keep(a=c_ulonglong(), b=c_ulonglong())")
        assert program.do("cuMemAllocAsync(ref(a), c_size_t(3 << 30), None)") == SUCCESS
        assert program.do("cuMemAllocAsync(ref(b), c_size_t(1 << 30), None)") == OUT_OF_MEMORY
        assert "no pools of managed memory" in program.close()


def test_stream_ordered_memory_from_a_managed_pool(cuda13):
    place = cuda13
    with scripted.Program(oversubscribed(place)) as program:
        program.ready().do("keep(a=c_ulonglong(), b=c_ulonglong(), c=c_ulonglong(), stream=Handle())")
        assert program.do("cuStreamCreate(ref(stream), 1)") == SUCCESS
        assert program.do("cuMemAllocAsync(ref(a), c_size_t(3 << 30), stream)") == SUCCESS
        assert program.do("cuMemAllocAsync(ref(b), c_size_t(2 << 30), stream)") == SUCCESS
        assert parts(place) == (3 * GIB + CONTEXT, 2 * GIB)
        assert attribute(program, IS_MANAGED, "b", "ctypes.c_ubyte") == (SUCCESS, 0)
        assert program.do("cuMemAllocAsync(ref(c), c_size_t(3 << 30), stream)") == OUT_OF_MEMORY
        assert program.do("cuMemFreeAsync(b, stream)") == SUCCESS
        assert program.do("cuStreamSynchronize(stream)") == SUCCESS
        # The pool keeps what it has, until something else needs the budget.
        assert parts(place) == (3 * GIB + CONTEXT, 2 * GIB)
        assert program.do("cuMemAlloc_v2(ref(c), c_size_t(4 << 30))") == SUCCESS
        assert parts(place) == (3 * GIB + CONTEXT, 4 * GIB)
        assert program.close() == ""


# --- refusals -------------------------------------------------------------------------------------------------------


def machine_without_access(tmp_path):
    return Place(tmp_path, write_machine(tmp_path, like="two-24g", name="no-access", managed_access="no"))


def test_without_concurrent_access_it_is_refused_with_a_reason(tmp_path):
    place = machine_without_access(tmp_path)
    with Client(oversubscribed(place)) as client:
        client.ready()
        assert client.do("alloc a", 3 * GIB).code == SUCCESS
        assert client.do("alloc b", GIB).code == OUT_OF_MEMORY
        assert client.do("alloc b", GIB).code == OUT_OF_MEMORY
        lines = client.close().splitlines()
    assert len(lines) == 1
    assert "concurrentManagedAccess" in lines[0]
    assert parts(place) == (0, 0)


@pytest.mark.parametrize(
    "call",
    ["cuMemAlloc_v2(ref(b), c_size_t(2 << 30))", "cuMemAllocPitch_v2(ref(b), ref(pitch), 1024, 2 << 20, 4)"],
)
def test_what_a_pool_keeps_unused_is_given_back_before_that(tmp_path, call):
    """The physical share is full, but only of what is not in use."""
    place = machine_without_access(tmp_path)
    with scripted.Program(oversubscribed(place)) as program:
        program.ready().do("keep(a=c_ulonglong(), b=c_ulonglong(), pitch=c_size_t(), pool=Handle())")
        for step in (
            "cuDeviceGetDefaultMemPool(ref(pool), 0)",
            "cuMemPoolSetAttribute(pool, 4, ref(c_ulonglong(2**64 - 1)))",
            "cuMemAllocAsync(ref(a), c_size_t(3 << 30), None)",
            "cuMemFreeAsync(a, None)",
            "cuCtxSynchronize()",
        ):
            assert program.do(step) == SUCCESS, step
        assert parts(place) == (3 * GIB + CONTEXT, 0)
        assert program.do(call) == SUCCESS
        assert parts(place) == (2 * GIB + CONTEXT, 0)
        assert program.do("cuMemFree_v2(b)") == SUCCESS
        assert parts(place) == (CONTEXT, 0)


def test_a_host_without_memory_is_not_asked_for_more(tmp_path):
    place = Place(tmp_path, machine="dgx-h200")
    with Client(place.env("64TiB", VCUDA_PHYSICAL_LIMIT="1GiB")) as client:
        client.ready()
        answer = client.do("alloc a", 32 << 40)
        assert answer.code == OUT_OF_MEMORY
        assert "the host has" in client.close()


@pytest.mark.parametrize(
    ("memory", "physical", "words"),
    [
        (None, "4GiB", "without VCUDA_MEMORY_LIMIT"),
        ("8GiB", "9GiB", "it is the part of VCUDA_MEMORY_LIMIT"),
        ("8GiB", "lots", "VCUDA_PHYSICAL_LIMIT: "),
        ("8GiB", "", "is empty"),
        ("8GiB", "0=4GiB", "name each in both"),
        ("0=8GiB", "1=4GiB", "name each in both"),
    ],
)
def test_settings_that_make_no_sense_are_refused(place, memory, physical, words):
    env = place.env(memory, VCUDA_PHYSICAL_LIMIT=physical)
    with Client(env) as client:
        assert client.do("init").code == NOT_READY
        lines = client.close().splitlines()
    assert len(lines) == 1
    assert words in lines[0]


def test_the_second_process_says_the_same(place, client):
    with Client(place.env("8GiB", VCUDA_PHYSICAL_LIMIT="5GiB")) as other:
        assert other.do("init").code == NOT_READY
        assert "VCUDA_PHYSICAL_LIMIT gives" in other.close()
    with Client(place.env("8GiB")) as other:
        assert other.do("init").code == NOT_READY
    with Client(oversubscribed(place)) as other:
        assert other.do("init").code == SUCCESS


def test_shares_by_gpu(place):
    with Client(place.env("0=8GiB,1=6GiB", VCUDA_PHYSICAL_LIMIT="1=2GiB")) as client:
        client.ready(1)
        assert client.do("alloc a", 3 * GIB).code == SUCCESS
        gpus = read_limits(place.quota / "limits").gpus
        assert [gpu.physical_bytes for gpu in gpus] == [0, 2 * GIB]
        usage = read_ledger(place.quota / "ledger")
        assert usage.managed(usage.gpu_uuids[1]) == 3 * GIB


def test_three_jobs_of_8_gib_on_a_gpu_of_16(tmp_path):
    """16 GiB of GPU and 8 GiB of host memory: what plain device memory refuses, managed memory holds."""
    machine = write_machine(tmp_path, "gpu 0:\n  memory: 16GiB", context_memory="100MiB")
    jobs = []
    try:
        for i in range(3):
            place = Place(tmp_path, machine, settings={"VCUDA_DIR": str(tmp_path / f"job{i}")})
            env = place.env() | {"VCUDA_MEMORY_LIMIT": "8GiB", "VCUDA_PHYSICAL_LIMIT": "4GiB"}
            jobs.append(Client(env).ready())
            for name in "abcdefg":
                assert jobs[-1].do(f"alloc {name}", GIB).code == SUCCESS, (i, name)
        usage = read_ledger(tmp_path / "job2" / "ledger")
        assert usage.used(usage.gpu_uuids[0]) == 7 * GIB + CONTEXT
    finally:
        for job in jobs:
            job.kill()
