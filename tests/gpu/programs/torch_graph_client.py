"""A captured CUDA graph of PyTorch under a quota: capture, replay, and the memory back after it is gone."""

import json

import torch

static = torch.randn(1024, 1024, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        static @ static
torch.cuda.current_stream().wait_stream(side)
before = torch.cuda.mem_get_info()[0]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = static @ static
for _ in range(10):
    graph.replay()
torch.cuda.synchronize()
right = bool(torch.allclose(result, static @ static, rtol=1e-2, atol=1e-2))
during = torch.cuda.mem_get_info()[0]
del graph, result
torch.cuda.empty_cache()
print(json.dumps({"right": right, "held": before - during, "after": before - torch.cuda.mem_get_info()[0]}))
