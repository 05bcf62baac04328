# SPDX-License-Identifier: Apache-2.0
"""PyTorch's profiler: kernels it sees, and how fast the profiled loop is."""

import sys
import time

import torch
from driver import done, say
from torch.profiler import ProfilerActivity, profile

seconds = min(float(sys.argv[1]), 3.0)
a = torch.randn(1024, 1024, device="cuda")
a @ a
torch.cuda.synchronize()
count, begun = 0, time.monotonic()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    while time.monotonic() - begun < seconds:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()
        count += 20
passed = time.monotonic() - begun
averages = profiler.key_averages()
on_gpu = [one for one in averages if "CUDA" in str(getattr(one, "device_type", ""))]
say(
    rate=count / passed,
    kernels=sum(one.count for one in on_gpu),
    names=[one.key[:60] for one in on_gpu[:5]],
)
done()
