# SPDX-License-Identifier: Apache-2.0
"""Graphs and captured streams."""

from __future__ import annotations

import pytest

MIB = 1 << 20
GIB = 1 << 30
CONTEXT = 100 * MIB

# CUDA_MEM_ALLOC_NODE_PARAMS: pool properties (88 bytes), access list, its length, size, address.
ALLOC = (
    "[p := ctypes.create_string_buffer(bytes([1,0,0,0, 0,0,0,0, 1,0,0,0, 0,0,0,0]) + bytes(88 - 16 + 16) + "
    "({size}).to_bytes(8, 'little') + bytes(8), 120), n := c_void_p(), "
    "good('cuGraphAddMemAllocNode', byref(n), c_void_p({graph}), None, c_size_t(0), p), "
    "int.from_bytes(p.raw[112:120], 'little')][3]"
)
FREE = "handles('cuGraphAddMemFreeNode', c_void_p({graph}), None, c_size_t(0), c_uint64({address}))"
LAUNCH = "call('cuGraphLaunch', c_void_p({}), None)"
KERNEL = (
    "[n := c_void_p(), p := (c_uint64 * 9)({kernel}, 1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32), "
    "good('cuGraphAddKernelNode_v2', byref(n), c_void_p({graph}), {before}, p), n.value][3]"
)


def started(small):
    peer = small.peer()
    peer("context(0)")
    return peer, peer("handles('cuGraphCreate', 0)")


def instantiate(peer, graph, flags=0):
    return peer(f"handles('cuGraphInstantiateWithFlags', c_void_p({graph}), c_uint64({flags}))")


def test_kernels_in_a_graph_run_at_each_launch(small):
    peer, graph = started(small)
    kernel = peer("function()")
    first = peer(KERNEL.format(kernel=kernel, graph=graph, before="None, c_size_t(0)"))
    second = peer(KERNEL.format(kernel=kernel, graph=graph, before=f"byref(c_void_p({first})), c_size_t(1)"))
    nodes = f"[c := c_size_t(), good('cuGraphGetNodes', c_void_p({graph}), None, byref(c)), c.value][2]"
    assert peer(nodes) == 2
    assert (
        peer(
            f"[c := c_size_t(1), b := c_void_p(), good('cuGraphNodeGetDependencies', c_void_p({second}), byref(b), "
            "byref(c)), b.value][3]"
        )
        == first
    )
    executable = instantiate(peer, graph)
    assert peer(f"call('cuGraphDestroy', c_void_p({graph}))") == 0
    assert [peer(LAUNCH.format(executable)) for _ in range(3)] == [0, 0, 0]
    assert small.state()["processes"][0]["launches"] == 6
    assert peer(f"call('cuGraphExecDestroy', c_void_p({executable}))") == 0
    assert peer(LAUNCH.format(executable)) == 1


def test_every_abi_of_instantiate(small):
    peer, graph = started(small)
    for name, arguments in (
        ("cuGraphInstantiate", "None, None, c_size_t(0)"),
        ("cuGraphInstantiate_v2", "None, None, c_size_t(0)"),
        ("cuGraphInstantiateWithFlags", "c_uint64(0)"),
        ("cuGraphInstantiateWithParams", "ctypes.create_string_buffer(32)"),
        ("cuGraphInstantiateWithParams_ptsz", "ctypes.create_string_buffer(32)"),
    ):
        executable = peer(f"handles({name!r}, c_void_p({graph}), {arguments})")
        assert executable > 0, name
        assert peer(f"call('cuGraphUpload_ptsz', c_void_p({executable}), None)") == 0
        assert peer(f"call('cuGraphLaunch_ptsz', c_void_p({executable}), None)") == 0


def test_memory_of_graphs_is_taken_at_launch_and_kept_until_trimmed(small):
    peer, graph = started(small)
    address = peer(ALLOC.format(graph=graph, size=GIB))
    peer(FREE.format(graph=graph, address=address))
    executable = instantiate(peer, graph)
    assert peer("used()") == CONTEXT
    assert peer(LAUNCH.format(executable)) == 0
    assert peer("used()") == CONTEXT + GIB
    assert peer(LAUNCH.format(executable)) == 0
    assert peer("used()") == CONTEXT + GIB
    attribute = "[v := c_uint64(), good('cuDeviceGetGraphMemAttribute', 0, {}, byref(v)), v.value][2]"
    assert [peer(attribute.format(number)) for number in range(4)] == [0, GIB, GIB, GIB]
    assert peer("call('cuDeviceGraphMemTrim', 0)") == 0
    assert peer("used()") == CONTEXT


def test_memory_that_outlives_its_launch(small):
    peer, graph = started(small)
    address = peer(ALLOC.format(graph=graph, size=GIB))
    executable = instantiate(peer, graph)
    assert peer(LAUNCH.format(executable)) == 0
    assert peer(f"write({address}, b'graph')") == 0
    assert peer(LAUNCH.format(executable)) == 1, "not freed yet"
    assert peer("call('cuDeviceGraphMemTrim', 0)") == 0
    assert peer("used()") == CONTEXT + GIB
    assert peer(f"free({address})") == 0
    assert peer(f"free({address})") == 1
    assert peer(LAUNCH.format(executable)) == 0
    assert peer(f"call('cuMemFreeAsync', c_uint64({address}), None)") == 0
    assert instantiate(peer, graph, 1) == -801, "at most one instance of a graph with memory"
    assert peer(f"call('cuGraphExecDestroy', c_void_p({executable}))") == 0
    again = instantiate(peer, graph, 1)
    assert [peer(LAUNCH.format(again)) for _ in range(2)] == [0, 0], "freed by the launch itself"


def test_a_graph_that_does_not_fit(small):
    peer, graph = started(small)
    peer(ALLOC.format(graph=graph, size=30 * GIB))
    executable = instantiate(peer, graph)
    assert peer(f"call('cuGraphUpload', c_void_p({executable}), None)") == 2
    assert peer(LAUNCH.format(executable)) == 2
    assert peer("used()") == CONTEXT


def test_a_captured_stream_does_nothing_until_its_graph_runs(small):
    peer, _ = started(small)
    stream = peer("handles('cuStreamCreate', 1)")
    address = peer("alloc(64)")
    peer(f"write({address}, bytes(64))")
    assert peer(f"call('cuStreamBeginCapture_v2', c_void_p({stream}), 0)") == 0
    assert peer(f"[s := c_int(), good('cuStreamIsCapturing', c_void_p({stream}), byref(s)), s.value][2]") == 1
    assert peer(f"call('cuMemsetD8Async', c_uint64({address}), 9, c_size_t(4), c_void_p({stream}))") == 0
    assert peer(f"launch(function(), {stream})") == 0
    inner = peer(f"handles('cuMemAllocAsync', c_size_t({GIB}), c_void_p({stream}))")
    assert peer(f"call('cuMemFreeAsync', c_uint64({inner}), c_void_p({stream}))") == 0
    graph = peer(f"[g := c_void_p(), good('cuStreamEndCapture', c_void_p({stream}), byref(g)), g.value][2]")
    assert peer(f"read({address}, 4)") == "00000000"
    assert peer("used()") == CONTEXT + 64
    assert small.state()["processes"][0]["launches"] == 0
    executable = instantiate(peer, graph)
    assert peer(LAUNCH.format(executable)) == 0
    assert peer(f"read({address}, 5)") == "0909090900"
    assert peer("used()") == CONTEXT + 64 + GIB
    assert small.state()["processes"][0]["launches"] == 1
    assert peer(f"call('cuStreamEndCapture', c_void_p({stream}), byref(c_void_p()))") == 401


def test_updating_an_executable_graph(small):
    peer, graph = started(small)
    kernel = peer("function()")
    peer(KERNEL.format(kernel=kernel, graph=graph, before="None, c_size_t(0)"))
    executable = instantiate(peer, graph)
    update = f"call('cuGraphExecUpdate_v2', c_void_p({executable}), c_void_p({{}}), ctypes.create_string_buffer(24))"
    assert peer(update.format(graph)) == 0
    other = peer("handles('cuGraphCreate', 0)")
    assert peer(update.format(other)) == 910
    peer(f"handles('cuGraphAddEmptyNode', c_void_p({other}), None, c_size_t(0))")
    assert peer(update.format(other)) == 910


def test_children_and_clones(small):
    peer, graph = started(small)
    kernel = peer("function()")
    node = peer(KERNEL.format(kernel=kernel, graph=graph, before="None, c_size_t(0)"))
    clone = peer(f"handles('cuGraphClone', c_void_p({graph}))")
    assert peer(f"handles('cuGraphNodeFindInClone', c_void_p({node}), c_void_p({clone}))") not in (node, -1)
    parent = peer("handles('cuGraphCreate', 0)")
    for child in (graph, clone):
        assert (
            peer(
                f"handles('cuGraphAddChildGraphNode', c_void_p({parent}), None, c_size_t(0), c_void_p({child}))"
            )
            > 0
        )
        assert peer(f"call('cuGraphDestroy', c_void_p({child}))") == 0
    assert peer(LAUNCH.format(instantiate(peer, parent))) == 0
    assert small.state()["processes"][0]["launches"] == 2


def test_conditional_nodes(small):
    peer, _ = started(small)
    kernel = peer("function()")
    runs = 0
    # kind (if, while, switch), first value, bodies, the one that runs
    for kind, value, size, index in (
        (0, 1, 1, 0),
        (0, 0, 1, None),
        (0, 0, 2, 1),
        (1, 7, 1, 0),
        (2, 2, 3, 2),
        (2, 3, 3, None),
    ):
        graph = peer("handles('cuGraphCreate', 0)")
        bodies = peer(f"graph_condition({graph}, {kind}, {value}, {size})")
        for number, body in enumerate(bodies):
            for _ in range(number + 1):
                peer(KERNEL.format(kernel=kernel, graph=body, before="None, c_size_t(0)"))
        assert peer(LAUNCH.format(instantiate(peer, graph))) == 0
        runs += 0 if index is None else index + 1
        assert small.state()["processes"][0]["launches"] == runs, (kind, value, size)
    assert peer(f"handles('cuGraphAddEmptyNode', c_void_p({bodies[0]}), None, c_size_t(0))") > 0
    with pytest.raises(AssertionError, match="cuGraphAddMemAllocNode returned 801"):
        peer(f"graph_alloc({bodies[0]}, 4096)")
