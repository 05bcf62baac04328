# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a process sees."""

from __future__ import annotations

import pytest

NO_DEVICE = 100


@pytest.fixture
def all_uuids(machine):
    return machine("pcie-8").peer()("uuids()")


def test_all_by_default(all_uuids):
    assert len(set(all_uuids)) == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [0]),
        ("3,1", [3, 1]),
        ("0,1,2,3,4,5,6,7", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("2,9,1", [2]),
        ("2,-1,1", [2]),
        ("1, 5", [1, 5]),
    ],
)
def test_cuda_visible_devices_by_index(machine, all_uuids, text, expected):
    peer = machine("pcie-8").peer(CUDA_VISIBLE_DEVICES=text)
    assert peer("uuids()") == [all_uuids[index] for index in expected]


@pytest.mark.parametrize("text", ["", "-1", "none", "8", "0,0", "3,1,3"])
def test_cuda_visible_devices_that_leave_nothing(machine, text):
    peer = machine("pcie-8").peer(CUDA_VISIBLE_DEVICES=text)
    assert peer("call('cuInit', 0)") == NO_DEVICE
    assert (
        peer("[good('nvmlInit_v2'), c := c_uint(), good('nvmlDeviceGetCount_v2', byref(c)), c.value][3]") == 8
    )


def test_cuda_visible_devices_by_uuid(machine, all_uuids):
    text = f"{all_uuids[6]},{all_uuids[2][:12]},GPU-nothing,{all_uuids[0]}"
    assert machine("pcie-8").peer(CUDA_VISIBLE_DEVICES=text)("uuids()") == [all_uuids[6], all_uuids[2]]


def test_a_container_sees_what_its_runtime_left_in_the_machines_order(machine, all_uuids):
    text = f"{all_uuids[5]},1,{all_uuids[3].lower()}"
    peer = machine("pcie-8").peer(NVIDIA_VISIBLE_DEVICES=text)
    present = [all_uuids[1], all_uuids[3], all_uuids[5]]
    assert peer("uuids()") == present
    assert peer("[text('nvmlDeviceGetUUID', device(i)) for i in range(3)]") == present
    assert peer("call('nvmlDeviceGetHandleByIndex_v2', c_uint(3), byref(c_void_p()))") == 2
    assert peer(f"call('nvmlDeviceGetHandleByUUID', {all_uuids[0]!r}.encode(), byref(c_void_p()))") == 6
    both = machine("pcie-8").peer(NVIDIA_VISIBLE_DEVICES=text, CUDA_VISIBLE_DEVICES="2,0")
    assert both("uuids()") == [all_uuids[5], all_uuids[1]]


@pytest.mark.parametrize("text", ["none", "void", ""])
def test_a_container_without_gpus(machine, text):
    peer = machine("pcie-8").peer(NVIDIA_VISIBLE_DEVICES=text)
    assert peer("call('cuInit', 0)") == NO_DEVICE
    assert (
        peer("[good('nvmlInit_v2'), c := c_uint(7), good('nvmlDeviceGetCount_v2', byref(c)), c.value][3]")
        == 0
    )


def test_a_container_with_all(machine, all_uuids):
    assert machine("pcie-8").peer(NVIDIA_VISIBLE_DEVICES="all")("uuids()") == all_uuids


def test_a_container_with_an_unknown_device(machine):
    peer = machine("pcie-8").peer(NVIDIA_VISIBLE_DEVICES="0,GPU-00000000-0000-0000-0000-000000000000")
    assert peer("call('cuInit', 0)") == NO_DEVICE
    assert 'no device "GPU-00000000-0000-0000-0000-000000000000"' in peer.end()


def test_a_container_shares_memory_with_the_rest(machine, all_uuids):
    shared = machine("pcie-8")
    inside = shared.peer(NVIDIA_VISIBLE_DEVICES=all_uuids[4])
    outside = shared.peer()
    inside("context(0)")
    inside("alloc(1 << 30)")
    assert outside("processes(4)") == [[inside.pid, (1 << 30) + (256 << 20)]]
    assert inside("processes(0)") == outside("processes(4)")
