# SPDX-License-Identifier: Apache-2.0
"""As much of Triton as tests/gpu/programs/triton_client.py calls."""

__version__ = "0.0-stand-in"


class _Kernel:
    def __getitem__(self, _grid):
        return lambda *_args, **_more: None


def jit(_function):
    return _Kernel()


def cdiv(a, b):
    return -(-a // b)
