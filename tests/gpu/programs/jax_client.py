"""JAX under a quota: preallocates its fraction of what it sees, and computes."""

import json

import jax
import jax.numpy as jnp

x = jnp.ones((2048, 2048))
stats = jax.devices()[0].memory_stats() or {}
print(json.dumps({"sum": float((x @ x).sum()), "bytes_limit": stats.get("bytes_limit", 0)}))
