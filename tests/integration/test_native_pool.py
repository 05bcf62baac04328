# SPDX-License-Identifier: Apache-2.0
"""Stream-ordered memory counts: what a pool holds, not what lives in it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.fakedriver.env import write_machine
from tests.native.running import (
    CONTEXT,
    GIB,
    INVALID_CONTEXT,
    INVALID_VALUE,
    KIB,
    MIB,
    NOT_INITIALIZED,
    OUT_OF_MEMORY,
    ROOT,
    Place,
    eventually,
)
from tests.unit.fakedriver.conftest import Peer
from vcuda import read_ledger

DEVICE, HOST, NOWHERE = 1, 2, 0
UNKNOWN = 999
CHUNK = 32 * MIB  # of pools on the simulated machines


class Pools:
    """Processes of one container, and one outside that sees what is physically used."""

    def __init__(self, place: Place, limit: str) -> None:
        self.place, self.limit = place, limit
        self.peers: list[Peer] = []
        self.outside = self.start(place.plain_env())

    def start(self, env: dict[str, str]) -> Peer:
        peer = Peer(env | {"PYTHONPATH": str(ROOT)}, module="tests.native.pool_client")
        self.peers.append(peer)
        return peer

    def peer(self, device: int = 0, **extra: str) -> Peer:
        """A process under the quota with a current context."""
        peer = self.start(self.place.env(self.limit, **extra))
        peer(f"context({device})")
        return peer

    def peak(self) -> int:
        """The most that the ledger ever held of GPU 0."""
        return max(read_ledger(self.place.quota / "ledger").peak.values())

    def physical(self, gpu: int = 0) -> int:
        """Bytes used on the GPU, contexts included."""
        return int(self.outside(f"gpu_used({gpu})"))


@pytest.fixture
def pools(tmp_path):
    started = []

    def start(limit: str = "1GiB", machine: str | Path = "two-24g") -> Pools:
        started.append(Pools(Place(tmp_path, machine=machine), limit))
        return started[-1]

    yield start
    for each in started:
        for peer in each.peers:
            peer.kill()


@pytest.mark.parametrize("twin", ["", "_ptsz"])
def test_a_pool_costs_what_it_holds(pools, twin):
    here = pools()
    peer = here.peer()
    first = peer(f"take({MIB}, twin='{twin}')")
    assert first > 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    second = peer(f"take({100 * MIB}, twin='{twin}')")
    assert peer("used()") == CONTEXT + 4 * CHUNK == here.physical()
    assert peer(f"give({second}, twin='{twin}')") == 0
    assert peer("used()") == CONTEXT + 4 * CHUNK, "the pool holds it until something synchronises"
    assert peer(f"sync(twin='{twin}')") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"give({first}, twin='{twin}')") == 0
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_a_refusal_touches_nothing(pools):
    here = pools(str(CONTEXT + 4 * CHUNK))
    peer = here.peer()
    assert peer(f"take({4 * CHUNK})") > 0
    assert peer("used()") == CONTEXT + 4 * CHUNK
    assert peer("take(1)") == -OUT_OF_MEMORY
    assert peer(f"take({1 << 62})") == -OUT_OF_MEMORY
    assert peer("take(0)") == -INVALID_VALUE
    assert peer(f"call('cuMemAllocAsync', None, c_size_t({MIB}), None)") == INVALID_VALUE
    assert peer("used()") == CONTEXT + 4 * CHUNK == here.physical()
    assert peer("alloc(1)") == -OUT_OF_MEMORY


def test_a_chunk_that_does_not_fit_is_given_back(pools):
    here = pools(str(CONTEXT + CHUNK + 8 * MIB))
    peer = here.peer()
    first = peer(f"take({MIB})")
    assert first > 0
    assert peer(f"take({35 * MIB})") == -OUT_OF_MEMORY, "36 MiB would fit, two chunks do not"
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"take({31 * MIB})") > 0, "what is there can be used to the end"
    assert peer("alloc(8 << 20)") > 0


def test_a_refused_growth_is_given_back_whatever_the_pool_would_keep(pools):
    here = pools(str(CONTEXT + CHUNK + 8 * MIB))
    peer = here.peer()
    assert peer("keep(default_pool(), 2**64 - 1)") == 0
    assert peer(f"take({MIB})") > 0
    for _ in range(3):
        assert peer(f"take({35 * MIB}, make_stream(1))") == -OUT_OF_MEMORY
        assert here.physical() <= CONTEXT + 2 * CHUNK
    assert peer("event_sync(0)") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()


def test_chunks_of_another_size_are_learned(pools, tmp_path):
    here = pools("1GiB", write_machine(tmp_path, gpus=1, pool_granularity="2MiB"))
    peer = here.peer()
    before = peer("used()")
    blocks = [peer(f"take({size})") for size in (1, 3 * MIB, 5 * MIB)]
    assert peer("used()") == before + 10 * MIB == here.physical()
    for block in blocks:
        assert peer(f"give({block})") == 0
    assert peer("call('cuCtxSynchronize')") == 0
    assert peer("used()") == before == here.physical()


@pytest.mark.parametrize("way", ["sync()", "event_sync(0)", "call('cuCtxSynchronize')", "sync(twin='_ptsz')"])
def test_a_synchronisation_gives_back(pools, way):
    here = pools()
    peer, other = here.peer(), here.peer()
    assert peer(f"give(take({800 * MIB}))") == 0
    assert other(f"alloc({500 * MIB})") == -OUT_OF_MEMORY
    assert peer(way) == 0
    assert other(f"alloc({500 * MIB})") > 0
    assert peer("used()") == 2 * CONTEXT + 500 * MIB == here.physical()


def test_what_waits_behind_a_kernel_is_given_back_when_its_own_stream_is_done(pools):
    """The other stream's synchronisation came first, and brought nothing back yet."""
    here = pools()
    peer = here.peer()
    peer("globals().update(s=make_stream(1), t=make_stream(1), kernel=function('work_1s'))")
    block = peer(f"take({28 * CHUNK}, s)")
    assert peer(f"launch(kernel, s) or give({block}, s) or sync(t)") == 0
    assert peer("used()") == CONTEXT + 28 * CHUNK == here.physical()
    assert peer("sync(s)") == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_a_pool_that_has_nothing_to_give_back_is_not_asked_again(pools):
    """Programs synchronise often: only the first time, after something was freed, costs questions to the driver."""
    here = pools()
    peer = here.peer()
    kept = peer(f"take({MIB})")
    assert peer(f"give(take({100 * MIB})) or sync()") == 0
    here.place.fakectl("count", "on")
    assert [peer("sync()") for _ in range(5)] == [0] * 5
    assert "cuMemPoolGetAttribute" not in json.loads(here.place.fakectl("state"))["calls"]
    assert peer(f"give({kept}) or sync()") == 0
    assert "cuMemPoolGetAttribute" in json.loads(here.place.fakectl("state"))["calls"]


def test_what_a_pool_keeps_counts_until_it_is_trimmed(pools):
    here = pools()
    peer, other = here.peer(), here.peer()
    peer("globals().update(pool=default_pool())")
    assert peer("keep(pool, 2**64 - 1)") == 0
    assert peer(f"give(take({800 * MIB}))") == 0
    assert peer("sync()") == 0
    assert peer("used()") == 2 * CONTEXT + 25 * CHUNK == here.physical()
    assert other(f"take({500 * MIB})") == -OUT_OF_MEMORY, "it is another process's to give"
    assert peer(f"trim(pool, {10 * CHUNK})") == 0
    assert peer("used()") == 2 * CONTEXT + 10 * CHUNK == here.physical()
    assert other(f"take({400 * MIB})") > 0
    assert peer("keep(pool, 0)") == 0
    assert peer("sync()") == 0
    assert peer("used()") == 2 * CONTEXT + 13 * CHUNK == here.physical()


def test_own_pools_are_trimmed_before_anything_is_refused(pools):
    here = pools()
    peer = here.peer()
    assert peer("keep(default_pool(), 2**64 - 1)") == 0
    assert peer(f"give(take({800 * MIB}))") == 0
    assert peer("sync()") == 0
    block = peer(f"alloc({500 * MIB})")
    assert block > 0
    assert peer("used()") == CONTEXT + 500 * MIB == here.physical()
    assert peer(f"take({400 * MIB})") > 0
    assert peer(f"free({block})") == 0
    assert peer(f"take({400 * MIB}, pool=make_pool())") > 0
    assert peer("used()") == here.physical()


def test_an_allocation_waits_for_what_its_own_stream_frees(pools):
    here = pools()
    peer = here.peer()
    peer("globals().update(s=make_stream(1), kernel=function('work_200ms'))")
    block = peer(f"take({800 * MIB}, s)")
    assert peer("launch(kernel, s)") == 0
    assert peer(f"give({block}, s)") == 0
    assert peer(f"take({500 * MIB}, s, make_pool())") > 0
    assert peer("used()") == CONTEXT + 16 * CHUNK == here.physical()


@pytest.mark.parametrize("mode", ["GLOBAL", "RELAXED"])
def test_a_capture_is_neither_charged_nor_disturbed(pools, mode):
    here = pools()
    peer = here.peer()
    peer("globals().update(s=make_stream(1), c=make_stream(1), kernel=function('work_100ms'))")
    before = peer(f"[take({500 * MIB}, s), used()][1]")
    assert peer(f"begin_capture(c, {mode})") == 0
    node = peer(f"take({20 * GIB}, c)")
    assert node > 0
    assert peer(f"give({node}, c)") == 0
    assert peer("used()") == before
    assert peer(f"launch(kernel, s) or give(take({350 * MIB}, s), s)") == 0
    assert peer(f"take({600 * MIB}, c)") > 0, "a node, whatever the quota has left"
    assert peer(f"take({450 * MIB}, s, make_pool())") == -OUT_OF_MEMORY
    assert peer("end_capture(c)") > 0, "the refusal has synchronised another stream, and it went unnoticed"
    assert peer("used()") == before == here.physical()


def test_either_call_frees_either_kind(pools):
    here = pools()
    peer = here.peer()
    linear, pooled, twice = peer(f"alloc({MIB})"), peer(f"take({MIB})"), peer(f"take({MIB})")
    assert peer(f"give({linear})") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"give({linear})") == INVALID_VALUE
    assert peer(f"free({pooled})") == 0
    assert peer(f"free({pooled})") == INVALID_VALUE
    assert peer(f"give({pooled})") == INVALID_VALUE
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"[call('cuCtxSetCurrent', None), give({twice})][1]") == INVALID_CONTEXT
    peer("context()")
    assert peer(f"give({twice}) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()
    assert peer("give(0x1234500)") == INVALID_VALUE


def test_a_destroyed_pool_costs_until_its_last_block_is_freed(pools):
    here = pools()
    peer = here.peer()
    peer("globals().update(pool=make_pool())")
    blocks = [peer(f"take({40 * MIB}, pool=pool)") for _ in range(2)]
    assert peer("used()") == CONTEXT + 3 * CHUNK
    assert peer("destroy(pool)") == 0
    assert peer("destroy(pool)") == INVALID_VALUE
    assert peer("take(1, pool=pool)") == -INVALID_VALUE
    assert peer(f"give({blocks[0]}) or sync()") == 0
    assert peer("used()") == CONTEXT + 3 * CHUNK == here.physical()
    assert peer(f"give({blocks[1]}) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()
    peer("globals().update(pool=make_pool())")
    peer(f"globals().update(block=take({MIB}, pool=pool))")
    assert peer("destroy(pool) or free(block)") == 0
    assert peer("used()") == CONTEXT == here.physical()
    assert peer(f"give(take({MIB}, pool=(pool := make_pool()))) or destroy(pool) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


def charged(here):
    """What the ledger says that all processes hold, whatever the quota is."""
    return sum(sum(slot.used.values()) for slot in read_ledger(here.place.quota / "ledger").processes)


def destroyed_while_a_free_waits(here, stream, **extra):
    """A process whose destroyed pool holds 896 MiB that are freed behind a kernel in STREAM."""
    peer = here.peer(**extra)
    peer("globals().update(s=make_stream(1), t=make_stream(1), kernel=function('work_1s'), pool=make_pool())")
    block = peer(f"take({28 * CHUNK}, {stream}, pool)")
    assert peer(f"launch(kernel, {stream}) or give({block}, {stream}) or destroy(pool)") == 0
    return peer


@pytest.mark.parametrize("stream", ["s", "0"])
@pytest.mark.parametrize(
    "way", ["sync(t)", "event_sync(t)", "sync(t, '_ptsz')", "in_second(0)", "in_second(1)"]
)
def test_another_synchronisation_frees_nothing_of_a_destroyed_pool(pools, stream, way):
    here = pools("0=2GiB,1=2GiB")
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    peer = destroyed_while_a_free_waits(here, stream)
    if way.startswith("in_second"):
        own = peer("context(0)")
        peer(f"globals().update(second=handles('cuCtxCreate_v2', 0, {way[-2]}))")
        assert peer("call('cuCtxSynchronize') or sync()") == 0
        peer(f"call('cuCtxSetCurrent', c_void_p({own}))")
    else:
        assert peer(way) == 0
    contexts = 2 * CONTEXT if way == "in_second(0)" else CONTEXT
    assert peer("used()") == contexts + 28 * CHUNK == here.physical()


@pytest.mark.parametrize(
    ("stream", "way"),
    [
        ("s", "sync(s)"),
        ("s", "call('cuCtxSynchronize')"),
        ("0", "sync()"),
        ("0", "sync(1)"),
        ("0", "call('cuCtxSynchronize')"),
        ("2", "sync(2)"),
        ("2", "sync(0, '_ptsz')"),
    ],
)
def test_what_its_stream_has_freed_is_paid_no_longer(pools, stream, way):
    here = pools()
    peer = destroyed_while_a_free_waits(here, stream)
    assert peer(f"take({20 * CHUNK}, t)") == -OUT_OF_MEMORY, "another stream's allocation frees nothing"
    assert peer("used()") == CONTEXT + 28 * CHUNK
    assert peer(way) == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_frees_in_two_streams_are_over_when_their_context_is(pools):
    here = pools()
    peer = here.peer()
    peer("globals().update(s=make_stream(1), t=make_stream(1), kernel=function('work_1s'), pool=make_pool())")
    blocks = [peer(f"take({10 * CHUNK}, {stream}, pool)") for stream in ("s", "t")]
    assert peer(f"launch(kernel, t) or give({blocks[1]}, t) or give({blocks[0]}, s) or destroy(pool)") == 0
    assert peer("sync(s)") == 0
    assert peer("used()") == CONTEXT + 20 * CHUNK == here.physical()
    assert peer("call('cuCtxSynchronize')") == 0
    assert peer("used()") == CONTEXT == here.physical()


@pytest.mark.parametrize("way", ["0", "event_sync(s)", "call('cuStreamQuery', c_void_p(s)) and 0"])
def test_a_destroyed_pool_is_paid_for_some_seconds_at_most(pools, way):
    here = pools("2GiB")
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    peer = destroyed_while_a_free_waits(here, "s")
    other = here.peer()
    assert other(f"alloc({GIB})") == -OUT_OF_MEMORY
    assert peer(way) == 0
    assert eventually(lambda: other(f"alloc({GIB})") > 0), "whatever the other process does"
    assert peer("used()") == 2 * CONTEXT + GIB
    assert peer(f"give(take({CHUNK}, t), t) or sync(t)") == 0
    assert peer("used()") == 2 * CONTEXT + GIB


@pytest.mark.parametrize("kept", [0, 2**64 - 1])
def test_a_refused_growth_is_charged_while_it_waits_for_its_stream(pools, kept):
    """It is taken from the others, whether it fits or not."""
    here = pools(str(2 * CONTEXT + CHUNK + 20 * MIB))
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    peer, other = here.peer(), here.peer()
    peer("globals().update(s=make_stream(1), t=make_stream(1))")
    assert peer(f"keep(default_pool(), {kept}) or 0 * take({MIB}, s)") == 0
    assert peer(f"take({35 * MIB}, s)") == -OUT_OF_MEMORY
    assert charged(here) == 2 * CONTEXT + 2 * CHUNK == here.physical()
    assert other(f"alloc({8 * MIB})") == -OUT_OF_MEMORY
    assert peer("sync(s)") == 0
    assert charged(here) == 2 * CONTEXT + CHUNK == here.physical()
    assert other(f"alloc({8 * MIB})") > 0
    assert peer(f"take({35 * MIB}, s)") == -OUT_OF_MEMORY
    assert peer(f"take({MIB}, s)") > 0, "an allocation waits for its own stream"
    assert charged(here) == 2 * CONTEXT + CHUNK + 8 * MIB == here.physical()


def test_a_refused_growth_may_stay_when_there_is_room_again(pools):
    here = pools(str(2 * CONTEXT + 3 * CHUNK))
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    peer, other = here.peer(), here.peer()
    peer("globals().update(s=make_stream(1), t=make_stream(1))")
    block = other(f"alloc({CHUNK + 12 * MIB})")
    assert peer(f"0 * take({MIB}, s)") == 0
    assert peer(f"take({35 * MIB}, s)") == -OUT_OF_MEMORY
    assert charged(here) == 2 * CONTEXT + 3 * CHUNK + 12 * MIB == here.physical()
    assert other(f"free({block})") == 0
    assert peer(f"take({40 * MIB}, t)") > 0
    assert charged(here) == 2 * CONTEXT + 2 * CHUNK == here.physical()


def test_a_thousand_pools_come_and_go(pools):
    peer = pools().peer()
    for _ in range(5):
        assert (
            peer(f"any(give(take({MIB}, pool=(p := make_pool()))) or destroy(p) for _ in range(1000))")
            is False
        )
        assert peer("sync()") == 0
    assert peer("used()") == CONTEXT


def test_the_default_pool_ends_with_its_device(pools):
    here = pools()
    peer = here.peer()
    block = peer(f"take({MIB})")
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == 0
    peer("context()")
    assert peer("used()") == CONTEXT == here.physical()
    assert peer(f"give({block})") == INVALID_VALUE
    blocks = [peer(f"take({MIB})") for _ in range(3)]
    assert peer(f"give({blocks[0]}) or sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()


def test_another_context_of_the_device_ends_nothing(pools):
    here = pools()
    peer = here.peer()
    block = peer(f"take({MIB})")
    peer("globals().update(second=handles('cuCtxCreate_v2', 0, 0))")
    assert peer("call('cuCtxDestroy_v2', c_void_p(second))") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"give({block}) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_a_block_that_was_freed_unseen_is_forgotten_with_a_context(pools):
    """Nothing of the pool is used any more; the next synchronisation brings back what it keeps."""
    here = pools()
    peer = here.peer()
    block = peer(f"take({MIB})")
    unseen = (
        "ctypes.CFUNCTYPE(c_int, c_uint64, c_void_p)(__import__('tests.native.programs.vmm', fromlist=['']"
        ").past_the_hooks(ctypes.CDLL('libcuda.so.1'), 'cuMemFreeAsync'))"
    )
    peer("globals().update(first=context(0), second=handles('cuCtxCreate_v2', 0, 0))")
    assert peer(f"{unseen}({block}, None)") == 0
    assert peer("call('cuCtxDestroy_v2', c_void_p(second))") == 0
    peer("call('cuCtxSetCurrent', c_void_p(first))")
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_a_pool_costs_on_its_own_device(pools):
    here = pools("0=1GiB,1=2GiB")
    peer = here.peer()
    assert peer(f"take({1536 * MIB})") == -OUT_OF_MEMORY
    block = peer(f"take({1536 * MIB}, pool=make_pool(1))")
    assert block > 0
    assert peer("used()") == CONTEXT
    assert peer("take(600 << 20, pool=default_pool(1))") == -OUT_OF_MEMORY, (
        "1536 MiB and 600 do not fit into 2 GiB"
    )
    assert peer(f"give({block})") == 0
    peer("context(1)")
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT == here.physical(1)


def test_the_stream_tells_the_device_and_no_context_is_needed(pools):
    here = pools("0=1GiB,1=2GiB")
    peer = here.peer()
    peer("context(1) and globals().update(s=make_stream())")
    peer("context(0)")
    assert peer(f"take({1536 * MIB}, s)") > 0
    assert peer("used()") == CONTEXT
    peer("call('cuCtxSetCurrent', None)")
    assert peer(f"take({400 * MIB}, s)") == -OUT_OF_MEMORY
    assert peer(f"take({100 * MIB}, s)") > 0
    assert peer("take(1)") == -INVALID_CONTEXT
    peer("context(1)")
    assert peer("used()") == here.physical(1)


def test_a_device_without_a_share_gives_nothing(pools):
    here = pools("0=1GiB")
    peer = here.peer()
    assert peer("take(1, pool=make_pool(1))") == -OUT_OF_MEMORY
    assert peer("take(1, pool=default_pool(1))") == -OUT_OF_MEMORY
    assert here.physical(1) == 0


@pytest.mark.parametrize("twin", ["", "_ptsz"])
def test_a_pool_that_is_named_costs_what_it_holds(pools, twin):
    here = pools(str(CONTEXT + 2 * CHUNK))
    peer = here.peer()
    peer("globals().update(pool=make_pool())")
    assert peer(f"take({3 * CHUNK}, pool=pool, twin='{twin}')") == -OUT_OF_MEMORY
    block = peer(f"take({2 * CHUNK}, pool=pool, twin='{twin}')")
    assert block > 0
    assert peer("used()") == CONTEXT + 2 * CHUNK == here.physical()
    assert peer(f"give({block}, twin='{twin}') or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


MAKE_CURRENT = {
    "cuDeviceSetMemPool": "call('cuDeviceSetMemPool', 0, c_void_p(pool))",
    "cuMemSetMemPool": "call('cuMemSetMemPool', byref(MemLocation(DEVICE, 0)), PINNED, c_void_p(pool))",
}


@pytest.mark.parametrize("call", MAKE_CURRENT)
def test_another_current_pool_is_noticed(pools, call):
    here = pools()
    peer = here.peer()
    assert peer(f"take({MIB})") > 0
    peer("globals().update(pool=make_pool())")
    assert peer("keep(pool, 2**64 - 1)") == 0
    assert peer(MAKE_CURRENT[call]) == 0
    block = peer(f"take({MIB})")
    assert peer("used()") == CONTEXT + 2 * CHUNK == here.physical()
    assert peer(f"give({block}) or destroy(pool) or sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer(f"take({CHUNK})") > 0
    assert peer("used()") == CONTEXT + 2 * CHUNK == here.physical()


def test_host_memory_is_free_and_managed_memory_is_not(pools):
    here = pools("1GiB", "one-h200")
    peer = here.peer()
    before = peer("used()")
    assert peer(f"take({2 * GIB}, pool=make_pool(where=HOST))") > 0
    assert peer("used()") == before == here.physical()
    for where in (DEVICE, HOST, NOWHERE):
        assert peer(f"take({MIB}, pool=make_pool(where={where}, kind=MANAGED))") > 0
        before += CHUNK
        assert peer("used()") == before == here.physical()
    managed = "handles('cuMemGetDefaultMemPool', byref(MemLocation({}, 0)), MANAGED)"
    for where in (DEVICE, NOWHERE):
        assert peer(f"take({MIB}, pool={managed.format(where)})") > 0
        before += CHUNK
        assert peer("used()") == before == here.physical()
    assert peer(f"take({GIB}, pool=make_pool(kind=MANAGED))") == -OUT_OF_MEMORY
    assert peer("call('cuCtxSynchronize_v2', None)") == 0


def test_a_pool_keeps_its_own_maximum(pools):
    here = pools()
    peer = here.peer()
    peer(f"globals().update(pool=make_pool(most={50 * MIB}))")
    assert peer(f"take({40 * MIB}, pool=pool)") > 0
    assert peer(f"take({20 * MIB}, pool=pool)") == -OUT_OF_MEMORY
    assert peer("used()") == CONTEXT + 2 * CHUNK == here.physical()


def test_an_imported_pool_costs_its_owner_alone(pools):
    here = pools()
    owner, peer = here.peer(), here.peer()
    owner("globals().update(pool=make_pool(handle_types=1))")
    block = owner(f"take({MIB}, pool=pool)")
    owner("globals().update(fd=c_int())")
    assert owner("call('cuMemPoolExportToShareableHandle', byref(fd), c_void_p(pool), 1, c_uint64(0))") == 0
    fd = owner("fd.value")
    owner("globals().update(data=(c_char * 64)())")
    assert owner(f"call('cuMemPoolExportPointer', data, c_uint64({block}))") == 0
    data = owner("data.raw.hex()")
    peer(f"globals().update(fd=os.open('/proc/{owner.pid}/fd/{fd}', os.O_RDONLY))")
    peer("globals().update(pool=handles('cuMemPoolImportFromShareableHandle', c_void_p(fd), 1, c_uint64(0)))")
    assert peer("take(1, pool=pool)") == -INVALID_VALUE
    there = peer(f"handles('cuMemPoolImportPointer', c_void_p(pool), bytes.fromhex('{data}'))")
    assert there > 0
    assert peer("used()") == 2 * CONTEXT + CHUNK == here.physical()
    assert peer(f"give({there}) or destroy(pool) or sync()") == 0
    assert owner("used()") == 2 * CONTEXT + CHUNK
    assert owner(f"give({block}) or sync()") == 0
    assert peer("used()") == 2 * CONTEXT == here.physical()


def test_what_the_driver_refuses_is_given_back(pools):
    here = pools()
    peer = here.peer()
    here.outside("context()")
    fill = "any(alloc(size) > 0 and 0 for size in (1 << 30, 1 << 25, 1 << 20) for _ in range(2000))"
    here.outside(fill)
    before = peer("used()")
    assert peer(f"take({100 * MIB})") == -OUT_OF_MEMORY
    assert peer("used()") == before


# --- a driver that fails ---------------------------------------------------------------------------------------------


def unmeasured(here):
    """A process that cannot see in NVML what it holds: nothing but the blocks of its pools counts."""
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    return here.peer()


def test_a_pool_that_cannot_be_asked_is_charged_whole_chunks(pools):
    here = pools()
    peer = unmeasured(here)
    here.place.fakectl("fail", "cuMemPoolGetAttribute", UNKNOWN, 1)
    block = peer(f"take({MIB})")
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    here.place.fakectl("fail", "cuMemPoolGetAttribute", UNKNOWN, 1)
    more = peer(f"take({MIB})")
    assert here.physical() == CONTEXT + CHUNK
    assert peer("used()") == CONTEXT + 2 * CHUNK, "it may have grown"
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT + CHUNK, "it has not"
    assert peer(f"give({block}) or give({more}) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_a_pool_that_can_never_be_asked_is_refused_before_it_can_hold_too_much(pools):
    here = pools(str(CONTEXT + 3 * CHUNK))
    peer = unmeasured(here)
    here.place.fakectl("fail", "cuMemPoolGetAttribute", UNKNOWN, 10000)
    got = [peer(f"take({MIB})") for _ in range(5)]
    assert [code > 0 for code in got] == [True, True, True, False, False]
    assert got[3:] == [-OUT_OF_MEMORY] * 2
    here.place.fakectl("reset")
    assert peer(f"take({MIB})") > 0, "all of it is in one chunk"
    assert peer("used()") == CONTEXT + CHUNK == here.physical()


@pytest.mark.parametrize("failing", [1, 2])
def test_a_refused_block_that_is_not_freed_at_once_is_not_forgotten(pools, failing):
    here = pools(str(CONTEXT + 10 * MIB))
    peer = unmeasured(here)
    here.place.fakectl("fail", "cuMemFreeAsync", UNKNOWN, 1)
    if failing == 2:
        here.place.fakectl("fail", "cuMemFree_v2", UNKNOWN, 1)
    assert peer(f"take({MIB})") == -OUT_OF_MEMORY
    held = 0 if failing == 1 else CHUNK
    assert here.physical() == CONTEXT + held
    assert peer("used()") == CONTEXT + (10 * MIB if held else 0), "all that there is, and more"
    assert peer("alloc(256) > 0") is (failing == 1)
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == 0
    peer("context()")
    assert here.physical() == CONTEXT == peer("used()")


def test_a_pool_that_cannot_be_asked_after_a_context_stays_charged(pools):
    here = pools()
    peer = unmeasured(here)
    block = peer(f"take({MIB})")
    peer("globals().update(second=handles('cuCtxCreate_v2', 0, 0))")
    here.place.fakectl("fail", "cuMemPoolGetAttribute", UNKNOWN, 10000)
    assert peer("call('cuCtxDestroy_v2', c_void_p(second))") == 0
    assert peer("used()") == CONTEXT + CHUNK == here.physical()
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == 0
    peer("context()")
    assert peer("used()") == CONTEXT + CHUNK, "nothing says that it is gone"
    here.place.fakectl("reset")
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()
    assert peer(f"give({block})") == INVALID_VALUE


@pytest.mark.parametrize("own", [False, True])
def test_a_pool_that_is_not_destroyed_is_one_pool_all_along(pools, own):
    """Another thread allocates from it while the driver makes up its mind."""
    here = pools()
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    peer = here.peer(FAKEDRIVER_LATENCY="cuMemPoolDestroy=1s")
    here.place.fakectl("fail", "cuMemPoolDestroy", INVALID_VALUE, 1)
    peer(f"globals().update(pool={'make_pool()' if own else 'default_pool()'})")
    first = peer(f"take({40 * MIB}, pool=pool)")
    peer("globals().update(thread=threading.Thread(target=destroy, args=(pool,)))")
    assert peer("(thread.start(), thread.join(0.3), thread.is_alive())[2]") is True
    second = peer(f"take({40 * MIB}, pool=pool)")
    assert peer("used()") == CONTEXT + 3 * CHUNK == here.physical()
    peer("thread.join()")
    assert peer("used()") == CONTEXT + 3 * CHUNK
    assert peer(f"give({first}) or give({second}) or sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


def test_a_forked_child_holds_nothing(pools):
    here = pools()
    peer = here.peer()
    assert peer(f"take({MIB})") > 0
    assert (
        peer("in_child(lambda: call('cuMemAllocAsync', byref(c_uint64()), c_size_t(1), None))")
        == NOT_INITIALIZED
    )
    assert peer("used()") == CONTEXT + CHUNK == here.physical()


@pytest.mark.parametrize("own", [False, True])
def test_threads_race_for_the_last_chunks_of_a_pool(pools, own):
    limit = CONTEXT + 6 * CHUNK
    here = pools(str(limit))
    peer = here.peer()
    peer(f"globals().update(pool={'make_pool()' if own else 0})")
    assert set(peer(f"race(8, 150, {CHUNK}, pool)")) <= {OUT_OF_MEMORY}
    assert limit - CHUNK < here.peak() <= limit
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


class Model:
    """What a program with three pools and three streams believes to hold."""

    def __init__(self, peer: Peer, seed: int) -> None:
        self.peer, self.chance = peer, random.Random(seed)
        self.streams = [0, peer("make_stream(0)"), peer("make_stream(1)")]
        self.pools = [peer("default_pool()"), peer("make_pool()"), peer("make_pool()")]
        self.live: dict[int, int] = {}
        self.refused = 0

    def take(self) -> None:
        size = self.chance.choice([1, 700, 64 * KIB, 5 * MIB, 40 * MIB, 150 * MIB])
        pool = self.chance.choice([0, *self.pools])
        stream = self.chance.choice(self.streams)
        address = self.peer(f"take({size}, {stream}, {pool})")
        assert address > 0 or address == -OUT_OF_MEMORY
        if address > 0:
            self.live[address] = size
        else:
            self.refused += 1

    def take_linear(self) -> None:
        size = self.chance.choice([256, 9 * MIB])
        address = self.peer(f"alloc({size})")
        assert address > 0 or address == -OUT_OF_MEMORY
        if address > 0:
            self.live[address] = size

    def give(self) -> None:
        if self.live:
            address = self.chance.choice(list(self.live))
            call = self.chance.choice(["free({})", "give({}, {})", "give({}, {})"])
            assert self.peer(call.format(address, self.chance.choice(self.streams))) == 0
            del self.live[address]

    def work(self) -> None:
        self.peer(f"launch(kernel, {self.chance.choice(self.streams)})")

    def trim(self) -> None:
        assert self.peer(f"trim({self.chance.choice(self.pools)}, {self.chance.choice([0, 70 * MIB])})") == 0

    def keep(self) -> None:
        threshold = self.chance.choice([0, 64 * MIB, 2**64 - 1])
        assert self.peer(f"keep({self.chance.choice(self.pools)}, {threshold})") == 0

    def destroy(self) -> None:
        which = self.chance.choice([1, 2])
        assert self.peer(f"destroy({self.pools[which]})") == 0
        self.pools[which] = self.peer("make_pool()")

    def sync(self) -> None:
        assert self.peer(f"sync({self.chance.choice(self.streams)})") == 0

    def step(self) -> None:
        often = [self.take] * 8 + [self.give] * 7 + [self.sync] * 2
        self.chance.choice([*often, self.take_linear, self.work, self.trim, self.keep, self.destroy])()


@pytest.mark.parametrize("seed", range(6))
def test_the_ledger_follows_whatever_a_program_does(pools, seed):
    limit = CONTEXT + 16 * CHUNK
    here = pools(str(limit))
    peer = here.peer()
    peer("globals().update(kernel=function('work_300us'))")
    model = Model(peer, seed)
    for number in range(300):
        model.step()
        used = peer("used()")
        assert CONTEXT + sum(model.live.values()) <= used <= limit, number
        if number % 20 == 0:
            assert peer("call('cuCtxSynchronize')") == 0
            assert peer("used()") == here.physical(), number
    assert model.refused > 0
    assert here.peak() <= limit
    for address in model.live:
        assert peer(f"free({address})") == 0
    for pool in model.pools:
        assert peer(f"keep({pool}, 0)") == 0
    assert peer("call('cuCtxSynchronize')") == 0
    assert peer("used()") == CONTEXT == here.physical()
