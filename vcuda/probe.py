# SPDX-License-Identifier: Apache-2.0
"""A small CUDA program for ``vcuda doctor``: prints as JSON the driver's answers and whose functions it would call.

Run as a file of its own in a child process, with the library preloaded or without, because a broken driver may crash
or hang. It uses the standard library alone and imports nothing of the package. Allocates nothing on a GPU.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

SYMBOL = b"cuMemAlloc_v2"
CONCURRENT_MANAGED_ACCESS = 89


def _object_of(address: int | None) -> str:
    """Path of the file that is mapped at ADDRESS, "" for none."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in fields[0].split("-"))
        if address is not None and start <= address < end:
            return fields[5] if len(fields) == 6 else ""
    return ""


def _through_dlsym(driver: ctypes.CDLL) -> str:
    function = getattr(driver, SYMBOL.decode("ascii"))
    return _object_of(ctypes.cast(function, ctypes.c_void_p).value)


def _through_get_proc_address(driver: ctypes.CDLL, version: int) -> str:
    pointer, query_result = ctypes.c_void_p(), ctypes.c_int()
    name = SYMBOL.removesuffix(b"_v2")
    flags = ctypes.c_uint64(0)
    if hasattr(driver, "cuGetProcAddress_v2"):
        driver.cuGetProcAddress_v2(name, ctypes.byref(pointer), version, flags, ctypes.byref(query_result))
    elif hasattr(driver, "cuGetProcAddress"):
        driver.cuGetProcAddress(name, ctypes.byref(pointer), version, flags)
    return _object_of(pointer.value)


def _managed(driver: ctypes.CDLL) -> list[int]:
    """For each visible GPU whether its pages can move while it computes; empty where the driver does not start."""
    count, value = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    supported = []
    for device in range(count.value):
        code = driver.cuDeviceGetAttribute(ctypes.byref(value), CONCURRENT_MANAGED_ACCESS, device)
        supported.append(int(code == 0 and value.value == 1))
    return supported


def main() -> int:
    """Prints one JSON object; always succeeds when Python itself works."""
    answer: dict[str, object] = {}
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        answer["driver"] = _object_of(ctypes.cast(driver.cuInit, ctypes.c_void_p).value)
        answer["init"] = int(driver.cuInit(0))
        driver.cuDriverGetVersion(ctypes.byref(version))
        answer["version"] = version.value
        answer["managed"] = _managed(driver)
        answer["dlsym"] = _through_dlsym(driver)
        answer["get_proc_address"] = _through_get_proc_address(driver, version.value)
    except (OSError, AttributeError) as error:
        answer["error"] = str(error)
    print(json.dumps(answer))  # noqa: T201  this is the program's answer
    return 0


if __name__ == "__main__":
    sys.exit(main())
