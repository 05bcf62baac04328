# SPDX-License-Identifier: Apache-2.0
"""Memory nodes of graphs: charged when a graph is launched or uploaded, as the driver holds it, until it is trimmed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native.running import CONTEXT, GIB, INVALID_VALUE, MIB, OUT_OF_MEMORY, ROOT, SUCCESS, Place
from tests.unit.fakedriver.conftest import Machine, Peer

AUTO_FREE, UPLOAD = 1, 2
NOT_SUPPORTED = 801
ATTRIBUTE = "'cuDeviceGetGraphMemAttribute', 0"
RESET = "good('cuDeviceSetGraphMemAttribute', 0, 3, byref(c_uint64(0)))"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    """Starts programs under a limit; they hold a primary context of device 0."""
    place = Place(tmp_path)
    peers: list[Peer] = []

    def begin(limit: str = "1GiB", **extra: str) -> Peer:
        peers.append(Peer(place.env(limit, PYTHONPATH=str(ROOT), **extra)))
        peers[-1]("context(0)")
        return peers[-1]

    yield begin
    for peer in peers:
        peer.kill()


def made(peer: Peer, *sizes: int, freed: bool = True, device: int = 0) -> int:
    """A graph that allocates all sizes at once, and frees them."""
    graph = peer("handles('cuGraphCreate', 0)")
    nodes = [peer(f"graph_alloc({graph}, {size}, {device})") for size in sizes]
    if freed:
        for node, address in nodes:
            assert peer(f"graph_free({graph}, {address}, {nodes[-1][0]})") > 0
            assert node
    assert isinstance(graph, int)
    return graph


def executable(peer: Peer, *sizes: int, freed: bool = True, flags: int = 0, device: int = 0) -> int:
    handle = peer(f"instantiate({made(peer, *sizes, freed=freed, device=device)}, {flags})")
    assert isinstance(handle, int)
    assert handle > 0
    return handle


def launch(peer: Peer, handle: int, stream: int = 0) -> int:
    code = peer(f"launch_graph({handle}, {stream})")
    assert isinstance(code, int)
    return code


def charged(peer: Peer) -> int:
    """Beyond the context; and the driver must hold exactly that."""
    used, reserved = peer("[used(), reserved()]")
    assert used - CONTEXT == reserved
    return int(reserved)


def test_memory_is_charged_at_the_first_launch_and_kept_until_trimmed(start):
    peer = start()
    handle = executable(peer, 100 * MIB, 50 * MIB)
    assert charged(peer) == 0, "instantiating takes nothing"
    for _ in range(3):
        assert launch(peer, handle) == SUCCESS
        assert charged(peer) == 150 * MIB
    assert peer(f"call('cuGraphExecDestroy', c_void_p({handle}))") == SUCCESS
    assert charged(peer) == 150 * MIB, "the driver keeps it"
    assert peer("call('cuDeviceGraphMemTrim', 0)") == SUCCESS
    assert charged(peer) == 0


def test_memory_in_a_part_of_a_device_is_the_devices(start):
    peer = start()
    graph, domain = peer("handles('cuGraphCreate', 0)"), 1 << 8
    assert peer(f"graph_alloc({graph}, {100 * MIB}, {domain}, where=6)")[1] > 0
    handle = peer(f"instantiate({graph}, 0)")
    assert launch(peer, handle) == SUCCESS
    assert charged(peer) == 100 * MIB


@pytest.mark.parametrize(
    ("upload", "run"), [("cuGraphUpload", "cuGraphLaunch"), ("cuGraphUpload_ptsz", "cuGraphLaunch_ptsz")]
)
def test_uploading_takes_the_memory_and_launching_no_more(start, upload, run):
    peer = start()
    handle = executable(peer, 100 * MIB)
    assert peer(f"call('{upload}', c_void_p({handle}), None)") == SUCCESS
    assert charged(peer) == 100 * MIB
    assert peer(f"call('{run}', c_void_p({handle}), None)") == SUCCESS
    assert charged(peer) == 100 * MIB


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cuGraphInstantiate", "None, None, c_size_t(0)"),
        ("cuGraphInstantiate_v2", "None, None, c_size_t(0)"),
        ("cuGraphInstantiateWithFlags", "c_uint64(0)"),
        ("cuGraphInstantiateWithParams", "(c_uint64 * 4)()"),
        ("cuGraphInstantiateWithParams_ptsz", "(c_uint64 * 4)()"),
    ],
)
def test_every_way_to_instantiate_knows_the_need(start, name, arguments):
    peer = start(str(CONTEXT + 100 * MIB))
    small, large = made(peer, 98 * MIB), made(peer, 101 * MIB)
    fits = peer(f"handles('{name}', c_void_p({small}), {arguments})")
    too_large = peer(f"handles('{name}', c_void_p({large}), {arguments})")
    assert fits > 0
    assert too_large > 0
    assert launch(peer, too_large) == OUT_OF_MEMORY
    assert charged(peer) == 0, "nothing was launched"
    assert launch(peer, fits) == SUCCESS
    assert charged(peer) == 98 * MIB
    assert peer(f"call('{name}', None, c_void_p({small}), {arguments})") == INVALID_VALUE


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_instantiating_with_upload_is_charged_or_refused_as_a_whole(start, suffix):
    peer = start(str(CONTEXT + 100 * MIB))
    # CUDA_GRAPH_INSTANTIATE_PARAMS: flags, stream, failing node, result (1: error).
    attempt = (
        "(p := (c_uint64 * 4)({flags}, 0, 7, 7), h := c_void_p(0x5555)) and [call('cuGraphInstantiateWithParams"
        + suffix
        + "', byref(h), c_void_p({graph}), p), h.value, p[2], p[3] & 0xffffffff]"
    )
    graph = made(peer, 101 * MIB)
    refused = peer(attempt.format(flags=UPLOAD, graph=graph))
    assert refused == [OUT_OF_MEMORY, 0x5555, 0, 1]
    assert charged(peer) == 0
    code, handle, _, result = peer(attempt.format(flags=UPLOAD, graph=made(peer, 90 * MIB)))
    assert (code, result) == (SUCCESS, 0)
    assert charged(peer) == 90 * MIB
    assert launch(peer, handle) == SUCCESS
    assert charged(peer) == 90 * MIB


def test_graphs_of_one_stream_share_pages_and_those_of_two_do_not(start):
    peer = start(str(CONTEXT + 250 * MIB))
    first, second = executable(peer, 100 * MIB), executable(peer, 100 * MIB)
    stream = peer("handles('cuStreamCreate', 1)")
    assert launch(peer, first) == SUCCESS
    assert launch(peer, second) == SUCCESS
    assert charged(peer) == 100 * MIB, "one stream"
    assert launch(peer, second, stream) == SUCCESS
    assert charged(peer) == 200 * MIB, "two streams"
    for _ in range(2):
        assert launch(peer, first) == SUCCESS
        assert launch(peer, second, stream) == SUCCESS
        assert charged(peer) == 200 * MIB


def test_a_graph_in_a_stream_of_its_own_must_fit_beside_the_others(start):
    """What the driver holds for the first would be enough, if the second did not need pages of its own."""
    peer = start(str(CONTEXT + 150 * MIB))
    first, second = executable(peer, 100 * MIB), executable(peer, 100 * MIB)
    stream = peer("handles('cuStreamCreate', 1)")
    assert launch(peer, first) == SUCCESS
    assert launch(peer, second, stream) == SUCCESS, "after the first one's pages are trimmed"
    assert charged(peer) == 100 * MIB
    assert peer(f"value64({ATTRIBUTE}, 3)") == 100 * MIB, "never both at once"


def test_many_graphs_of_one_stream_fit_where_one_does(start):
    peer = start(str(CONTEXT + 102 * MIB))
    handles = [executable(peer, 98 * MIB) for _ in range(20)]
    for handle in handles * 2:
        assert launch(peer, handle) == SUCCESS
        assert charged(peer) == 98 * MIB


def test_a_graph_that_needs_pages_which_another_left_allocated_is_refused(start):
    """What the driver holds would be enough, and none of it is free."""
    peer = start(str(CONTEXT + 150 * MIB))
    keeps, other = executable(peer, 100 * MIB, freed=False), executable(peer, 90 * MIB)
    assert launch(peer, keeps) == SUCCESS
    assert launch(peer, other) == OUT_OF_MEMORY
    assert charged(peer) == 100 * MIB
    assert launch(peer, keeps) == INVALID_VALUE, "the driver's own error: not freed yet"
    assert charged(peer) == 100 * MIB


def test_a_relaunch_whose_pages_another_graph_keeps_needs_new_ones(start):
    peer = start(str(CONTEXT + 150 * MIB))
    shares, keeps = executable(peer, 100 * MIB), executable(peer, 100 * MIB, freed=False)
    assert [launch(peer, shares), launch(peer, keeps)] == [SUCCESS, SUCCESS]
    assert charged(peer) == 100 * MIB
    assert launch(peer, shares) == OUT_OF_MEMORY
    assert charged(peer) == 100 * MIB


@pytest.mark.parametrize(
    "call", ["call('cuMemFree_v2', c_uint64({}))", "call('cuMemFreeAsync', c_uint64({}), None)"]
)
def test_allocations_freed_outside_of_the_graph_stay_the_drivers(start, call):
    peer = start(str(CONTEXT + 104 * MIB))
    graph = peer("handles('cuGraphCreate', 0)")
    _, address = peer(f"graph_alloc({graph}, {100 * MIB})")
    handle = peer(f"instantiate({graph})")
    for _ in range(3):
        assert launch(peer, handle) == SUCCESS
        assert charged(peer) == 100 * MIB
        assert peer(call.format(address)) == SUCCESS
        assert charged(peer) == 100 * MIB
        assert peer(call.format(address)) == INVALID_VALUE
    assert peer("call('cuDeviceGraphMemTrim', 0)") == SUCCESS
    assert charged(peer) == 0


def test_allocations_freed_by_another_graph(start):
    peer = start()
    graph, other = peer("handles('cuGraphCreate', 0)"), peer("handles('cuGraphCreate', 0)")
    _, address = peer(f"graph_alloc({graph}, {100 * MIB})")
    assert peer(f"graph_free({other}, {address})") > 0
    first, second = peer(f"instantiate({graph})"), peer(f"instantiate({other})")
    for _ in range(3):
        assert launch(peer, first) == SUCCESS
        assert launch(peer, second) == SUCCESS
        assert charged(peer) == 100 * MIB


def test_a_graph_that_frees_at_its_next_launch_fits_again_and_again(start):
    peer = start(str(CONTEXT + 104 * MIB))
    handle = executable(peer, 100 * MIB, freed=False, flags=AUTO_FREE)
    stream = peer("handles('cuStreamCreate', 1)")
    for use in (0, 0, stream, stream, 0):
        assert launch(peer, handle, use) == SUCCESS
        assert charged(peer) == 100 * MIB
    assert peer("alloc(8 * MIB)") == -OUT_OF_MEMORY
    assert launch(peer, handle) == SUCCESS


def test_addresses_that_a_graph_uses_twice_count_once(start):
    peer = start(str(CONTEXT + 104 * MIB))
    graph = peer("handles('cuGraphCreate', 0)")
    last = 0
    addresses = set()
    for _ in range(5):
        last, address = peer(f"graph_alloc({graph}, {100 * MIB}, 0, {last})")
        last = peer(f"graph_free({graph}, {address}, {last})")
        addresses.add(address)
    assert len(addresses) == 1
    handle = peer(f"instantiate({graph})")
    assert launch(peer, handle) == SUCCESS
    assert charged(peer) == 100 * MIB


def test_child_graphs_count_at_any_depth(start):
    peer = start(str(CONTEXT + 400 * MIB))
    inner, middle, outer = made(peer, 100 * MIB), made(peer, 100 * MIB), made(peer, 100 * MIB)
    assert peer(f"graph_child({outer}, {middle}, False)") == -NOT_SUPPORTED, "a clone may not allocate"
    assert peer(f"graph_child({middle}, {inner})") > 0
    assert peer(f"graph_child({outer}, {middle})") > 0
    handle = peer(f"instantiate({outer})")
    kept = peer("alloc(101 * MIB)")
    assert launch(peer, handle) == OUT_OF_MEMORY
    assert peer(f"free({kept})") == SUCCESS
    assert launch(peer, handle) == SUCCESS
    assert charged(peer) == 300 * MIB


def test_conditional_nodes_hold_no_memory_and_hide_none(start):
    """The driver allows none in their bodies; what stands beside them counts."""
    peer = start(str(CONTEXT + 104 * MIB))
    graph = made(peer, 100 * MIB)
    (body,) = peer(f"graph_condition({graph}, 1, 1)")
    assert peer(f"graph_child({body}, {made(peer, MIB)})") == -NOT_SUPPORTED
    inner = peer("handles('cuGraphCreate', 0)")
    assert peer(f"handles('cuGraphAddEmptyNode', c_void_p({inner}), None, c_size_t(0))") > 0
    assert peer(f"graph_child({body}, {inner}, False)") > 0
    handle = peer(f"instantiate({graph})")
    kept = peer("alloc(10 * MIB)")
    assert launch(peer, handle) == OUT_OF_MEMORY
    assert peer(f"free({kept})") == SUCCESS
    assert launch(peer, handle) == SUCCESS
    assert charged(peer) == 100 * MIB


def test_a_graph_with_memory_cannot_be_cloned_nor_updated_into_another_size(start):
    peer = start()
    graph = made(peer, 100 * MIB)
    assert peer(f"handles('cuGraphClone', c_void_p({graph}))") == -NOT_SUPPORTED
    handle = peer(f"instantiate({graph})")
    update = (
        f"call('cuGraphExecUpdate_v2', c_void_p({handle}), c_void_p({{}}), ctypes.create_string_buffer(24))"
    )
    assert peer(update.format(graph)) == SUCCESS
    assert peer(update.format(made(peer, 200 * MIB))) == 910
    assert launch(peer, handle) == SUCCESS
    assert charged(peer) == 100 * MIB


def test_captured_allocations_cost_nothing_until_the_graph_runs(start):
    peer = start(str(CONTEXT + 104 * MIB))
    stream = peer("handles('cuStreamCreate', 1)")

    def capture(size: int) -> int:
        assert peer(f"call('cuStreamBeginCapture_v2', c_void_p({stream}), 0)") == SUCCESS
        address = peer(f"handles('cuMemAllocAsync', c_size_t({size}), c_void_p({stream}))")
        assert address > 0
        assert peer(f"call('cuMemFreeAsync', c_uint64({address}), c_void_p({stream}))") == SUCCESS
        assert charged(peer) == 0
        graph = peer(
            f"(g := c_void_p()) is None or [good('cuStreamEndCapture', c_void_p({stream}), byref(g)), g.value][1]"
        )
        return int(peer(f"instantiate({graph})"))

    fits, too_large = capture(98 * MIB), capture(110 * MIB)
    assert launch(peer, too_large, stream) == OUT_OF_MEMORY
    assert launch(peer, fits, stream) == SUCCESS
    assert charged(peer) == 98 * MIB


def test_a_launch_into_a_captured_stream_is_the_drivers_business(start):
    peer = start(str(CONTEXT + 50 * MIB))
    handle = executable(peer, 100 * MIB)
    stream = peer("handles('cuStreamCreate', 1)")
    assert peer(f"call('cuStreamBeginCapture_v2', c_void_p({stream}), 0)") == SUCCESS
    assert launch(peer, handle, stream) == NOT_SUPPORTED
    assert charged(peer) == 0


def test_kept_graph_memory_is_given_back_before_anything_is_refused(start):
    peer = start()
    handle = executable(peer, 500 * MIB)
    assert launch(peer, handle) == SUCCESS
    address = peer(f"alloc({GIB - CONTEXT})")
    assert address > 0
    assert peer("[used(), reserved()]") == [GIB, 0]
    assert launch(peer, handle) == OUT_OF_MEMORY, "its pages went to the allocation"
    assert peer(f"free({address})") == SUCCESS
    assert launch(peer, handle) == SUCCESS
    assert charged(peer) == 500 * MIB


def test_making_room_for_a_launch_does_not_take_what_it_counted_on(start):
    """Half of the need is kept by the driver; trimming for the other half gives both up, and both must be paid."""
    peer = start(str(CONTEXT + 150 * MIB))
    small = executable(peer, 60 * MIB)
    large = executable(peer, 120 * MIB)
    assert launch(peer, small) == SUCCESS
    kept = peer("alloc(60 * MIB)")
    assert launch(peer, large) == OUT_OF_MEMORY
    assert peer("used()") <= CONTEXT + 150 * MIB
    assert peer(f"free({kept})") == SUCCESS
    kept = peer("alloc(20 * MIB)")
    assert launch(peer, large) == SUCCESS
    assert peer("[used(), reserved()]") == [CONTEXT + 140 * MIB, 120 * MIB]
    assert peer(f"free({kept})") == SUCCESS


def test_records_of_graphs_that_ended_are_used_again(start):
    """They are never given back, so a program that makes graphs for ever must not need new ones for ever."""
    peer = start()
    graphs = [made(peer, MIB) for _ in range(400)]

    def size_after(count: int, times: int) -> int:
        execs = f"[instantiate(graph, 0) for graph in {graphs[:count]}]"
        for _ in range(times):
            assert peer(f"list({{call('cuGraphExecDestroy', c_void_p(exec)) for exec in {execs}}})") == [
                SUCCESS
            ]
        return int(peer("int(open('/proc/self/statm').read().split()[0]) * 4096"))

    few = size_after(count=100, times=1)
    assert size_after(count=400, times=60) - few < 2 * MIB


def test_each_device_pays_for_its_own_nodes(start):
    peer = start("0=1GiB,1=300MiB")
    peer("context(1)")
    before = peer("used()")
    peer("context(0)")
    graph = made(peer, 100 * MIB)
    assert peer(f"graph_alloc({graph}, {50 * MIB}, 1)")[0]
    handle = peer(f"instantiate({graph}, {AUTO_FREE})")
    assert launch(peer, handle) == SUCCESS
    assert peer("[reserved(0), reserved(1), used()]") == [100 * MIB, 50 * MIB, CONTEXT + 100 * MIB]
    peer("context(1)")
    assert peer("used()") == before + 50 * MIB
    peer("context(0)")
    large = executable(peer, 100 * MIB, 300 * MIB, device=1)
    assert launch(peer, large) == OUT_OF_MEMORY


def test_a_device_without_a_share_has_no_memory_for_graphs(start):
    peer = start("0=1GiB")
    handle = executable(peer, MIB, device=1)
    assert launch(peer, handle) == OUT_OF_MEMORY
    assert peer("reserved(1)") == 0


def test_the_gpu_can_be_fuller_than_the_quota(start):
    peer = start("100GiB")
    handle = executable(peer, 30 * GIB)
    assert launch(peer, handle) == OUT_OF_MEMORY, "the driver's own"
    assert charged(peer) == 0


def test_processes_share_the_quota_of_graph_memory(start):
    first, second = start(str(2 * CONTEXT + 104 * MIB)), start(str(2 * CONTEXT + 104 * MIB))
    mine, theirs = executable(first, 98 * MIB), executable(second, 98 * MIB)
    assert launch(first, mine) == SUCCESS
    assert launch(second, theirs) == OUT_OF_MEMORY
    first.kill()
    assert launch(second, theirs) == SUCCESS


def test_memory_of_graphs_goes_with_the_last_context(start):
    peer = start()
    handle = executable(peer, 100 * MIB, freed=False)
    assert launch(peer, handle) == SUCCESS
    assert charged(peer) == 100 * MIB
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == SUCCESS
    peer("context(0)")
    assert charged(peer) == 0
    again = executable(peer, 200 * MIB)
    assert launch(peer, again) == SUCCESS
    assert charged(peer) == 200 * MIB
    other = peer("handles('cuCtxCreate_v2', 0, 0)")
    assert peer(f"call('cuCtxDestroy_v2', c_void_p({other}))") == SUCCESS
    assert charged(peer) == 200 * MIB, "a context remains"


def test_a_graph_whose_handle_came_back_is_forgotten(start):
    peer = start(str(CONTEXT + 160 * MIB))
    old = executable(peer, 100 * MIB)
    assert launch(peer, old) == SUCCESS
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == SUCCESS
    peer("context(0)")
    assert executable(peer, 50 * MIB) == old
    other = executable(peer, 60 * MIB)
    assert launch(peer, old) == SUCCESS
    assert launch(peer, other, peer("handles('cuStreamCreate', 0)")) == SUCCESS
    assert charged(peer) == 110 * MIB


@pytest.mark.parametrize(
    ("name", "argument"),
    [("cuGraphInstantiateWithFlags", "c_uint64(0)"), ("cuGraphInstantiateWithParams", "(c_uint64 * 4)()")],
)
def test_a_graph_without_memory_is_not_taken_for_one_that_ended_unseen(start, name, argument):
    peer = start(str(CONTEXT + 300 * MIB))
    old = executable(peer, 200 * MIB)
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == SUCCESS
    peer("context(0)")
    assert peer(f"handles('cuMemAlloc_v2', c_size_t({200 * MIB}))") > 0
    graph = peer("handles('cuGraphCreate', 0)")
    assert peer(f"handles('{name}', c_void_p({graph}), {argument})") == old, "the handle came back"
    assert launch(peer, old) == SUCCESS


def test_a_forked_child_has_no_graph_memory(start):
    peer = start()
    handle = executable(peer, 100 * MIB)
    assert launch(peer, handle) == SUCCESS
    assert peer(f"in_child(lambda: launch_graph({handle}))") not in (SUCCESS, OUT_OF_MEMORY)
    assert charged(peer) == 100 * MIB


def test_graphs_without_memory_and_wrong_handles_are_the_drivers_business(start):
    peer = start()
    graph = peer("handles('cuGraphCreate', 0)")
    assert peer(f"handles('cuGraphAddEmptyNode', c_void_p({graph}), None, c_size_t(0))") > 0
    plain = peer(f"instantiate({graph})")
    with_memory = executable(peer, MIB)
    assert [launch(peer, handle) for handle in (plain, with_memory, plain)] == [SUCCESS] * 3
    assert charged(peer) == MIB
    for wrong in (0, 0x123450):
        assert launch(peer, wrong) == INVALID_VALUE
        assert peer(f"call('cuGraphExecDestroy', c_void_p({wrong}))") == INVALID_VALUE
        assert peer(f"instantiate({wrong})") == -INVALID_VALUE
    for handle in (plain, with_memory):
        assert peer(f"call('cuGraphExecDestroy', c_void_p({handle}))") == SUCCESS
        assert peer(f"call('cuGraphExecDestroy', c_void_p({handle}))") == INVALID_VALUE
        assert launch(peer, handle) == INVALID_VALUE
    assert charged(peer) == MIB


def test_a_large_graph_is_read_whole(start):
    peer = start()
    sizes = [MIB] * 300
    handle = executable(peer, *sizes)
    assert launch(peer, handle) == SUCCESS
    assert charged(peer) == 300 * MIB
    assert peer("call('cuDeviceGraphMemTrim', 0)") == SUCCESS
    assert peer(f"alloc({GIB - CONTEXT - 290 * MIB})") > 0
    assert launch(peer, handle) == OUT_OF_MEMORY


def test_a_driver_that_fails_a_launch_leaves_the_allocation_table_exact(start, tmp_path):
    peer = start()
    machine = Machine("two-24g", tmp_path / "machine")
    handle = executable(peer, 100 * MIB)
    for code in (2, 999):
        machine.order("fail", "cuGraphLaunch", code)
        assert launch(peer, handle) == code
        assert charged(peer) == 0
    assert launch(peer, handle) == SUCCESS
    machine.order("fail", "cuGraphExecDestroy", 999)
    assert peer(f"call('cuGraphExecDestroy', c_void_p({handle}))") == 999
    assert launch(peer, handle) == SUCCESS
    machine.order("fail", "cuDeviceGraphMemTrim", 999)
    assert peer("call('cuDeviceGraphMemTrim', 0)") == 999
    assert charged(peer) == 100 * MIB


def test_what_the_driver_takes_beyond_the_quota_is_charged_all_the_same(start, tmp_path):
    """Nothing more is allocated until it goes; how much comes was not to be known here: this driver has huge pages."""
    coarse = tmp_path / "coarse.txt"
    coarse.write_text("granularity: 400MiB\n" + (ROOT / "tests/fakedriver/machines/two-24g.txt").read_text())
    context = 400 * MIB
    limit, env = str(2 * context + 300 * MIB), {"FAKEDRIVER_MACHINE": str(coarse)}
    peer, other = start(limit, **env), start(limit, **env)
    machine = Machine(coarse, tmp_path / "machine")
    machine.order("fail", "nvmlDeviceGetComputeRunningProcesses_v3", 999, 10000)
    graph = made(peer, 300 * MIB, freed=False)
    handle = peer(f"instantiate({graph}, 0)")
    assert launch(peer, handle) == SUCCESS
    assert peer("reserved()") == 400 * MIB
    assert other(f"alloc({MIB})") == -OUT_OF_MEMORY
    assert peer("call('cuDevicePrimaryCtxReset_v2', 0)") == SUCCESS
    assert other("used()") == context
    assert other(f"alloc({300 * MIB})") > 0


def test_threads_that_launch_and_trim_never_pass_the_limit(start):
    """Three graphs of 100 MiB in streams of their own where two fit: trims take pages from under relaunches."""
    room = 250 * MIB
    peer = start(str(CONTEXT + room), FAKEDRIVER_LATENCY="cuGraphLaunch=100us")
    calls = []
    for size in (100, 100, 100):
        stream = peer("handles('cuStreamCreate', 1)")
        calls.append(f"('cuGraphLaunch', {executable(peer, size * MIB)}, {stream})")
    for _ in range(2):
        codes = peer(f"race(150, {', '.join(calls)}, ('cuDeviceGraphMemTrim', 0))")
        assert codes[3] == [SUCCESS]
        assert {code for each in codes[:3] for code in each} <= {SUCCESS, OUT_OF_MEMORY}
        assert charged(peer) <= room
        assert peer(f"value64({ATTRIBUTE}, 3)") <= room, "not even for a moment"


class Walk:
    """A program that does random things with graphs; the charge is compared after each."""

    def __init__(self, peer: Peer, seed: int, room: int) -> None:
        self.peer, self.random, self.room = peer, random.Random(seed), room
        self.streams = [0, *(peer("handles('cuStreamCreate', 1)") for _ in range(2))]
        self.live: list[int] = []
        self.addresses: list[int] = []
        self.blocks: list[int] = []
        self.codes: set[int] = set()

    def graph(self, depth: int = 0) -> int:
        graph = self.peer("handles('cuGraphCreate', 0)")
        last = 0
        for _ in range(self.random.randint(1, 4)):
            last, address = self.peer(
                f"graph_alloc({graph}, {self.random.randint(1, 30 * MIB)}, 0, {self.random.choice((0, last))})"
            )
            if self.random.random() < 0.7:
                last = self.peer(f"graph_free({graph}, {address}, {last})")
            else:
                self.addresses.append(address)
        if depth < 3 and self.random.random() < 0.4:
            assert self.peer(f"graph_child({graph}, {self.graph(depth + 1)})") > 0
        return int(graph)

    def make(self) -> None:
        handle = self.peer(f"instantiate({self.graph()}, {self.random.choice((0, AUTO_FREE))})")
        assert handle > 0
        self.live.append(handle)

    def launch(self) -> None:
        if self.live:
            call = self.random.choice(
                ("cuGraphLaunch", "cuGraphLaunch", "cuGraphLaunch_ptsz", "cuGraphUpload")
            )
            handle, stream = self.random.choice(self.live), self.random.choice(self.streams)
            self.codes.add(self.peer(f"call('{call}', c_void_p({handle}), c_void_p({stream}))"))

    def destroy(self) -> None:
        if len(self.live) > 2:
            handle = self.live.pop(self.random.randrange(len(self.live)))
            assert self.peer(f"call('cuGraphExecDestroy', c_void_p({handle}))") == SUCCESS

    def trim(self) -> None:
        assert self.peer("call('cuDeviceGraphMemTrim', 0)") == SUCCESS

    def free(self) -> None:
        if self.addresses:
            self.peer(f"free({self.random.choice(self.addresses)})")

    def block(self) -> None:
        if self.blocks and self.random.random() < 0.5:
            assert self.peer(f"free({self.blocks.pop()[0]})") == SUCCESS
        else:
            size = self.random.randrange(1, 40) * MIB
            address = self.peer(f"alloc({size})")
            if address > 0:
                self.blocks.append([address, size])

    def step(self) -> None:
        action = self.random.choices(
            (self.make, self.launch, self.destroy, self.trim, self.free, self.block), (2, 12, 1, 1, 3, 2)
        )[0]
        before = sum(size for _, size in self.blocks)
        action()
        used, reserved, highest = self.peer(f"[used(), reserved(), value64({ATTRIBUTE}, 3), {RESET}][:3]")
        blocks = sum(size for _, size in self.blocks)
        assert used == CONTEXT + blocks + reserved, action.__name__
        assert used <= CONTEXT + self.room, action.__name__
        assert blocks != before or highest + blocks <= self.room, f"{action.__name__}: not even for a moment"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_graphs_do_the_charge_is_the_drivers_and_within_the_limit(start, seed):
    room = (100 + 60 * (seed % 3)) * MIB
    walk = Walk(start(str(CONTEXT + room)), seed, room)
    for _ in range(250):
        walk.step()
    assert {SUCCESS, OUT_OF_MEMORY} <= walk.codes, "both happened"
