# SPDX-License-Identifier: Apache-2.0
"""Contexts: what they cost, when they end, and what is current where."""

from __future__ import annotations

CONTEXT = 100 << 20


def test_primary_context_costs_once_and_ends_with_the_last_release(small):
    peer = small.peer()
    first = peer("context(0)")
    assert peer("context(0)") == first
    assert peer("used()") == CONTEXT
    assert (
        peer(
            "[f := c_uint(), a := c_int(), good('cuDevicePrimaryCtxGetState', 0, byref(f), byref(a)), a.value][3]"
        )
        == 1
    )
    assert peer("call('cuDevicePrimaryCtxRelease_v2', 0)") == 0
    assert peer("used()") == CONTEXT
    assert peer("call('cuDevicePrimaryCtxRelease_v2', 0)") == 0
    assert small.state()["gpus"][0]["used"] == 0
    assert peer("alloc(4096)") == -709, "destroyed, but still on the stack"
    assert peer("call('cuDevicePrimaryCtxRelease_v2', 0)") == 201


def test_reset_takes_everything(small):
    peer = small.peer()
    peer("context(0)")
    peer("[alloc(1 << 20) for _ in range(100)]")
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == 0
    assert small.state()["gpus"][0]["used"] == 0
    assert small.state()["processes"][0]["contexts"] == [0, 0]


def test_every_abi_of_create(small):
    peer = small.peer()
    peer("good('cuInit', 0)")
    calls = [
        "'cuCtxCreate', 0, 0",
        "'cuCtxCreate_v2', 0, 0",
        "'cuCtxCreate_v3', None, 0, 0, 0",
        "'cuCtxCreate_v4', None, 0, 0",
    ]
    made = [peer(f"handles({call})") for call in calls]
    assert all(handle > 1000 for handle in made)
    assert small.state()["gpus"][0]["used"] == 4 * CONTEXT
    assert small.state()["processes"][0]["contexts"] == [4, 0]
    assert peer("handles('cuCtxGetCurrent')") == made[3]
    for handle in reversed(made):
        assert peer(f"call('cuCtxDestroy_v2', c_void_p({handle}))") == 0
        assert peer(f"call('cuCtxDestroy_v2', c_void_p({handle}))") == 201
    assert peer("handles('cuCtxGetCurrent')") == 0
    assert small.state()["gpus"][0]["used"] == 0


def test_a_context_that_does_not_fit(written):
    peer = written("gpu 0:\n memory: 250MiB\ncontext_memory: 100MiB\n").peer()
    peer("good('cuInit', 0)")
    assert peer("[handles('cuCtxCreate_v2', 0, 0) > 0 for _ in range(2)]") == [True, True]
    assert peer("handles('cuCtxCreate_v2', 0, 0)") == -2


def test_memory_ends_with_its_context(small):
    peer = small.peer()
    peer("good('cuInit', 0)")
    first, second = (peer("handles('cuCtxCreate_v2', 0, 0)") for _ in range(2))
    kept = peer(f"[good('cuCtxSetCurrent', c_void_p({first})), alloc(1 << 20)][1]")
    lost = peer(f"[good('cuCtxSetCurrent', c_void_p({second})), alloc(1 << 21)][1]")
    assert peer(f"call('cuCtxDestroy_v2', c_void_p({second}))") == 0
    peer(f"good('cuCtxSetCurrent', c_void_p({first}))")
    assert peer("used()") == CONTEXT + (1 << 20)
    assert peer(f"write({kept}, b'x')") == 0
    assert peer(f"write({lost}, b'x')") == 1


def test_push_and_pop(small):
    peer = small.peer()
    peer("good('cuInit', 0)")
    assert peer("call('cuCtxPopCurrent_v2', byref(c_void_p()))") == 201
    first = peer("handles('cuCtxCreate_v2', 0, 0)")
    second = peer("handles('cuCtxCreate_v2', 0, 1)")
    assert peer("[d := c_int(), good('cuCtxGetDevice', byref(d)), d.value][2]") == 1
    assert peer("handles('cuCtxPopCurrent_v2')") == second
    assert peer("[d := c_int(), good('cuCtxGetDevice', byref(d)), d.value][2]") == 0
    assert peer(f"call('cuCtxPushCurrent_v2', c_void_p({second}))") == 0
    assert peer("handles('cuCtxGetCurrent')") == second
    assert peer(f"call('cuCtxSetCurrent', c_void_p({first}))") == 0
    assert peer("call('cuCtxPushCurrent_v2', c_void_p(4096))") == 201


def test_threads_have_their_own_current_context(small):
    peer = small.peer()
    peer("context(0)")
    peer("exec('import concurrent.futures as f; pool = f.ThreadPoolExecutor(1)', globals())")
    assert peer("pool.submit(alloc, 4096).result()") == -201
    assert peer("pool.submit(context, 1).result()") > 0
    assert peer("[d := c_int(), good('cuCtxGetDevice', byref(d)), d.value][2]") == 0


def test_heap_limit_takes_memory(small):
    peer = small.peer()
    peer("context(0)")
    assert peer("[v := c_size_t(), good('cuCtxGetLimit', byref(v), 2), v.value][2]") == 8 << 20
    assert peer("call('cuCtxSetLimit', 2, c_size_t(108 << 20))") == 0
    assert peer("used()") == CONTEXT + (100 << 20)
    assert peer("call('cuCtxSetLimit', 2, c_size_t(1 << 40))") == 2
    assert peer("call('cuCtxSetLimit', 2, c_size_t(1 << 20))") == 0, "a smaller heap gives nothing back"
    assert peer("used()") == CONTEXT + (100 << 20)
    assert peer("call('cuCtxSetLimit', 99, c_size_t(1))") == 215


def test_peer_access(small):
    peer = small.peer()
    peer("context(0)")
    other = peer("handles('cuDevicePrimaryCtxRetain', 1)")
    assert peer(f"call('cuCtxDisablePeerAccess', c_void_p({other}))") == 705
    assert peer(f"call('cuCtxEnablePeerAccess', c_void_p({other}), 0)") == 0
    assert peer(f"call('cuCtxEnablePeerAccess', c_void_p({other}), 0)") == 704
    assert peer(f"call('cuCtxDisablePeerAccess', c_void_p({other}))") == 0


def test_a_green_context_is_a_handle_of_the_primary_one(small):
    peer = small.peer()
    peer("good('cuInit', 0)")
    peer("globals().update(part=ctypes.create_string_buffer(256))")
    assert peer("call('cuDeviceGetDevResource', 0, part, 1)") == 0
    desc = peer("handles('cuDevResourceGenerateDesc', part, 1)")
    green = peer(f"handles('cuGreenCtxCreate', c_void_p({desc}), 0, 1)")
    assert small.state()["processes"][0]["contexts"] == [1, 0], "it holds the primary context"
    current = peer(f"handles('cuCtxFromGreenCtx', c_void_p({green}))")
    assert peer(f"call('cuCtxSetCurrent', c_void_p({current}))") == 0
    assert peer("handles('cuCtxGetCurrent')") == current
    assert peer("alloc(4096)") > 0
    primary = peer("context(0)")
    assert primary != current
    assert peer(f"call('cuGreenCtxDestroy', c_void_p({green}))") == 0
    assert peer(f"call('cuGreenCtxDestroy', c_void_p({green}))") == 201
    assert peer("used()") == CONTEXT + 4096, "what was allocated in it belongs to the primary context"
    assert peer("call('cuDevicePrimaryCtxRelease_v2', 0)") == 0
    assert small.state()["gpus"][0]["used"] == 0
