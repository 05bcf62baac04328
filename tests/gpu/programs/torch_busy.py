# SPDX-License-Identifier: Apache-2.0
"""PyTorch with kernels that fill the GPU: products a second, launched one by one and as graphs. Argument: SECONDS."""

import sys
import time

import torch
from driver import done, say

seconds = float(sys.argv[1])
a = torch.randn(4096, 4096, device="cuda")
b = a @ a
torch.cuda.synchronize()


def rate(work, each):
    """Products a second."""
    count, begun = 0, time.monotonic()
    while time.monotonic() - begun < seconds:
        work()
        torch.cuda.synchronize()
        count += each
    return count / (time.monotonic() - begun)


def eager():
    """Ten products."""
    for _ in range(10):
        torch.mm(a, a, out=b)


side = torch.cuda.Stream()
with torch.cuda.stream(side):
    eager()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    eager()
say(eager=rate(eager, 10))
say(graphs=rate(graph.replay, 10))
say(finite=bool(torch.isfinite(b).all()))
done()
