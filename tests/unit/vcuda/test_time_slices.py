# SPDX-License-Identifier: Apache-2.0
"""Time slices through the bindings."""

from __future__ import annotations

import pytest

import vcuda
from tests.unit.vcuda.conftest import GPU_A

GPU_C = "GPU-6e1b0000-0000-4000-8000-00000000000c"


def test_a_ledger_without_host_memory_has_no_time_slices(tmp_path):
    gpus = [vcuda.GpuLimit(GPU_A, 8 << 30)]
    vcuda.create_ledger(tmp_path / "ledger", bytes(16), gpus)
    assert vcuda.read_time_slices(tmp_path / "ledger", [GPU_A]) == {}


def test_an_unused_ledger_reads_zero(tmp_path):
    gpus = [vcuda.GpuLimit(GPU_A, 8 << 30, physical_bytes=4 << 30), vcuda.GpuLimit(GPU_C, 8 << 30)]
    vcuda.create_ledger(tmp_path / "ledger", bytes(16), gpus)
    nothing = vcuda.TimeSliceUsage(0, waiting=False, busy=0, alive=0, managed=0, real=0, held_us=0)
    assert vcuda.read_time_slices(tmp_path / "ledger", [GPU_A, GPU_C]) == {GPU_A: nothing, GPU_C: nothing}
    with pytest.raises(vcuda.VcudaError):
        vcuda.read_time_slices(tmp_path / "nothing", [GPU_A])


def test_words_are_written_for_one_gpu(tmp_path):
    gpus = [vcuda.GpuLimit(GPU_A, 8 << 30, physical_bytes=4 << 30)]
    page = tmp_path / "limits"
    vcuda.create_limits(page, bytes(16), gpus)
    before = vcuda.read_limits(page).changes
    vcuda.withhold_time_slice(page, GPU_A, vcuda.time_slice_clock() + 1000)
    vcuda.give_time_slice(page, GPU_A, vcuda.time_slice_clock() + 1000)
    vcuda.end_time_slices(page, GPU_A)
    assert vcuda.read_limits(page).changes == before + 3
    with pytest.raises(vcuda.VcudaError):
        vcuda.withhold_time_slice(page, GPU_C, 1)
