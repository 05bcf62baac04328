# SPDX-License-Identifier: Apache-2.0
"""Forks at the worst time: before the library's own fork handler is there, nothing is locked and nothing is owned."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.running import CLIENTS, LIBRARY, NO_DEVICE, NOT_READY, Place

BEGINNING = """
import ctypes, os, threading, time
atfork = ctypes.CDLL(None)
cuda = ctypes.CDLL("libcuda.so.1")
"""

LOOK_UP = """
before = atfork.atfork_done()
cuda.cuMemAlloc_v2
print(before, atfork.atfork_done() > 0)
"""

HELD_UP = """
atfork.atfork_hold(1)
dlsym = atfork.dlsym
dlsym.argtypes = ctypes.c_void_p, ctypes.c_char_p
threading.Thread(target=dlsym, args=(cuda._handle, b"cuInit"), daemon=True).start()
while atfork.atfork_begun() == 0: time.sleep(0.001)
# That thread is on its way to register; this one comes in between.
address, context = ctypes.c_uint64(), ctypes.c_void_p()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
         cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20))]
print(*codes, atfork.atfork_done() > 0)
atfork.atfork_hold(0)
"""

NO_MEMORY = """
atfork.atfork_fail(1)
print(cuda.cuInit(0))
"""

Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, python: str) -> Run:
    place = Place(tmp_path)

    def start(program: str) -> subprocess.CompletedProcess[str]:
        preload = f"{CLIENTS / 'atfork.so'}:{LIBRARY}"
        return place.run(python, "-c", BEGINNING + program, limit="1GiB", LD_PRELOAD=preload)

    return start


def test_a_driver_is_not_adopted_before_a_child_would_be_told(run: Run) -> None:
    """Adopting takes a lock; it happens at the first look-up, long before the first call."""
    assert run(LOOK_UP).stdout.split() == ["0", "True"]


def test_no_thread_passes_a_registration_that_is_on_its_way(run: Run) -> None:
    done = run(HELD_UP)
    assert done.stdout.split() == ["0", "0", "0", "0", "True"], done.stderr


def test_without_a_handler_there_is_no_cuda(run: Run) -> None:
    done = run(NO_MEMORY)
    assert done.stdout.split() in ([str(NO_DEVICE)], [str(NOT_READY)]), done.stderr
