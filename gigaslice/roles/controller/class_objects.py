# SPDX-License-Identifier: Apache-2.0
"""Automatic ResourceClasses and the status of all of them. Pure.

A class per type of GPU that the cluster has is made without a user writing it. It carries a label by which the
controller recognises it as its own: a class without it is another author's, and is neither changed nor deleted, also
where it has the name of an automatic one. Who removes the label takes the class over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigaslice.core.cluster.names import CLASS_PREFIX, GROUP, VERSION
from gigaslice.core.kube.fields import objects_at
from gigaslice.roles.controller.object_plan import (
    DesiredObject,
    ObjectWrite,
    StoredObject,
    plan_object,
    plan_status,
)

__all__ = ["API_VERSION", "KIND", "ClassFigures", "plan_class", "plan_class_status", "quota_classes"]

API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ResourceClass"
_MOST_NODE_NAMES = 16
_QUOTA_PREFIXES = ("requests." + CLASS_PREFIX, "limits." + CLASS_PREFIX, CLASS_PREFIX)


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """How a class stands. mistake: why it is invalid, empty for a valid one."""

    devices: int = 0
    free: int = 0
    nodes: tuple[str, ...] = ()
    mistake: str = ""


def plan_class(
    name: str, spec: Mapping[str, Any] | None, present: StoredObject | None
) -> tuple[ObjectWrite, ...]:
    """Returns the writes for one automatic class.

    Args:
        name: The class's name.
        spec: What it should be; None where the cluster has no GPU of its type, and it may go.
        present: The class of that name, of any author.
    """
    desired = None if spec is None else DesiredObject(spec=spec)
    return plan_object(API_VERSION, KIND, name, desired, present)


def plan_class_status(present: StoredObject, figures: ClassFigures, now: str) -> tuple[ObjectWrite, ...]:
    """Returns the write, if any, that makes the status of a class say FIGURES; NOW is the time for what changed."""
    conditions = [_condition(present, *condition, now=now) for condition in _conditions(figures)]
    status = {
        "devices": figures.devices,
        "free": figures.free,
        "nodes": len(figures.nodes),
        "nodeNames": sorted(figures.nodes)[:_MOST_NODE_NAMES],
        "observedGeneration": present.generation,
        "conditions": conditions,
    }
    return plan_status(present.name, status, present)


def quota_classes(quotas: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Returns the classes that ResourceQuota objects name, also in the forms that no API server enforces."""
    classes = set()
    for quota in quotas:
        spec = quota.get("spec")
        hard = spec.get("hard") if isinstance(spec, dict) else None
        for key in hard if isinstance(hard, dict) else ():
            for prefix in _QUOTA_PREFIXES:
                if isinstance(key, str) and key.startswith(prefix):
                    classes.add(key[len(prefix) :])
    return frozenset(classes)


def _conditions(figures: ClassFigures) -> tuple[tuple[str, bool, str, str], ...]:
    """Type, whether it holds, reason and message of each condition."""
    if figures.mistake:
        return (("Valid", False, "Invalid", figures.mistake),)
    matching = (
        ("Matching", True, "GpusMatch", "GPUs of the cluster match")
        if figures.devices
        else ("Matching", False, "NoGpuMatches", "no GPU of the cluster matches the selector")
    )
    return (("Valid", True, "Accepted", "the class can be used"), matching)


def _condition(
    present: StoredObject, kind: str, holds: bool, reason: str, message: str, *, now: str
) -> dict[str, Any]:
    """A condition as metav1.Condition has it: its time is that of the last change from true to false or back."""
    status = "True" if holds else "False"
    conditions = objects_at(present.status, "conditions")
    before: Mapping[str, Any] = next(
        (condition for condition in conditions if condition.get("type") == kind), {}
    )
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:32768],
        "observedGeneration": present.generation,
        "lastTransitionTime": since or now,
    }
