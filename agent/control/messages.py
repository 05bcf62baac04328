# SPDX-License-Identifier: Apache-2.0
"""What is said on the agent's control.sock, as values: the answer to a change of limits. Requests are LimitChange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gigaslice.core.kube.fields import objects_at, text_at

__all__ = ["GpuLimits", "ResizeAnswer"]


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """One GPU of the container, before and after. used: bytes in use now; beyond memory_after allocations fail."""

    gpu: str
    memory_before: int
    memory_after: int
    cores_before: int
    cores_after: int
    used: int


@dataclass(frozen=True, slots=True)
class ResizeAnswer:
    """What has changed. container: "namespace/pod/container"."""

    container: str
    limits: tuple[GpuLimits, ...]

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> ResizeAnswer:
        """The answer that DOCUMENT is; a number that it lacks is 0. Fields of newer agents are left out."""
        names = [field.name for field in fields(GpuLimits) if field.name != "gpu"]
        limits = []
        for limit in objects_at(document, "limits"):
            numbers = {name: limit[name] for name in names if isinstance(limit.get(name), int)}
            limits.append(GpuLimits(text_at(limit, "gpu"), **{**dict.fromkeys(names, 0), **numbers}))
        return cls(text_at(document, "container"), tuple(limits))
