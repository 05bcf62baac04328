"""Memory beyond a physical share: BYTES of managed memory that must behave like the card's own. Prints one JSON object.

Takes what the physical share has, then BYTES more, and no further: the card itself always has room for all of it.
"""

import ctypes
import json
import sys

cuda = ctypes.CDLL("libcuda.so.1")
MEMORY_TYPE, IS_MANAGED = 2, 8
PATTERN = 0x5A


def call(name, *args):
    """Calls a driver function and ends the program when it fails."""
    result = getattr(cuda, name)(*args)
    if result != 0:
        sys.exit(f"{name} returned {result}")


def free_bytes():
    """What cuMemGetInfo calls free."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def allocate(size):
    """(result code, address)."""
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), address


def attribute(number, address, kind):
    """A pointer attribute; -1 when the driver has none."""
    value = kind(99)
    return value.value if cuda.cuPointerGetAttribute(ctypes.byref(value), number, address) == 0 else -1


def main(beyond):
    """Both kinds of memory, and what the program can tell of them."""
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    access = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(access), 89, 0)  # concurrentManagedAccess
    if not access.value:
        return {"access": 0}
    start = free_bytes()
    own, real = allocate(start - 2 * beyond)
    more, managed = allocate(beyond)
    over, _ = allocate(2 * beyond)
    host = (ctypes.c_ubyte * beyond)()
    call("cuMemsetD8_v2", managed, PATTERN, ctypes.c_size_t(beyond))
    call("cuMemcpyDtoD_v2", real, managed, ctypes.c_size_t(beyond))
    call("cuMemcpyDtoH_v2", host, real, ctypes.c_size_t(beyond))
    handle = (ctypes.c_char * 64)()
    answer = {
        "access": 1,
        "own": own,
        "more": more,
        "over": over,
        "right": bytes(host) == bytes([PATTERN]) * beyond,
        "managed": attribute(IS_MANAGED, managed, ctypes.c_ubyte),
        "type": attribute(MEMORY_TYPE, managed, ctypes.c_uint),
        "shared": cuda.cuIpcGetMemHandle(handle, managed),
        "left": start - free_bytes(),
    }
    call("cuMemFree_v2", managed)
    call("cuMemFree_v2", real)
    return answer | {"back": free_bytes() == start}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
