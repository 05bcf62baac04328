# SPDX-License-Identifier: Apache-2.0
"""NVML's private table, and whose functions its process lists are: before and behind the library."""

import ctypes

from driver import Nvml, done, open_context, pointer, ref, say, uuid
from pointers import Libraries

TABLE_ID = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
WORDS = (213, 214, 215)


def main():
    """See above."""
    open_context()
    text, first = ctypes.create_string_buffer(96), Nvml()
    first.lib.nvmlDeviceGetUUID(first.device, text, 96)
    say(uuids=[text.value.decode(), uuid()])
    count = ctypes.c_uint(0)
    asked = first.lib.nvmlDeviceGetComputeRunningProcesses_v3(first.device, ref(count), None)
    say(number_alone=[asked, count.value])
    again = Nvml()
    ended = first.lib.nvmlShutdown()
    say(one_end_of_two_starts=[ended, again.lib.nvmlDeviceGetUUID(again.device, text, 96)])
    first.lib.nvmlShutdown()
    say(same_handle=[first.device.value, Nvml().device.value])
    nvml, table, version = Nvml(), pointer(), ctypes.create_string_buffer(96)
    nvml.lib.nvmlSystemGetDriverVersion(version, 96)
    code = nvml.lib.nvmlInternalGetExportTable(ref(table), TABLE_ID)
    say(code=code, branch=int(version.value.split(b".")[0]), bytes=0, lists=False, own=False)
    if code == 0 and table.value:
        words = ctypes.cast(table, ctypes.POINTER(ctypes.c_uint64))
        size, libraries = words[0], Libraries()
        places = [libraries.of(words[at]) if at * 8 < size and words[at] else "" for at in WORDS]
        say(bytes=size, lists=all(places), places=places, own=all("vcuda" in place for place in places))
    done()


if __name__ == "__main__":
    main()
