# SPDX-License-Identifier: Apache-2.0
"""Variables of a container's environment that a pod with GPUs of ours may not have. Pure.

NVIDIA's container runtime sets limits of the driver on the container's cgroup from them. The request keeps memory from
others that nobody has counted. The limit is nearer to the processes than the one on their pod's cgroup, and where the
driver keeps limits by itself, the nearest alone counts. Admission refuses both by name; what `envFrom` brings, and what
an image has, it cannot see.

A policy of the API server takes seconds for tens of thousands of variables of one container, and for all that there can
be more than a request may take. So their number is bounded, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["MEMORY_VARIABLES", "MOST_VARIABLES", "environment_mistakes"]

MEMORY_VARIABLES = ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT")
MOST_VARIABLES = 2000


def environment_mistakes(environments: Iterable[Sequence[str]], memory_resource: str) -> list[str]:
    """What the author of a pod with GPUs of ours is told, by policy and webhook alike.

    Args:
        environments: The names of the variables of each container.
        memory_resource: By which slices are counted.
    """
    mistakes = []
    longest = 0
    named = False
    for names in environments:
        longest = max(longest, len(names))
        named |= len(names) <= MOST_VARIABLES and not set(names).isdisjoint(MEMORY_VARIABLES)
    if named:
        mistakes.append(
            f"{' and '.join(MEMORY_VARIABLES)} in a container's environment set limits of the driver that nobody "
            f"counts; leave them out, and write the memory as {memory_resource} into the container's limits"
        )
    if longest > MOST_VARIABLES:
        mistakes.append(
            f"a container of a pod that asks for GPUs has at most {MOST_VARIABLES} variables under env, which are "
            "looked through; write the others into a ConfigMap, and its name under envFrom"
        )
    return mistakes
