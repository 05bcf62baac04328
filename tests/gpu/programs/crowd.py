# SPDX-License-Identifier: Apache-2.0
"""A tenant with more memory than its physical part: fills TOTAL bytes in blocks, writes, computes and reads them again.

Arguments: TOTAL, ROUNDS. The GPU has room for all of it; what lies beyond the physical share is managed memory.
"""

import ctypes
import sys
import time

from driver import MIB, allocate, call, done, open_context, release, say, size_t, synchronize, u64

BLOCK = 256 * MIB
open_context()
total, rounds = int(sys.argv[1]), int(sys.argv[2])
blocks, code = [], 0
while code == 0 and len(blocks) < total // BLOCK:
    code, address = allocate(BLOCK)
    if code == 0:
        blocks.append(address)
say(ready=True, code=code, blocks=len(blocks), wanted=total // BLOCK)
probe, wrong, begun = (ctypes.c_ubyte * 4096)(), 0, time.monotonic()
for step in range(rounds):
    for number, address in enumerate(blocks):
        call("cuMemsetD8_v2", u64(address), (number + step) % 251, size_t(BLOCK))
    synchronize()
    for number, address in enumerate(blocks):
        call("cuMemcpyDtoH_v2", probe, u64(address + BLOCK - 4096), size_t(4096))
        wrong += bytes(probe) != bytes([(number + step) % 251]) * 4096
say(seconds=round(time.monotonic() - begun, 3), wrong=wrong)
for address in blocks:
    release(address)
done()
