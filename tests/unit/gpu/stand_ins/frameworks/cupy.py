# SPDX-License-Identifier: Apache-2.0
"""As much of CuPy as tests/gpu/programs/cupy_client.py calls."""

from types import SimpleNamespace

import torch
from jax.numpy import ones  # noqa: F401 - programs use it by this module

__version__ = "0.0-stand-in"


class _OutOfMemoryError(MemoryError):
    pass


def _alloc(size):
    try:
        return torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        raise _OutOfMemoryError(str(error)) from error


def get_default_memory_pool():
    return SimpleNamespace(total_bytes=lambda: 1 << 20)


cuda = SimpleNamespace(
    runtime=SimpleNamespace(memGetInfo=torch.cuda.mem_get_info),
    Device=lambda: SimpleNamespace(synchronize=lambda: None),
    alloc=_alloc,
    memory=SimpleNamespace(OutOfMemoryError=_OutOfMemoryError),
)
