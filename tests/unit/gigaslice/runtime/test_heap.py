# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

from tests.fakes.arenas import count_arenas

LIMIT = "from gigaslice.runtime.heap import limit_arenas; assert limit_arenas()"


def test_threads_share_an_arena(tmp_path):
    assert count_arenas("", tmp_path) > 1, "else this machine shows nothing"
    assert count_arenas(LIMIT, tmp_path) == 1


TRIMS = """
import asyncio, ctypes, sys
from gigaslice.runtime.heap import keep_small
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = [libc.malloc(ctypes.c_size_t(60000)) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 60000)
for block in blocks[:-1]:  # the last keeps the heap from shrinking at its end
    libc.free(ctypes.c_void_p(block))
before = resident()
async def main():
    task = asyncio.create_task(keep_small(0.01 if sys.argv[1] == "trims" else 3600.0))
    for _ in range(500):
        await asyncio.sleep(0.01)
        if before - resident() > 40 << 20:
            break
    task.cancel()
asyncio.run(main())
print((before - resident()) >> 20)
"""


def test_free_pages_are_given_back():
    run = [sys.executable, "-c", TRIMS, "trims"]
    assert int(subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout) > 40
