# SPDX-License-Identifier: Apache-2.0
"""Prints, as JSON, everything that NVML says about memory and processes of GPU 0.

A program like any other: it finds libnvidia-ml.so.1 by name and knows nothing of the library it may run under.
"""

from __future__ import annotations

import ctypes as c
import json
import sys

nvml = c.CDLL("libnvidia-ml.so.1")
device = c.c_void_p()
ROOM = 32
TABLE_ID = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
LISTS = {
    "nvmlDeviceGetComputeRunningProcesses": 16,
    "nvmlDeviceGetComputeRunningProcesses_v2": 24,
    "nvmlDeviceGetComputeRunningProcesses_v3": 24,
    "nvmlDeviceGetGraphicsRunningProcesses": 16,
    "nvmlDeviceGetGraphicsRunningProcesses_v2": 24,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": 24,
    "nvmlDeviceGetMPSComputeRunningProcesses": 16,
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": 24,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": 24,
}
"""Bytes of an entry."""
HEAD = int(sys.argv[1]) if len(sys.argv) > 1 else 32  # of a row of the private table


def number(data: bytes, at: int, size: int = 8) -> int:
    """Little-endian integer."""
    return int.from_bytes(data[at : at + size], "little")


def words(name: str, count: int, first: int = 0) -> list[int] | int:
    """COUNT 64-bit words that a call about the device fills; its error where it fails."""
    buffer = (c.c_uint64 * count)(first)
    code = getattr(nvml, name)(device, buffer)
    return code or list(buffer)


def rows(function, stride: int, used_at: int | None = 8, pid_at: int = 0) -> list | int:
    """[pid, bytes] of each entry that FUNCTION(device, count, entries) writes."""
    count, entries = c.c_uint(ROOM), c.create_string_buffer(stride * ROOM)
    code = function(device, c.byref(count), entries)
    if code:
        return code
    found = range(0, count.value * stride, stride)
    return sorted(
        [number(entries.raw, i + pid_at, 4)] + ([] if used_at is None else [number(entries.raw, i + used_at)])
        for i in found
    )


def detail(mode: int) -> list | int:
    """The versioned list."""
    entries = c.create_string_buffer(32 * ROOM)
    question = (c.c_uint64 * 3)(0x01000018 | mode << 32, ROOM, c.addressof(entries))
    code = nvml.nvmlDeviceGetRunningProcessDetailList(device, question)
    found = range(0, (question[1] & 0xFFFFFFFF) * 32, 32)
    return code or sorted([number(entries.raw, i, 4), number(entries.raw, i + 8)] for i in found)


def private() -> dict:
    """The three lists of the table that nvidia-smi reads; empty where the table does not reach them."""
    table = c.POINTER(c.c_uint64)()
    assert nvml.nvmlInternalGetExportTable(c.byref(table), TABLE_ID) == 0
    kind = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_uint), c.c_void_p)
    lists = {
        word: rows(kind(table[word]), HEAD + 4096) for word in (213, 214, 215) if (word + 1) * 8 <= table[0]
    }
    return {"size": table[0], "lists": lists}


def accounting() -> dict | int:
    """{pid: peak bytes} by both versions."""
    pids = rows(nvml.nvmlDeviceGetAccountingPids, 4, None)
    if isinstance(pids, int):
        return pids
    found = {}
    for (pid,) in pids:
        one, two = c.create_string_buffer(64), c.create_string_buffer(pid.to_bytes(4, "little"), 80)
        codes = (
            nvml.nvmlDeviceGetAccountingStats(device, pid, one),
            nvml.nvmlDeviceGetAccountingStats_v2(device, two),
        )
        found[pid] = [*codes, number(one.raw, 8), number(two.raw, 16)]
    return found


def main() -> None:
    """See above."""
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, c.byref(device)) == 0
    answer = {
        "memory": words("nvmlDeviceGetMemoryInfo", 3),
        "memory_v2": words("nvmlDeviceGetMemoryInfo_v2", 5, 0x02000028),
        "protected": words("nvmlDeviceGetConfComputeProtectedMemoryUsage", 3),
        "sizes": words("nvmlDeviceGetConfComputeMemSizeInfo", 2),
        "bar1": words("nvmlDeviceGetBAR1MemoryInfo", 3),
        "attributes": [words(f"nvmlDeviceGetAttributes{suffix}", 5) for suffix in ("", "_v2")],
        "lists": {name: rows(getattr(nvml, name), stride) for name, stride in LISTS.items()},
        "detail": [detail(mode) for mode in range(4)],
        "private": private(),
        "accounting": accounting(),
        "encoder": rows(nvml.nvmlDeviceGetEncoderSessions, 32, None, pid_at=4),
        "capture": rows(nvml.nvmlDeviceGetFBCSessions, 48, None, pid_at=4),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
