"""Launches kernels that spin on the card for MICROSECONDS each, for SECONDS, and prints how much of them ran.

BLOCKS: of each kernel; BATCH: launches between two waits for the card. Under a compute share the card is theirs for
that part of the time. Through ctypes, with PTX that every driver compiles.
"""

import ctypes
import json
import sys
import time

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 length)
{
  .reg .u64 %r<4>;
  .reg .pred %more;
  ld.param.u64 %r0, [length];
  mov.u64 %r1, %globaltimer;
again:
  mov.u64 %r2, %globaltimer;
  sub.u64 %r3, %r2, %r1;
  setp.lt.u64 %more, %r3, %r0;
  @%more bra again;
  ret;
}
"""
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    """Calls a driver function and ends the program when it fails."""
    result = getattr(cuda, name)(*args)
    if result != 0:
        sys.exit(f"{name} returned {result}")


def main():
    """Everything."""
    microseconds, blocks, batch, seconds = (int(text) for text in sys.argv[1:5])
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
    length = ctypes.c_uint64(microseconds * 1000)
    params = (ctypes.c_void_p * 1)(ctypes.addressof(length))
    done, begin, longest = 0, time.monotonic(), 0.0
    while time.monotonic() - begin < seconds:
        for _ in range(batch):
            before = time.monotonic()
            call("cuLaunchKernel", kernel, blocks, 1, 1, 32, 1, 1, 0, None, params, None)
            longest = max(longest, time.monotonic() - before)
        call("cuCtxSynchronize")
        done += batch
    passed = time.monotonic() - begin
    busy = done * microseconds / 1e6
    print(
        json.dumps(
            {"permille": round(1000 * busy / passed), "kernels": done, "longest_us": round(1e6 * longest)}
        )
    )


main()
