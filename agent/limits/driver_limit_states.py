# SPDX-License-Identifier: Apache-2.0
"""What the driver's answers mean: whether a pod's limits stand, have failed, or have grown. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gigaslice.core.limits.driver_limit_messages import PodLimitState
from gigaslice.core.units import format_bytes

__all__ = ["has_failed", "has_grown", "problem_of"]


def problem_of(limits: Mapping[str, int], state: PodLimitState | None) -> str:
    """Returns why a pod's limits do not stand; empty where they do, or are only as high as what is in use."""
    if state is None or not state.present:
        return "the cgroup of its pod is not found below /sys/fs/cgroup"
    if state.problem:
        return state.problem
    for gpu, wanted in limits.items():
        gpu_state = state.gpus.get(gpu)
        if gpu_state is None:
            return f"the driver does not show {gpu}"
        if gpu_state.problem:
            return f"{gpu}: {gpu_state.problem}"
        if gpu_state.hard is None or gpu_state.hard > max(wanted, gpu_state.used or 0):
            kept = "no limit" if gpu_state.hard is None else format_bytes(gpu_state.hard)
            return f"{gpu}: the driver keeps {kept} instead of {format_bytes(wanted)}"
    return ""


def has_failed(state: PodLimitState) -> bool:
    """Returns whether a limit could not be set."""
    return bool(state.problem) or any(gpu_state.problem for gpu_state in state.gpus.values())


def has_grown(before: PodLimitState | None, state: PodLimitState) -> bool:
    """Returns whether a limit is larger than it was, or new."""
    for gpu, gpu_state in state.gpus.items():
        earlier = before.gpus.get(gpu) if before is not None else None
        if gpu_state.hard is not None and (earlier is None or gpu_state.hard > (earlier.hard or 0)):
            return True
    return False
