# SPDX-License-Identifier: Apache-2.0
"""Memory beyond a physical share: BYTES of managed memory that must behave like the GPU's own.

Takes what the physical share has, then BYTES more, and no further: the GPU itself always has room for all of it.
"""

import ctypes
import sys

from driver import allocate, call, cuda, done, free, open_context, ref, release, say, size_t, u64

MEMORY_TYPE, IS_MANAGED = 2, 8
PATTERN = 0x5A


def attribute(number, address, kind):
    """A pointer attribute; -1 when the driver has none."""
    value = kind(99)
    return value.value if cuda.cuPointerGetAttribute(ref(value), number, u64(address)) == 0 else -1


def main(beyond):
    """Both kinds of memory, and what the program can tell of them."""
    open_context()
    access = ctypes.c_int()
    call("cuDeviceGetAttribute", ref(access), 89, 0)  # concurrentManagedAccess
    say(access=access.value)
    if not access.value:
        return
    start = free()
    own, real = allocate(start - 2 * beyond)
    more, managed = allocate(beyond)
    over, _ = allocate(2 * beyond)
    say(own=own, more=more, over=over)
    host = (ctypes.c_ubyte * beyond)()
    call("cuMemsetD8_v2", u64(managed), PATTERN, size_t(beyond))
    call("cuMemcpyDtoD_v2", u64(real), u64(managed), size_t(beyond))
    call("cuMemcpyDtoH_v2", host, u64(real), size_t(beyond))
    handle = (ctypes.c_char * 64)()
    say(
        right=bytes(host) == bytes([PATTERN]) * beyond,
        managed=attribute(IS_MANAGED, managed, ctypes.c_ubyte),
        type=attribute(MEMORY_TYPE, managed, ctypes.c_uint),
        shared=cuda.cuIpcGetMemHandle(handle, u64(managed)),
    )
    release(managed)
    release(real)
    say(kept=start - free())


main(int(sys.argv[1]))
done()
