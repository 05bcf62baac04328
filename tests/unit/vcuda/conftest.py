# SPDX-License-Identifier: Apache-2.0
"""Values that the tests of the bindings share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import vcuda

GPU_A = "GPU-6e1b0000-0000-4000-8000-00000000000a"
GPU_B = "GPU-6e1b0000-0000-4000-8000-00000000000b"
IDENTITY = bytes(range(16))


@pytest.fixture
def gpus() -> list[vcuda.GpuLimit]:
    return [vcuda.GpuLimit(GPU_A, 8 << 30, 30, 5 << 20), vcuda.GpuLimit(GPU_B, 12 << 30)]


@pytest.fixture
def quota(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> Callable[[str], Path]:
    """Makes a directory with a limits page and a ledger."""

    def make(name: str) -> Path:
        directory = tmp_path / name
        directory.mkdir(parents=True)
        vcuda.create_limits(directory / "limits", IDENTITY, gpus)
        vcuda.create_ledger(directory / "ledger", IDENTITY, gpus)
        return directory

    return make
