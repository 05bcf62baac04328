# SPDX-License-Identifier: Apache-2.0
"""What process lists show in the PID namespace that this program begins: NVML's, the private table's, nvidia-smi's.

lists.py STRANGER [NVIDIA_SMI]: PID of a process outside that uses the GPU. Rows of the private table may be of any
size, so only their number is read, and whether the stranger's PID stands anywhere in them.
"""

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from driver import Nvml, done, open_context, pointer, ref, say, uuid
from table import TABLE_ID, WORDS

ROOM, ROW = 64, 16384  # rows, and bytes for each: more than any known one


def symbols():
    """Path of libnvidia-ml, which of its dynamic symbols name ioctl, and how many there are."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    path = next(line.split(None, 5)[5] for line in maps if "libnvidia-ml.so" in line)
    tool = shutil.which("readelf")
    if tool is None:  # the names alone
        named = b"\0ioctl\0" in Path(path).read_bytes()
        return path, ["ioctl (no readelf: its name is in the file)"] if named else [], -1
    command = [tool, "--dyn-syms", "--wide", path]
    # Not under the library: readelf is a program like any other.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    lines = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=False).stdout
    rows = [line.split() for line in lines.splitlines() if len(line.split()) >= 8]
    return path, [" ".join(row[3:8]) for row in rows if "ioctl" in row[7]], len(rows)


def private(nvml, stranger):
    """[[code, number of rows, whether the stranger is in them]] of the words that the table has."""
    table, found = pointer(), []
    if nvml.lib.nvmlInternalGetExportTable(ref(table), TABLE_ID) != 0 or not table.value:
        return found
    words = ctypes.cast(table, ctypes.POINTER(ctypes.c_uint64))
    kind = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer)
    for word in WORDS:
        if (word + 1) * 8 > words[0] or not words[word]:
            continue
        count, rows = ctypes.c_uint(ROOM), ctypes.create_string_buffer(ROOM * ROW)
        code = kind(words[word])(nvml.device, ctypes.addressof(count), ctypes.addressof(rows))
        numbers = struct.unpack(f"{ROOM * ROW // 4}I", rows.raw)
        found.append([code, count.value, stranger in numbers])
    return found


def tool(path):
    """(exit code, PIDs in its first column, what it says on standard error) of nvidia-smi."""
    command = [path, "--query-compute-apps=pid", "--format=csv,noheader"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    first = [line.split(",")[0].strip() for line in ended.stdout.splitlines()]
    return ended.returncode, [int(word) for word in first if word.isdigit()], ended.stderr[-300:]


def main():
    """See above."""
    stranger, path = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    open_context()
    nvml, version = Nvml(uuid()), ctypes.create_string_buffer(96)
    nvml.lib.nvmlSystemGetDriverVersion(version, 96)
    library, names, number = symbols()
    say(own=os.getpid(), driver=version.value.decode(), library=library, ioctl=names, symbols=number)
    say(public=sorted(nvml.processes().items()))
    say(private=private(nvml, stranger))
    say(nvidia_smi=tool(path) if path else None)
    done()


if __name__ == "__main__":
    main()
