# SPDX-License-Identifier: Apache-2.0
"""A program that is refused memory, and what it is told: the beginning of a Python program that tests write on."""

from __future__ import annotations

PROGRAM = """
import ctypes, os, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
MIB = 1 << 20

def take(mebibytes):
    address = ctypes.c_uint64()
    cuda.cuCtxSetCurrent(context)
    code = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mebibytes * MIB))
    return address.value if code == 0 else None

def give(address):
    assert cuda.cuMemFree_v2(ctypes.c_uint64(address)) == 0

def in_thread(work, *arguments):
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    thread.join()

def mark(text):
    os.write(2, f"{text}\\n".encode())

"""
ONE_CARD = "gpu 0:\n  memory: 24GiB"
OWN = (
    "vcuda: this program's 1 GiB are used up (828 MiB in use, 512 MiB asked); use less, or give it more, with"
)
