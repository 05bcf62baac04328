# SPDX-License-Identifier: Apache-2.0
"""Where a container can be beside the others of its pod (`same-gpu`, `exclusive`), and when it never can. Pure.

A pod that only its own end could make room for gets a refusal at once: it would wait for itself.
"""

from __future__ import annotations

from dataclasses import replace

from gigaslice.core.model import CORES_PER_GPU, Gpu, Infeasible, NodeState, Reason, Request
from gigaslice.core.placement import Policy, place_waiting
from gigaslice.core.placement.sizing import problem, size

__all__ = ["apart_from_own", "beside_own", "on_same_gpus"]

_NAME = "gigaslice.io/same-gpu"


def on_same_gpus(node: NodeState, request: Request, most: int, policy: Policy) -> Request | Infeasible:
    """The REQUEST of a pod's first container on GPUs that have room for all of them: MOST slices at a time."""
    gpus = len(request.parts) or request.gpus
    placement = place_waiting(node, replace(request, gpus=gpus, parts=(), total=most), policy)
    if isinstance(placement, Infeasible):
        why = f"{_NAME}: the containers of the pod ask for {most} slices in all; {placement.detail}"
        return Infeasible(placement.reason, f"{why}, or leave same-gpu out")
    return replace(request, only=frozenset(placement.placement.uuids))


def beside_own(
    alone: NodeState, request: Request, own: frozenset[str], slices: int, policy: Policy
) -> Request | Infeasible:
    """The REQUEST for SLICES on the GPUs OWN that the pod has. ALONE: the node with nothing but the pod's containers
    that stay.
    """
    gpus, only = ", ".join(sorted(own)), own & request.only if request.only else own
    if not only:
        why = f"{_NAME}: the pod's other containers are on {gpus}, which its other annotations refuse"
        return Infeasible(Reason.NO_MATCHING_GPU, f"{why}; make them agree")
    for uuid in own.intersection(gpu.uuid for gpu in alone.gpus):
        alone = alone.with_health(uuid, True)
    there = replace(request, only=only)
    placement = place_waiting(alone, replace(there, exclusive=False), policy)
    if isinstance(placement, Infeasible) or placement.missing:
        why = f"{_NAME}: the pod's other containers are on {gpus}, where {slices} slices more never fit beside them"
        detail = f" ({placement.detail})" if isinstance(placement, Infeasible) else ""
        return Infeasible(Reason.EXCEEDS_GPU, f"{why}{detail}; ask for less, or leave same-gpu out")
    return there


def apart_from_own(alone: NodeState, request: Request) -> Request | Infeasible:
    """The REQUEST of an exclusive container without the GPUs on which it never fits beside its pod's other containers.
    ALONE: as for `beside_own`.
    """
    usage, tight, rest = alone.usage(), list[str](), list[str]()
    for at, gpu in enumerate(alone.gpus):
        if request.only and gpu.uuid not in request.only:
            continue
        full = usage.slices[at] + _least(request, gpu) > gpu.slices
        busy = usage.cores[at] + request.cores > CORES_PER_GPU
        if usage.holders[at] and (full or busy):
            tight.append(
                f"{gpu.uuid} gives {usage.slices[at]} of {gpu.slices} slices and {usage.cores[at]}% of its compute to "
                "other containers of the pod"
            )
        else:
            rest.append(gpu.uuid)
    if tight and not rest:
        why = f"gigaslice.io/exclusive: {', '.join(tight)}, and what is left is too little"
        return Infeasible(Reason.EXCEEDS_GPU, f"{why}; ask for less, or allow other GPUs")
    return replace(request, only=frozenset(rest)) if tight else request


def _least(request: Request, gpu: Gpu) -> int:
    """The slices that a request takes at least of a GPU where it takes any."""
    if request.parts:
        return min(request.parts)
    if problem(request) or not gpu.slices:
        return 0
    need = size(request, gpu.slices)
    return need.tail or need.slices
