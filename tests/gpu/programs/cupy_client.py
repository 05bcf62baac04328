# SPDX-License-Identifier: Apache-2.0
"""CuPy: memory information, a computation and how fast it is, and an OutOfMemoryError beyond a limit."""

import sys
import time

import cupy
from driver import done, say

seconds, limit = float(sys.argv[1]), int(sys.argv[2])
free, total = cupy.cuda.runtime.memGetInfo()
x = cupy.ones((1024, 1024))
say(total=total, free=free, sum=float((x @ x).sum()), cupy=cupy.__version__)
count, begun = 0, time.monotonic()
while time.monotonic() - begun < seconds:
    for _ in range(20):
        x @ x
    cupy.cuda.Device().synchronize()
    count += 20
say(rate=count / (time.monotonic() - begun), peak=cupy.get_default_memory_pool().total_bytes())
if limit:
    try:
        cupy.cuda.alloc(limit + (1 << 20))
        refused = False
    except cupy.cuda.memory.OutOfMemoryError:
        refused = True
    say(refused=refused)
done()
