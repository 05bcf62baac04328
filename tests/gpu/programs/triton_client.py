# SPDX-License-Identifier: Apache-2.0
"""A kernel compiled by Triton: right, how fast it is launched, and the refusal beyond a limit."""

import sys
import time

import torch
import triton
import triton.language as tl
from driver import done, say

seconds, limit = float(sys.argv[1]), int(sys.argv[2])


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803
    """One block of out = x + y."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


n = 1 << 20
x, y = torch.rand(n, device="cuda"), torch.rand(n, device="cuda")
out = torch.empty_like(x)
add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
say(right=bool(torch.equal(out, x + y)), triton=triton.__version__)
launches, begun = 0, time.monotonic()
while time.monotonic() - begun < seconds:
    for _ in range(100):
        add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    torch.cuda.synchronize()
    launches += 100
say(rate=launches / (time.monotonic() - begun), peak=torch.cuda.max_memory_reserved())
if limit:
    try:
        torch.empty(limit, dtype=torch.uint8, device="cuda")
        refused = False
    except torch.cuda.OutOfMemoryError:
        refused = True
    say(refused=refused)
done()
