# SPDX-License-Identifier: Apache-2.0
"""PyTorch: how fast a small model trains, and, with a limit, what it sees of it, meets at it and does after it.

Arguments: SECONDS, LIMIT (0: none, then nothing is filled).
"""

import sys
import time

import torch
from driver import done, say

seconds, limit = float(sys.argv[1]), int(sys.argv[2])
free, total = torch.cuda.mem_get_info()
say(
    free=free,
    total=total,
    properties=torch.cuda.get_device_properties(0).total_memory,
    torch=torch.__version__,
)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).to(
    "cuda"
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(512, 1024, device="cuda")


def step(rows):
    """One step of training; the number of rows changes, so that the allocator has something to do."""
    optimizer.zero_grad()
    loss = (model(data[:rows]) - data[:rows]).square().mean()
    loss.backward()
    optimizer.step()
    return loss


for number in range(10):
    step(64 * (number % 8 + 1))
loss = float(step(512))
steps, begun = 0, time.monotonic()
while time.monotonic() - begun < seconds:
    for number in range(8):
        step(64 * (number + 1))
    torch.cuda.synchronize()
    steps += 8
say(rate=steps / (time.monotonic() - begun), loss=loss, peak=torch.cuda.max_memory_reserved())
if limit:
    blocks, refused = [], False
    while not refused and len(blocks) * (256 << 20) < 2 * limit:
        try:
            blocks.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            refused = True
    held = torch.cuda.memory_reserved()
    blocks.clear()
    torch.cuda.empty_cache()
    again = torch.empty(limit // 2, dtype=torch.uint8, device="cuda").numel() == limit // 2
    say(refused=refused, held=held, again=again)
done()
