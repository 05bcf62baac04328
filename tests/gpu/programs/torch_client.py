"""PyTorch under a quota: sees the limit, meets an ordinary OutOfMemoryError at it, and recovers by freeing."""

import json
import math
import sys

import torch

limit = int(sys.argv[1])
free, total = torch.cuda.mem_get_info()
a = torch.randn(1024, 1024, device="cuda")
product = float((a @ a).sum())
blocks, refused = [], False
while not refused and len(blocks) < 100000:
    try:
        blocks.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        refused = True
held = len(blocks) * (256 << 20)
blocks.clear()
torch.cuda.empty_cache()
again = torch.empty(min(held, limit // 2), dtype=torch.uint8, device="cuda").numel()
print(
    json.dumps(
        {
            "total": total,
            "free": free,
            "properties": torch.cuda.get_device_properties(0).total_memory,
            "refused": refused,
            "held": held,
            "again": again,
            "finite": math.isfinite(product),
        }
    )
)
