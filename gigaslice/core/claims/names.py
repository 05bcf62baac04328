# SPDX-License-Identifier: Apache-2.0
"""Names of devices and of their driver, as the API server and the kubelet have them. Pure.

A device is named after the UUID of its GPU. So its name stays when GPUs are counted anew, and the order in which
devices are published can follow placement.
"""

from __future__ import annotations

import re

__all__ = ["CORES", "DRIVER", "FOLLOWS_POD", "MEMORY", "device_name", "is_subdomain"]

DRIVER = "gigaslice.io"
MEMORY, CORES = "memory", "cores"
"""What a device has: bytes of memory, and per cent of compute."""
FOLLOWS_POD = "gigaslice.io/follows-pod"
"""Annotation of a claim, "true" where its options are the annotations of its pod."""

_NO_LABEL = re.compile(r"[^a-z0-9]+")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_LABEL, _LONGEST_SUBDOMAIN = 63, 253


def device_name(gpu: str) -> str:
    """Returns the name of the device that is the GPU of that UUID: "gpu-6e1b5c1e-…"."""
    text = _NO_LABEL.sub("-", gpu.lower()).strip("-")
    name = text if text.startswith("gpu-") else f"gpu-{text}"
    return name[:_LONGEST_LABEL].rstrip("-")


def is_subdomain(name: str) -> bool:
    """Whether it is a name such as nodes and drivers have."""
    return len(name) <= _LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(name) is not None
