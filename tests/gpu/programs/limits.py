# SPDX-License-Identifier: Apache-2.0
"""The quota's edge by cuMemAlloc, and every view of it. Modes: exact, view, hold BYTES.

exact: takes what cuMemGetInfo calls free, then more.
hold:  takes BYTES, says so, and sleeps until it is killed.
"""

import ctypes
import sys
import time

from driver import MIB, Nvml, allocate, call, done, memory, open_context, ref, release, say, size_t, uuid


def exact():
    """To the limit, and one block over."""
    free, total = memory()
    first, address = allocate(free)
    left, _ = memory()
    over, untouched = allocate(4 * MIB)
    small, small_at = allocate(256)
    say(total=total, free=free, all=first, left=left, over=over, untouched=untouched == 0, small=small)
    if small == 0:
        release(small_at)
    if first == 0:
        release(address)
    back, _ = memory()
    again, address = allocate(back)
    say(back=back, again=again)


def view():
    """Driver and NVML side by side."""
    by_driver = size_t()
    call("cuDeviceTotalMem_v2", ref(by_driver), 0)
    nvml = Nvml(uuid())
    total, free, used = nvml.memory()
    seen_free, seen_total = memory()
    second = (ctypes.c_ulonglong * 6)()
    second[0] = (
        ctypes.sizeof(ctypes.c_ulonglong) * 5 | 2 << 24
    )  # nvmlMemory_v2: version in the first word's half
    answer = nvml.lib.nvmlDeviceGetMemoryInfo_v2(nvml.device, ref(second))
    say(
        driver_total=seen_total,
        device_total=by_driver.value,
        nvml_total=total,
        driver_free=seen_free,
        nvml_free=free,
        nvml_used=used,
        v2=[answer, *second[1:5]],
        processes=nvml.processes(),
    )


def hold(size):
    """Allocates and waits to be killed."""
    result, _ = allocate(size)
    say(result=result, free=memory()[0])
    time.sleep(600)


if __name__ == "__main__":
    open_context()
    if sys.argv[1] == "hold":
        hold(int(sys.argv[2]))
    else:
        {"exact": exact, "view": view}[sys.argv[1]]()
        done()
