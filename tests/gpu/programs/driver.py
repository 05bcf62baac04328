"""A client of the driver API through ctypes. Prints one JSON object; modes: exact, hold, pair, view.

exact: takes what cuMemGetInfo calls free, then one block more, then frees and takes it again.
hold:  takes BYTES, prints, and sleeps until it is killed.
view:  what every interface says about the card.
"""

import ctypes
import json
import sys
import time

OUT_OF_MEMORY = 2
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    """Calls a driver function and ends the program when it fails."""
    result = getattr(cuda, name)(*args)
    if result != 0:
        sys.exit(f"{name} returned {result}")


def open_context():
    """Makes the primary context of device 0 current."""
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)


def memory():
    """(free, total) as cuMemGetInfo has it."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def allocate(size):
    """(result code, address)."""
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), address.value


def exact():
    """To the limit, and one block over."""
    free, total = memory()
    first, address = allocate(free)
    left, _ = memory()
    over, untouched = allocate(256)
    call("cuMemFree_v2", ctypes.c_uint64(address))
    back, _ = memory()
    again, _ = allocate(free)
    return {
        "total": total,
        "free": free,
        "all": first,
        "left": left,
        "over": over,
        "untouched": untouched == 0,
        "back": back,
        "again": again,
    }


def hold(size):
    """Allocates and waits to be killed."""
    result, _ = allocate(size)
    print(json.dumps({"result": result}), flush=True)
    time.sleep(600)


def view():
    """Driver and NVML side by side."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    count, by_driver = ctypes.c_uint(), ctypes.c_size_t()
    call("cuDeviceTotalMem_v2", ctypes.byref(by_driver), 0)
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    uuid = (ctypes.c_ubyte * 16)()
    call(
        "cuDeviceGetUuid_v2" if hasattr(cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid",
        ctypes.byref(uuid),
        0,
    )
    text = bytes(uuid).hex()
    name = "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    device = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(device)) != 0:
        sys.exit(f"NVML does not know {name}")
    numbers = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(numbers)) != 0:
        sys.exit("nvmlDeviceGetMemoryInfo failed")
    free, total = memory()
    return {
        "driver_total": total,
        "device_total": by_driver.value,
        "nvml_total": numbers[0],
        "driver_free": free,
        "nvml_free": numbers[1],
        "nvml_used": numbers[2],
    }


if __name__ == "__main__":
    open_context()
    if sys.argv[1] == "hold":
        hold(int(sys.argv[2]))
    else:
        print(json.dumps({"exact": exact, "view": view}[sys.argv[1]]()))
