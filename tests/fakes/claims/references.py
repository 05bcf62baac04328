# SPDX-License-Identifier: Apache-2.0
"""Which claims a pod has, and which pods have a claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.fakes.kubeapi.refused import Refused
from tests.fakes.kubeapi.store import ObjectStore

Document = dict[str, Any]
FINALIZER = "resource.kubernetes.io/delete-protection"
MOST_CONSUMERS = 256
_ENDED = ("Succeeded", "Failed")


def claim_names(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the pod calls each claim, and the claim's own name, which is "" until it has been made of its template."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    made = {one["name"]: one.get("resourceClaimName") or "" for one in statuses}
    for one in pod["spec"].get("resourceClaims") or []:
        yield one["name"], one.get("resourceClaimName") or made.get(one["name"], "")


def find(store: ObjectStore, resource: str, name: str, namespace: str = "") -> Document | None:
    """An object; None where there is none."""
    try:
        return store.get(resource, name, namespace)
    except Refused:
        return None


def ended(pod: Mapping[str, Any]) -> bool:
    """Whether nothing of the pod runs or will."""
    return (pod.get("status") or {}).get("phase") in _ENDED


def consumers(claim: Mapping[str, Any]) -> list[Document]:
    """The pods that a claim is reserved for."""
    found: list[Document] = (claim.get("status") or {}).get("reservedFor") or []
    return found


def reservation(pod: Mapping[str, Any]) -> Document:
    """The entry of a pod in them."""
    metadata = pod["metadata"]
    return {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
