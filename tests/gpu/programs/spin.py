# SPDX-License-Identifier: Apache-2.0
"""Launches kernels of a known length for SECONDS and says how much of the GPU's time that was: what a share
gives.

Arguments: MICROSECONDS of a kernel, BLOCKS of it, then either nothing: how many loops make that long is found
out, and what one kernel takes. Or BATCH (launches between two waits), SECONDS, LOOPS, TAKES (milliseconds,
both as found out before) and a FILE: the program is `ready`, and begins when the file is there, together with
others.

A kernel counts loops, not time: one that is interrupted for another process's kernels must not seem done.
They are counted without the library, by events around single kernels: under a share a launch may wait between
its two events. The simulated driver goes by the kernel's name.
"""

import ctypes
import sys
import time
from pathlib import Path

from driver import call, done, loaded, open_context, pointer, ref, say, synchronize, u64

PTX = b"""
.version 6.3
.target sm_52
.address_size 64
.visible .entry %s(.param .u64 count, .param .u64 never)
{
  .reg .u64 %%r<6>;
  .reg .f32 %%f<4>;
  .reg .pred %%p<3>;
  ld.param.u64 %%r0, [count];
  ld.param.u64 %%r1, [never];
  mov.u64 %%r2, 0;
  mov.f32 %%f0, 0f3F800001;
  mov.f32 %%f1, 0f3F800001;
again:
  fma.rn.f32 %%f1, %%f1, %%f0, %%f0;
  add.u64 %%r2, %%r2, 1;
  setp.lt.u64 %%p0, %%r2, %%r0;
  @%%p0 bra again;
  setp.eq.u64 %%p1, %%r1, 0;
  @%%p1 bra end;
  st.global.f32 [%%r1], %%f1;
end:
  ret;
}
"""


class Work:
    """The kernel and its two parameters."""

    def __init__(self, microseconds, blocks):
        name = b"work_%dus" % microseconds
        self.module, self.function, self.blocks = loaded(PTX % name), pointer(), blocks
        call("cuModuleGetFunction", ref(self.function), self.module, name)
        self.count, self.never = u64(100_000), u64(0)
        self.params = (ctypes.c_void_p * 2)(ctypes.addressof(self.count), ctypes.addressof(self.never))
        self.begin, self.end = pointer(), pointer()
        call("cuEventCreate", ref(self.begin), 0)
        call("cuEventCreate", ref(self.end), 0)

    def launch(self):
        """Once, on the default stream."""
        call("cuLaunchKernel", self.function, self.blocks, 1, 1, 32, 1, 1, 0, None, self.params, None)

    def takes(self):
        """Milliseconds of one kernel by itself: the least of some, since others may have the GPU meanwhile."""
        least = 1e9
        for _ in range(7):
            value = ctypes.c_float()
            call("cuEventRecord", self.begin, None)
            self.launch()
            call("cuEventRecord", self.end, None)
            call("cuEventSynchronize", self.end)
            call("cuEventElapsedTime", ref(value), self.begin, self.end)
            least = min(least, value.value)
        return least

    def calibrate(self, milliseconds):
        """Makes the kernel take that long; what it then takes."""
        self.launch()
        for _ in range(3):
            took = max(self.takes(), 1e-3)
            self.count.value = max(1, int(self.count.value * milliseconds / took))
        return self.takes()


def find_out(work, length):
    """Loops for so many microseconds, and what a kernel takes."""
    takes = work.calibrate(length / 1000)
    say(loops=work.count.value, takes=takes)


def run(work, batch, seconds, takes, start):
    """Launches for so long."""
    while not Path(start).exists():
        time.sleep(0.002)
    launched, begun, longest = 0, time.monotonic(), 0.0
    while time.monotonic() - begun < seconds:
        for _ in range(batch):
            before = time.monotonic()
            work.launch()
            longest = max(longest, time.monotonic() - before)
        synchronize()
        launched += batch
    passed = time.monotonic() - begun
    say(
        permille=round(launched * takes / passed),
        kernels=launched,
        longest_us=round(1e6 * longest),
        seconds=passed,
    )


if __name__ == "__main__":
    open_context()
    kernel = Work(int(sys.argv[1]), int(sys.argv[2]))
    if len(sys.argv) == 3:
        find_out(kernel, int(sys.argv[1]))
    else:
        kernel.count.value = int(sys.argv[5])
        kernel.launch()
        synchronize()
        say(ready=True)
        run(kernel, int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[6]), sys.argv[7])
    done()
