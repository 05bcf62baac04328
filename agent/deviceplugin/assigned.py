# SPDX-License-Identifier: Apache-2.0
"""What the assignment of a pod says of one container, and whether this node can execute it. Pure.

The scheduler chose the GPUs, and other pods are placed on what it left. So an assignment is executed as it stands or
not at all: every way in which it cannot be is an error with the sentence for the pod's event. That a GPU is unhealthy
or still occupied is none of them, since that passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.allocation.assignments import decoded, shares_in
from agent.allocation.request import NotExecutableError
from agent.deviceplugin.requester import Requester
from gigaslice.core.cluster.assignment import AssignmentError
from gigaslice.core.cluster.names import ASSIGNMENT, CLASS_PREFIX, SCHEDULER_NAME
from gigaslice.core.deviceplugin.device_id import device_order
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse
from gigaslice.core.model import CORES_PER_GPU, Gpu, Pod, Share
from gigaslice.core.text import plural

__all__ = ["Assigned", "assigned_to", "named_for", "with_assignment"]

_AGAIN = "delete the pod, so that it is scheduled again"


@dataclass(frozen=True, slots=True)
class Assigned:
    """What one container was assigned. shares: of its slices, in the order of the GPUs. whole: its whole GPUs."""

    shares: tuple[Share, ...]
    whole: tuple[str, ...] = ()


def assigned_to(
    requester: Requester,
    gpus: Sequence[Gpu],
    *,
    slices: int,
    whole: int,
    most: Mapping[str, int] | None = None,
) -> Assigned | None:
    """Returns what a container was assigned.

    Args:
        requester: The container.
        gpus: The GPUs of this node.
        slices: How many slices it asks for in all.
        whole: How many whole GPUs it asks for besides.
        most: Slices that it may have of each GPU; None where that is all of them.

    Returns:
        None where nothing was assigned, and nothing has to be.

    Raises:
        NotExecutableError: The assignment cannot be executed, or is missing.
    """
    shares = _shares(requester)
    if shares is None:
        return None
    name, order = requester.container.name, {gpu.uuid: number for number, gpu in enumerate(gpus)}
    if unknown := [share.gpu for share in shares if share.gpu not in order]:
        raise NotExecutableError(
            f"the assignment of container {name} names {', '.join(unknown)}, which this node does not have; {_AGAIN}"
        )
    entire = _entire(shares, gpus, whole)
    rest = sorted((share for share in shares if share not in entire), key=lambda share: order[share.gpu])
    given = sum(share.slices for share in rest)
    if len(entire) != whole or given != slices:
        raise NotExecutableError(
            f"the assignment gives container {name} {_count(given, len(entire))}, and it asks for "
            f"{_count(slices, whole)}; {_AGAIN}; where that repeats, scheduler and agent count slices of different "
            "sizes (--slice)"
        )
    for share in rest:
        size = (most or {}).get(share.gpu, gpus[order[share.gpu]].slices)
        if share.slices > size:
            raise NotExecutableError(
                f"the assignment gives container {name} {plural(share.slices, 'slice')} of {share.gpu}, which has "
                f"{size}; {_AGAIN}"
            )
    return Assigned(tuple(rest), tuple(sorted((share.gpu for share in entire), key=order.__getitem__)))


def named_for(
    shares: Sequence[Share], available: Iterable[str], must_include: Sequence[str], size: int
) -> tuple[str, ...]:
    """Returns so many of the available device IDs, those named after the GPUs of an assignment first."""
    taken = list(dict.fromkeys(must_include))
    fixed = set(taken)
    rest: dict[str, list[str]] = {}
    for device_id in sorted(set(available) - fixed, key=device_order):
        rest.setdefault(device_order(device_id)[0], []).append(device_id)
    for share in shares:
        had = sum(device_order(device_id)[0] == share.gpu for device_id in fixed)
        own = rest.pop(share.gpu, [])
        count = max(0, share.slices - had)
        taken += own[:count]
        if own[count:]:
            rest[share.gpu] = own[count:]
    return tuple([*taken, *(device_id for device_ids in rest.values() for device_id in device_ids)][:size])


def _shares(requester: Requester) -> tuple[Share, ...] | None:
    """Returns what the annotation says of the container; None where there is none and none is needed."""
    text = requester.pod.annotations.get(ASSIGNMENT)
    name = requester.container.name
    if text is None:
        classes = [key for key in requester.container.requests if key.startswith(CLASS_PREFIX)]
        if not classes:
            return None
        raise NotExecutableError(
            f"no scheduler of gigaslice chose the GPUs of this pod: container {name} asks for {classes[0]}, and the "
            f"pod has no annotation {ASSIGNMENT}; make it with schedulerName: {SCHEDULER_NAME}"
        )
    try:
        assignment = decoded(text)
    except AssignmentError as error:
        raise NotExecutableError(f"annotation {ASSIGNMENT}: {error}; {_AGAIN}") from error
    if name not in assignment.containers:
        named = ", ".join(sorted(assignment.containers)) or "no container"
        raise NotExecutableError(
            f"the assignment of this pod is for {named}, and container {name} asks for GPUs too; {_AGAIN}"
        )
    return assignment.containers[name]


def with_assignment(response: KeptAllocateResponse, pods: Iterable[Pod]) -> KeptAllocateResponse:
    """Returns a kept response with what its pod was assigned, if that is known."""
    for pod in pods:
        text = pod.annotations.get(ASSIGNMENT)
        if pod.uid == response.pod and text is not None:
            return replace(response, assigned=shares_in(text, response.container))
    return response


def _entire(shares: Sequence[Share], gpus: Sequence[Gpu], whole: int) -> tuple[Share, ...]:
    """Returns those of the shares that are the whole GPUs of a container that asks for so many."""
    size = {gpu.uuid: gpu.slices for gpu in gpus}
    full = [share for share in shares if share.slices == size[share.gpu]]
    return tuple(sorted(full, key=lambda share: share.cores != CORES_PER_GPU)[:whole])


def _count(slices: int, whole: int) -> str:
    parts = [plural(slices, "slice")] if slices or not whole else []
    return " and ".join([*parts, *([plural(whole, "whole GPU")] if whole else [])])
