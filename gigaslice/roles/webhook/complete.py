# SPDX-License-Identifier: Apache-2.0
"""What a request of one line leaves out, as a JSON Patch: the raw unit beside a class, and the scheduler's name. Pure.

Nothing that the pod says is changed: a container with a raw unit of its own keeps it, and a pod that chose a scheduler
keeps that. So a second pass over the answer adds nothing. Mistakes are not this module's subject (`mistakes`); where
there is one, nothing is added for that container.
"""

from __future__ import annotations

from typing import Any

from gigaslice.core.cluster.demand import asks_for_gpus
from gigaslice.roles.webhook.admission_pod import AdmissionPod, ContainerRequest
from gigaslice.roles.webhook.facts import AdmissionFacts

__all__ = ["DEFAULT_SCHEDULER", "completion_patch", "raw_units", "shares_beside_others"]

DEFAULT_SCHEDULER = "default-scheduler"
"""What the API server writes into pods that choose no scheduler."""


def completion_patch(admission: AdmissionPod, facts: AdmissionFacts) -> list[dict[str, Any]]:
    """Returns what to add to a pod's document, as operations of a JSON Patch; empty where nothing is missing."""
    patch: list[dict[str, Any]] = []
    for container in admission.asking:
        for name, count in raw_units(container, facts).items():
            for field in ("limits", "requests") if container.has_requests else ("limits",):
                path = f"{container.path}/resources/{field}/{name.replace('/', '~1')}"
                patch.append({"op": "add", "path": path, "value": str(count)})
    chosen = admission.pod.scheduler or DEFAULT_SCHEDULER
    # No scheduler handles a pod that is bound already; its agent chooses the GPUs, as without a scheduler of ours.
    free = chosen == DEFAULT_SCHEDULER != facts.scheduler and not admission.pod.node
    if free and asks_for_gpus(admission.pod, facts.units):
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": facts.scheduler})
    return patch


def raw_units(container: ContainerRequest, facts: AdmissionFacts) -> dict[str, int]:
    """Returns the raw units that the container's classes stand for; none where it has raw units, or a mistake."""
    if any(map(facts.counts_gpus, container.counts)) or container.only_requested:
        return {}
    if shares_beside_others(container, facts):
        return {}
    units: dict[str, int] = {}
    for name, count in container.classes.items():
        resource_class = facts.classes.get(name)
        if resource_class is None or count is None or count < 1:
            return {}
        share = resource_class.share.memory_bytes if resource_class.share else 0
        unit = facts.units.memory_resource if share else facts.units.gpu_resource
        units[unit] = units.get(unit, 0) + count * (facts.slices(share) if share else 1)
    return units


def shares_beside_others(container: ContainerRequest, facts: AdmissionFacts) -> list[str]:
    """Returns the classes with a share that the container names, where it names other classes beside them.

    The policy that completes pods looks at one class at a time, and cannot add several up. What it leaves to the
    author is left to the author here: the same pod is taken, or refused, whichever of the two is installed.
    """
    names = sorted(container.classes)
    shares = [name for name in names if name in facts.classes and facts.classes[name].share]
    return shares if len(names) > 1 else []
