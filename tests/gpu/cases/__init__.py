# SPDX-License-Identifier: Apache-2.0
"""All cases by their names. A: what the design rests on. B: memory. C: frameworks. D: tenants beside one another.

No case asks for more than the GPU has free, managed memory included, and none touches a setting of the GPU.
"""

from tests.gpu.cases import assumptions, costs, frameworks, memory, namespaces, tenants, walls
from tests.gpu.world import REGISTRY

__all__ = ["ALL", "assumptions", "costs", "frameworks", "memory", "namespaces", "tenants", "walls"]

ALL = REGISTRY
