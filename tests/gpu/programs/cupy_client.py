"""CuPy under a quota: memory information, a computation, and an OutOfMemoryError at the limit."""

import json
import sys

import cupy

limit = int(sys.argv[1])
free, total = cupy.cuda.runtime.memGetInfo()
x = cupy.ones((1024, 1024))
value = float((x @ x).sum())
try:
    cupy.cuda.alloc(limit + (1 << 20))
    refused = False
except cupy.cuda.memory.OutOfMemoryError:
    refused = True
print(json.dumps({"total": total, "free": free, "refused": refused, "sum": value}))
