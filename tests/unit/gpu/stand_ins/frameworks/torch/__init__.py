# SPDX-License-Identifier: Apache-2.0
"""As much of PyTorch as the programs of tests/gpu call, on whatever libcuda there is: memory is real, numbers
are not.
"""

import contextlib
import ctypes
from types import SimpleNamespace

__version__ = "0.0-stand-in"
uint8 = "uint8"
_driver = ctypes.CDLL("libcuda.so.1")


def _start():
    context = ctypes.c_void_p()
    if _driver.cuInit(0) or _driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
        raise RuntimeError("CUDA error")
    _driver.cuCtxSetCurrent(context)


_start()


class Tensor:
    """A block of the GPU, or of nothing; every operation gives another one of nothing."""

    def __init__(self, size=0):
        self.size, self.address = size, ctypes.c_uint64()
        if size and _driver.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(size)) != 0:
            raise cuda.OutOfMemoryError(f"CUDA out of memory: {size} bytes")

    def __del__(self):
        if self.address.value:
            _driver.cuMemFree_v2(self.address)

    def numel(self):
        return self.size

    def _other(self, *_args, **_more):
        return Tensor()

    __sub__ = __add__ = __matmul__ = __truediv__ = __getitem__ = square = mean = abs = max = to = all = _other

    def backward(self):
        """Nothing."""

    def __bool__(self):
        return True

    def __float__(self):
        return 1.0


def _tensor(*_args, **_more):
    return Tensor()


def empty(count, dtype=None, device=None):
    assert dtype == uint8 and device == "cuda"
    return Tensor(count)


randn = rand = empty_like = _tensor


def manual_seed(_seed):
    """Nothing."""


def mm(_a, _b, out):
    """Nothing."""


def isfinite(_a):
    return Tensor()


def equal(_a, _b):
    return True


def allclose(_a, _b, rtol=0, atol=0):
    return True


class _Module:
    def __init__(self, *_args):
        """Nothing."""

    def to(self, _device):
        return self

    def parameters(self):
        return []

    def __call__(self, value):
        return value


nn = SimpleNamespace(Sequential=_Module, Linear=_Module, ReLU=_Module)


class _Sgd:
    def __init__(self, _parameters, lr):
        """Nothing."""

    def zero_grad(self):
        """Nothing."""

    step = zero_grad


optim = SimpleNamespace(SGD=_Sgd)


class _Stream:
    def wait_stream(self, _other):
        """Nothing."""


class _Graph:
    def replay(self):
        """Nothing."""


def _memory():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


class _OutOfMemoryError(RuntimeError):
    pass


cuda = SimpleNamespace(
    OutOfMemoryError=_OutOfMemoryError,
    mem_get_info=_memory,
    get_device_properties=lambda _device: SimpleNamespace(total_memory=_memory()[1]),
    synchronize=lambda: None,
    empty_cache=lambda: None,
    memory_reserved=lambda: _memory()[1] - _memory()[0],
    max_memory_reserved=lambda: 1 << 20,
    Stream=_Stream,
    current_stream=_Stream,
    stream=lambda _stream: contextlib.nullcontext(),
    CUDAGraph=_Graph,
    graph=lambda _graph: contextlib.nullcontext(),
)
