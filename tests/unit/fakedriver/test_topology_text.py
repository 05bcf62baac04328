# SPDX-License-Identifier: Apache-2.0
"""`nvidia-smi topo -m` as input."""

from __future__ import annotations

import pytest

SINGLE, MULTIPLE, HOSTBRIDGE, NODE, SYSTEM = 10, 20, 30, 40, 50

LEVEL = "[v := c_int(), good('nvmlDeviceGetTopologyCommonAncestor', device({}), device({}), byref(v)), v.value][2]"

UNDERLINED = """topology:
\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNODE\t0-3\t0\t\t2
GPU1\tNODE\t X \t4-7\t0-1\t\tN/A

Legend:

  X    = Self
"""

QUAD = """topology:
      GPU0 GPU1 GPU2 GPU3 mlx5_0 CPU Affinity NUMA Affinity
GPU0   X   NV4  NV2  PHB  PIX    0-15         0
GPU1  NV4   X   SYS  NV1  SYS    0-15         0
GPU2  NV2  SYS   X   PXB  SYS    16-31        1
GPU3  PHB  NV1  PXB   X   SYS    16-31        1
mlx5_0 PIX SYS  SYS  SYS  X
end
pcie:
      GPU0 GPU1 GPU2 GPU3
GPU0   X   PIX  SYS  PHB
GPU1  PIX   X   SYS  SYS
GPU2  SYS  SYS   X   PXB
GPU3  PHB  SYS  PXB   X
end
driver_version: 570.1
"""


def link(peer, gpu, number):
    """("switch" or index of the GPU at the other end), or the error code."""
    code = peer(f"call('nvmlDeviceGetNvLinkState', device({gpu}), {number}, byref(c_int()))")
    if code:
        return -code
    kind = peer(
        f"[v := c_int(), good('nvmlDeviceGetNvLinkRemoteDeviceType', device({gpu}), {number}, byref(v)), v.value][2]"
    )
    if kind == 2:
        return "switch"
    return peer(
        "[b := ctypes.create_string_buffer(68), "
        f"good('nvmlDeviceGetNvLinkRemotePciInfo_v2', device({gpu}), {number}, b), h := c_void_p(), "
        "good('nvmlDeviceGetHandleByPciBusId_v2', ctypes.string_at(ctypes.addressof(b) + 36), byref(h)), "
        "i := c_uint(), good('nvmlDeviceGetIndex', h, byref(i)), i.value][6]"
    )


def test_escapes_and_legend_do_no_harm(written):
    peer = written(UNDERLINED).peer()
    assert peer(LEVEL.format(0, 1)) == NODE
    assert peer("[v := c_uint(), good('nvmlDeviceGetNumaNodeId', device(0), byref(v)), v.value][2]") == 2
    assert peer("call('nvmlDeviceGetNumaNodeId', device(1), byref(c_uint()))") == 3
    assert (
        peer("[s := (ctypes.c_ulong * 1)(), good('nvmlDeviceGetCpuAffinity', device(1), 1, s), s[0]][2]")
        == 0xF0
    )


def test_links_between_gpus(written):
    peer = written(QUAD).peer()
    assert [link(peer, 0, number) for number in range(8)] == [1, 1, 1, 1, 2, 2, -3, -3]
    assert [link(peer, 3, number) for number in range(2)] == [1, -3]
    assert peer(LEVEL.format(0, 1)) == SINGLE, "from the pcie block, which NVLink hides"
    assert peer(LEVEL.format(2, 3)) == MULTIPLE
    assert peer(LEVEL.format(0, 3)) == HOSTBRIDGE
    assert peer(LEVEL.format(1, 2)) == SYSTEM
    assert link(peer, 0, 99) == -2


def test_switches(machine):
    peer = machine("dgx-h200").peer()
    assert [link(peer, 7, number) for number in (0, 17)] == ["switch", "switch"]
    assert link(peer, 7, 18) == -3
    assert peer(LEVEL.format(0, 3)) == NODE
    assert peer(LEVEL.format(0, 4)) == SYSTEM
    nearest = (
        "[n := c_uint(8), h := (c_void_p * 8)(), "
        "good('nvmlDeviceGetTopologyNearestGpus', device(1), {}, byref(n), h), n.value][3]"
    )
    assert peer(nearest.format(NODE)) == 3
    assert peer(nearest.format(SYSTEM)) == 4


def test_every_level_without_links(machine):
    peer = machine("pcie-8").peer()
    assert [peer(LEVEL.format(2, other)) for other in (0, 3, 4)] == [HOSTBRIDGE, MULTIPLE, SYSTEM]
    assert [peer(LEVEL.format(4, other)) for other in (5, 6)] == [SINGLE, NODE]
    assert link(peer, 0, 0) == -3


def test_levels_follow_numa_nodes_without_a_matrix(written):
    peer = written("gpu 0:\nnuma: 0\ngpu 1:\nnuma: 0\ngpu 2:\nnuma: 1\n").peer()
    assert [peer(LEVEL.format(0, other)) for other in (1, 2)] == [NODE, SYSTEM]


HEADER = "topology:\n GPU0 GPU1\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("topology:\n", "no GPU: write"),
        ("topology:\n nothing here\n", "the matrix must begin with a header line GPU0 GPU1 ..."),
        ("topology:\n GPU0 GPU2\n", "column GPU2 where GPU1 should be"),
        (HEADER + "GPU0 X\n", "row GPU0 has 1 cells, the header has 2 columns"),
        (HEADER + "GPU0 X FAR\n", 'GPU0 to GPU1: "FAR" is none of X SYS NODE PHB PXB PIX NV1..NV18'),
        (HEADER + "GPU0 X NV19\n", 'GPU0 to GPU1: "NV19" is none of'),
        (HEADER + "GPU0 PIX PIX\n", 'GPU0 to GPU0: "PIX", but X marks a GPU itself'),
        (HEADER + "GPU0 X X\n", 'GPU0 to GPU1: "X", but X marks a GPU itself'),
        (HEADER + "GPU0 X PIX\n", "the matrix has 2 GPU columns but 1 GPU rows"),
        (HEADER + "GPU0 X PIX\nGPU1 PXB X\n", "GPU1 to GPU0 and GPU0 to GPU1 differ"),
        (HEADER + "GPU0 X PIX\nGPU0 X PIX\n", "row GPU0 for the second time"),
        (HEADER + "GPU0 X PIX\nCPU0 X PIX\n", '"CPU0" is neither a row GPU<n>, NIC<n> nor the Legend'),
        (HEADER + "GPU0 X PIX many 0\n", 'row GPU0: "many" is not a CPU list'),
        (HEADER + "GPU0 X PIX 0-3 one\n", 'row GPU0: "one" is not a NUMA node'),
        ("gpus: 3\n" + HEADER + "GPU0 X PIX\nGPU1 PIX X\n", "the matrix shows 2 GPUs, the file describes 3"),
        ("pcie:\n GPU0 GPU1\nGPU0 X NV1\n", 'GPU0 to GPU1: "NV1" is none of X SYS NODE PHB PXB PIX'),
        (
            "topology:\n GPU0 GPU1 GPU2\nGPU0 X NV12 NV12\nGPU1 NV12 X NV12\nGPU2 NV12 NV12 X\n",
            "gpu 0 has 24 NVLinks, 18 is the most; with switches write nvswitch: yes",
        ),
    ],
)
def test_mistakes(written, text, complaint):
    peer = written(text).peer()
    assert peer("call('nvmlInit_v2')") == 9
    err = peer.end()
    assert complaint in err
    assert err.count("\n") == 1
