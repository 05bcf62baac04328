# SPDX-License-Identifier: Apache-2.0
"""JAX: preallocates its fraction of what it sees, and computes; how fast."""

import sys
import time

import jax
import jax.numpy as jnp
from driver import done, say

seconds = float(sys.argv[1])
x = jnp.ones((2048, 2048))
product = jax.jit(lambda a: a @ a)
total = float(product(x).sum())
stats = jax.devices()[0].memory_stats() or {}
say(
    sum=total,
    bytes_limit=stats.get("bytes_limit", 0),
    platform=jax.devices()[0].platform,
    jax=jax.__version__,
)
count, begun = 0, time.monotonic()
while time.monotonic() - begun < seconds:
    for _ in range(20):
        y = product(x)
    y.block_until_ready()
    count += 20
peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
say(rate=count / (time.monotonic() - begun), peak=peak)
done()
