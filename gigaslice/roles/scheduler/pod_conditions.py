# SPDX-License-Identifier: Apache-2.0
"""Writes a condition into a pod's status: a write that kube-scheduler sees, and that changes nothing else."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from gigaslice.core.model import Pod
from gigaslice.kubeapi.client import KubeClient, object_path

__all__ = ["set_condition"]

_STRATEGIC_PATCH = "application/strategic-merge-patch+json"  # conditions are merged by type
_SECONDS = 5.0


async def set_condition(client: KubeClient, pod: Pod, kind: str, reason: str, message: str) -> dict[str, Any]:
    """Sets a condition to True; returns the pod as it is then. Raises ApiFailure."""
    path = object_path("api", "v1", "namespaces", pod.namespace, "pods", pod.name, "status")
    condition = {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
    answer = await client.request("PATCH", path, body=body, content=_STRATEGIC_PATCH, seconds=_SECONDS)
    return answer.document()
