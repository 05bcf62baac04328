# SPDX-License-Identifier: Apache-2.0
"""What becomes of variables in a container's environment that other projects' libraries read. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gigaslice.core.kube.pod_fields import count_of
from gigaslice.core.rewrite.edits import Edit, Remove
from gigaslice.core.rewrite.gpu_request import ContainerPlan, RewriteSettings, set_priority
from gigaslice.core.rewrite.names import (
    CORE_POLICY,
    DISABLE,
    MEMORY_LIMIT,
    MPS_MEMORY,
    MPS_PERCENTAGE,
    OVERSUBSCRIBE,
    TASK_PRIORITY,
    VARIABLES,
)

__all__ = ["plan_variables", "set_policy"]

_NUMBERED = re.compile(MEMORY_LIMIT + r"_[0-9]+")
_LIMITS = (MEMORY_LIMIT, "CUDA_DEVICE_SM_LIMIT", MPS_MEMORY, MPS_PERCENTAGE)
_TRUE = ("true", "1")


def plan_variables(
    plan: ContainerPlan, container: Mapping[str, Any], settings: RewriteSettings
) -> list[Edit]:
    """Adds to a plan what its container's variables say, and returns which of them go."""
    variables = container.get("env")
    edits: list[Edit] = []
    for position, variable in enumerate(variables if isinstance(variables, list) else ()):
        name = variable.get("name") if isinstance(variable, dict) else None
        known = MEMORY_LIMIT if isinstance(name, str) and _NUMBERED.fullmatch(name) else name
        if not isinstance(name, str) or known not in VARIABLES:
            continue
        where = ("env", position)
        edits.append(Remove((*plan.path, *where)))
        if "valueFrom" in variable:
            plan.leave(f"{name} is not written here, so what it says is unknown; take it out", *where)
        else:
            _Variable(plan, name, str(variable.get("value", "")).strip(), where).apply(str(known), settings)
    return edits


def set_policy(plan: ContainerPlan, policy: str) -> None:
    """Has a plan's limit of compute be "hard", "elastic" or, with "none", not be."""
    if policy == "none":
        plan.options.pop("cores", None)
        plan.options.pop("cores-policy", None)
    elif "cores" in plan.options:
        plan.options["cores-policy"] = policy


class _Variable:
    """One variable of a container."""

    def __init__(self, plan: ContainerPlan, name: str, text: str, where: tuple[str | int, ...]) -> None:
        self._plan, self._name, self._text, self._where = plan, name, text, where

    def apply(self, known: str, settings: RewriteSettings) -> None:
        """Adds to the plan what the variable says. KNOWN: its name in the table."""
        plan, text = self._plan, self._text
        sliced = plan.resource == settings.units.memory_resource
        if known in _LIMITS and not plan.resource:
            plan.leave(
                f"{self._name} limits it, and it asks for no GPU; have it ask for memory", *self._where
            )
        elif known == DISABLE:
            if text.lower() in _TRUE:
                plan.leave(
                    f"{self._name}: no container of a shared GPU is without its limit here", *self._where
                )
        elif not sliced:
            return  # nothing is limited there, and nothing is asked for by the others alone
        elif known == CORE_POLICY:
            policies = {"force": "hard", "disable": "none"}
            set_policy(plan, policies.get(text.lower(), "elastic"))
        elif known == TASK_PRIORITY:
            if "priority" not in plan.options:
                set_priority(plan, self._name, count_of(text), *self._where)
        elif known == OVERSUBSCRIBE:
            if text.lower() in _TRUE:
                plan.options["oversubscribe"] = "true"
                plan.say(
                    f"{self._name}: host memory is had where the node lends some (--host-memory)",
                    *self._where,
                )
        elif known == MPS_PERCENTAGE:
            self._percentage()
        elif known in _LIMITS:
            plan.say(
                f"{self._name}={text} goes; the container's limit is {plan.count} of {plan.resource} for all of its "
                "processes together",
                *self._where,
            )

    def _percentage(self) -> None:
        share = count_of(self._text)
        if share is None or not 0 < share <= 100:
            self._plan.leave(f"{self._name} must be a whole number from 1 to 100", *self._where)
            return
        self._plan.options["cores"] = str(share)
        self._plan.say(
            f"{self._name}: {share} per cent of the threads are so much of the time here", *self._where
        )
