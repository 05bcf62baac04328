# SPDX-License-Identifier: Apache-2.0
"""The quota of device memory: exact to the byte, over all processes, whatever way and ABI they come in."""

from __future__ import annotations

import contextlib

import pytest

from tests.native.running import (
    CONTEXT,
    GIB,
    INVALID_CONTEXT,
    INVALID_VALUE,
    KIB,
    MIB,
    MODES,
    OUT_OF_MEMORY,
    SUCCESS,
    eventually,
)

UNTOUCHED = 0x5555


@pytest.mark.parametrize("mode", MODES)
def test_every_way_in_meets_the_limit(place, mode):
    with place.client("1GiB", mode) as client:
        client.ready()
        assert client.free() == GIB - CONTEXT
        assert client.do("alloc a", GIB - CONTEXT + 1).code == OUT_OF_MEMORY
        assert client.do("alloc a", GIB - CONTEXT).code == SUCCESS
        refused = client.do("alloc b", 1)
        assert (refused.code, refused.first) == (OUT_OF_MEMORY, UNTOUCHED)
        assert client.free() == 0
        assert client.do("free a").code == SUCCESS
        assert client.free() == GIB - CONTEXT
        assert client.close() == ""


@pytest.mark.parametrize("processes", [2, 5, 8])
def test_processes_share_one_quota_exactly(place, processes):
    limit = processes * CONTEXT + processes * 7 * MIB
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(place.client(f"{limit}")).ready() for _ in range(processes)]
        for client in clients:
            assert client.do("alloc a", 7 * MIB).code == SUCCESS
        for client in clients:
            assert client.free() == 0
            assert client.do("alloc b", 1).code == OUT_OF_MEMORY
        assert clients[0].do("free a").code == SUCCESS
        assert clients[1].do("alloc b", 7 * MIB).code == SUCCESS
        assert clients[0].do("alloc a", 1).code == OUT_OF_MEMORY


def test_processes_that_race_for_the_rest_get_exactly_the_rest(place):
    blocks = 1000
    limit = 4 * CONTEXT + blocks * 64 * KIB
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(place.client(f"{limit}")).ready() for _ in range(4)]
        for client in clients:
            client.tell("fill a", 64 * KIB)
        answers = [client.hear() for client in clients]
        assert {answer.code for answer in answers} == {OUT_OF_MEMORY}
        assert sum(answer.first for answer in answers) == blocks
        assert clients[0].free() == 0


def test_memory_of_a_killed_process_comes_back(place):
    with place.client("1GiB") as survivor:
        survivor.ready()
        victim = place.client("1GiB").ready()
        assert victim.do("alloc a", 700 * MIB).code == SUCCESS
        assert survivor.do("alloc a", 200 * MIB).code == OUT_OF_MEMORY
        victim.kill()
        assert survivor.do("alloc a", GIB - CONTEXT).code == SUCCESS
        assert eventually(lambda: survivor.free() == 0)


def test_sizes_are_charged_in_grains_of_256_bytes(place):
    with place.client("1GiB") as client:
        client.ready()
        before = client.free()
        for size, charged in ((1, 256), (256, 256), (257, 512), (MIB + 1, MIB + 256)):
            assert client.do("alloc a", size).code == SUCCESS
            assert before - client.free() == charged, size
            client.do("free a")


def test_a_limit_that_is_no_grain_is_never_exceeded(place):
    with place.client(str(CONTEXT + 1000)) as client:
        client.ready()
        assert client.free() == 768
        assert client.do("alloc a", 769).code == OUT_OF_MEMORY
        assert client.do("alloc a", 768).code == SUCCESS


def test_pitched_memory_is_charged_with_its_padding(place):
    with place.client("1GiB") as client:
        client.ready()
        before = client.free()
        answer = client.do("pitch a", 1000, 1000)
        assert answer.code == SUCCESS
        assert answer.second >= 1000
        assert before - client.free() == answer.second * 1000
        assert client.do("free a").code == SUCCESS
        assert client.free() == before


def test_a_pitch_that_does_not_fit_leaves_nothing_behind(place):
    width, height = 513, 1024  # 512 kB without padding, 1 MiB with the driver's 512-byte rows
    with place.client(str(CONTEXT + 600 * KIB)) as client:
        client.ready()
        before = client.free()
        answer = client.do("pitch a", width, height)
        assert (answer.code, answer.first, answer.second) == (OUT_OF_MEMORY, UNTOUCHED, 0x77)
        assert client.free() == before
        assert client.do("alloc a", before).code == SUCCESS, "the driver's block was freed again"


def test_managed_memory_counts(place):
    with place.client("1GiB") as client:
        client.ready()
        assert client.do("managed a", GIB).code == OUT_OF_MEMORY
        assert client.do("managed a", GIB - CONTEXT).code == SUCCESS
        assert client.do("alloc b", 1).code == OUT_OF_MEMORY
        assert client.do("free a").code == SUCCESS
        assert client.do("alloc b", GIB - CONTEXT).code == SUCCESS


def test_old_and_new_abi_share_the_quota(place):
    with place.client("1GiB") as client:
        client.ready()
        before = client.free()
        assert client.do("alloc1 a", 5 * MIB).code == SUCCESS
        assert client.do("alloc b", 7 * MIB).code == SUCCESS
        pitched = client.do("pitch1 c", 1000, 64)
        assert pitched.code == SUCCESS
        assert before - client.free() == 12 * MIB + pitched.second * 64
        assert client.do("free1 a").code == SUCCESS
        assert client.do("free b").code == SUCCESS
        assert client.do("free1 c").code == SUCCESS
        assert client.free() == before
        refused = client.do("alloc1 a", 2 * GIB)
        assert (refused.code, refused.first) == (OUT_OF_MEMORY, 0x55)


def test_double_and_unknown_frees_refund_nothing(place):
    with place.client("1GiB") as client:
        client.ready()
        before = client.free()
        client.do("alloc a", MIB)
        assert client.do("free a").code == SUCCESS
        assert client.do("free a").code == INVALID_VALUE
        assert client.do("freeaddress x", 0x1234500).code == INVALID_VALUE
        assert client.do("freeaddress x", 0).code == SUCCESS
        assert client.free() == before


def test_zero_and_absurd_sizes(place):
    with place.client("1GiB") as client:
        client.ready()
        before = client.free()
        assert client.do("alloc a", 0).code == INVALID_VALUE
        for size in (2**63, 2**64 - 1, 2**47, 2**64 - 255):
            assert client.do("alloc a", size).code == OUT_OF_MEMORY, size
        for width, height in ((2**62, 8), (2**63, 2**63), (2**32, 2**32)):
            assert client.do("pitch a", width, height).code == OUT_OF_MEMORY
        assert client.free() == before


def test_without_a_context_the_driver_gives_its_own_error(place):
    with place.client("1GiB") as client:
        client.ready()
        before = client.free()
        client.do("nocontext")
        assert client.do("alloc a", MIB).code == INVALID_CONTEXT
        assert client.do("info").code == INVALID_CONTEXT
        client.do("current z")
        assert client.free() == before


def test_each_device_has_its_own_limit(place):
    with place.client("0=1GiB,1=2GiB") as client:
        client.ready(0)
        assert client.do("total a", 0).first == GIB
        assert client.do("total a", 1).first == 2 * GIB
        assert client.do("alloc a", GIB).code == OUT_OF_MEMORY
        assert client.do("retain y", 1).code == SUCCESS
        client.do("current y")
        assert client.do("alloc a", 2 * GIB - CONTEXT).code == SUCCESS
        client.do("current z")
        assert client.do("alloc b", GIB - CONTEXT).code == SUCCESS


def test_the_real_gpu_can_be_smaller_than_the_limit(place):
    with place.client("100GiB") as client:
        client.ready()
        before = client.free()
        assert client.do("alloc a", 30 * GIB).code == OUT_OF_MEMORY
        assert client.free() == before, "what the driver refused is given back"


def test_threads_share_allocation_table_and_quota(place):
    with place.client("1GiB") as client:
        client.ready()
        before = client.free()
        assert client.do("threads 8", 5000, 4 * KIB).first == 0
        assert client.free() == before
        assert client.do("threads 8", 2000, GIB // 4).first < 8 * 2000
        assert client.free() == before


def test_fork_gives_the_child_nothing_of_its_parent(place):
    with place.client("1GiB") as client:
        client.ready()
        client.do("alloc a", 500 * MIB)
        used = client.free()
        client.tell("fork")
        child = client.hear()
        assert child.code == SUCCESS
        assert client.do("pid").first == child.first
        assert client.do("alloc b", MIB).code != SUCCESS, "a forked child has no working CUDA"
        assert used == GIB - CONTEXT - 500 * MIB
        with place.client("1GiB") as other:
            other.ready()
            assert other.free() == GIB - 2 * CONTEXT - 500 * MIB, "the parent's memory counts once"


def test_exec_starts_with_nothing(place):
    with place.client("1GiB") as client:
        client.ready()
        client.do("alloc a", 500 * MIB)
        client.tell("exec")
        client.ready()
        assert eventually(lambda: client.free() == GIB - CONTEXT)
        assert client.do("alloc a", GIB - CONTEXT).code == SUCCESS


def test_what_was_held_before_exec_is_free_although_the_new_program_allocates_nothing(place):
    with place.client("1GiB") as client, place.client("1GiB") as other:
        client.ready()
        other.ready()
        client.do("alloc a", 500 * MIB)
        client.tell("exec")
        assert client.do("init").code == SUCCESS, "the new program uses the ledger, and never takes a slot"
        assert eventually(lambda: other.free() == GIB - CONTEXT, 5)
        assert other.do("alloc a", GIB - CONTEXT).code == SUCCESS


def test_a_free_that_the_driver_refuses_keeps_the_charge(place):
    with place.client("1GiB") as client:
        client.ready()
        before = client.free()
        client.do("alloc a", MIB)
        client.do("nocontext")
        assert client.do("free a").code == INVALID_CONTEXT
        client.do("current z")
        assert before - client.free() == MIB
        assert client.do("free a").code == SUCCESS
        assert client.free() == before


def test_a_full_gpu_refuses_and_the_quota_gets_its_bytes_back(place):
    with place.client() as neighbour, place.client("4GiB") as client:
        neighbour.ready()
        client.ready()
        for size in (GIB, 16 * MIB, MIB):
            assert neighbour.do("fill a", size).code == OUT_OF_MEMORY
        before = client.free()
        assert before == 4 * GIB - CONTEXT
        for command in ("alloc a", "pitch a"):
            assert client.do(command, 2 * GIB, 1).code == OUT_OF_MEMORY
        assert client.do("managed a", 2 * GIB, 1).code == SUCCESS, "takes no memory of the GPU yet"
        assert client.free() == before - 2 * GIB
        assert client.do("free a").code == SUCCESS
        assert client.do("create2 k", 0).code == OUT_OF_MEMORY
        client.do("current z")
        assert client.free() == before


START_TOGETHER = """
import ctypes, threading
cuda = ctypes.CDLL("libcuda.so.1")
barrier, codes = threading.Barrier(8), []
def start():
    context, block = ctypes.c_void_p(), ctypes.c_uint64()
    barrier.wait()
    codes.append(cuda.cuInit(0))
    codes.append(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    codes.append(cuda.cuCtxSetCurrent(context))
    codes.append(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1 << 20)))
threads = [threading.Thread(target=start) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
free, total, context = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(set(codes), free.value)
"""


def test_threads_that_start_together_attach_once(place, python):
    for _ in range(5):
        done = place.run(python, "-c", START_TOGETHER, limit="1GiB")
        assert done.stdout.strip() == f"{{0}} {GIB - CONTEXT - 8 * MIB}", done.stderr
