# SPDX-License-Identifier: Apache-2.0
"""A captured CUDA graph of PyTorch: capture, replays as fast as they go, and the memory back after it is gone."""

import sys
import time

import torch
from driver import done, say

seconds = float(sys.argv[1])
static = torch.randn(1024, 1024, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        static @ static
torch.cuda.current_stream().wait_stream(side)
torch.cuda.synchronize()
before = torch.cuda.mem_get_info()[0]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = static
    for _ in range(8):
        result = result @ static
        result = result / result.abs().max()
replays, begun = 0, time.monotonic()
while time.monotonic() - begun < seconds:
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    replays += 20
say(rate=replays / (time.monotonic() - begun), peak=torch.cuda.max_memory_reserved())
wanted = static
for _ in range(8):
    wanted = wanted @ static
    wanted = wanted / wanted.abs().max()
right = bool(torch.allclose(result, wanted, rtol=1e-2, atol=1e-2))
during = torch.cuda.mem_get_info()[0]
del graph, result, wanted
torch.cuda.synchronize()
torch.cuda.empty_cache()
say(right=right, held=before - during, after=before - torch.cuda.mem_get_info()[0])
done()
