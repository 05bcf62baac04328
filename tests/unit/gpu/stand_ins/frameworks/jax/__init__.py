# SPDX-License-Identifier: Apache-2.0
"""As much of JAX as tests/gpu/programs/jax_client.py calls. Its pool is the part of the GPU that the variable says."""

import os
from types import SimpleNamespace

import torch

__version__ = "0.0-stand-in"


def jit(function):
    return function


def _stats():
    part = float(os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"])
    return {"bytes_limit": int(torch.cuda.mem_get_info()[1] * part), "peak_bytes_in_use": 1}


def devices():
    return [SimpleNamespace(memory_stats=_stats, platform="gpu")]
