# SPDX-License-Identifier: Apache-2.0
"""The claim controller and what collects claims: claims are made of templates, and end with their pods.

It acts as that of 1.36: a pod that has ended, or is no more, loses its reservations; with the last one a claim loses
its allocation; a claim of a template is deleted with its pod, or when that has ended.
"""

from __future__ import annotations

import random
from typing import Any

from tests.fakes.claims.references import (
    FINALIZER,
    MOST_CONSUMERS,
    claim_names,
    consumers,
    ended,
    find,
    reservation,
)
from tests.fakes.kubeapi.server import ApiServer

Document = dict[str, Any]
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # those of generated names
_OF_POD = "resource.kubernetes.io/pod-claim-name"


class ClaimController:
    """Looks after the claims of an API server."""

    def __init__(self, api: ApiServer, seed: int = 0) -> None:
        self.store = api.store
        self._random = random.Random(seed)

    def run_once(self) -> None:
        """Does what is to be done now."""
        with self.store.lock:
            pods = {one["metadata"]["uid"]: one for one in self.store.all("pods")}
            for pod in pods.values():
                if not ended(pod) and not pod["metadata"].get("deletionTimestamp"):
                    self._make(pod)
                    self._reserve(pod)
            for claim in self.store.all("resourceclaims"):
                self._release(claim, pods)

    def _make(self, pod: Document) -> None:
        """Makes the claims that the pod has by templates."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        made = {key for key, claim in claim_names(pod) if claim}
        for one in pod["spec"].get("resourceClaims") or []:
            template = one.get("resourceClaimTemplateName")
            if one["name"] in made or not template:
                continue
            found = find(self.store, "resourceclaimtemplates", template, namespace)
            if found is None:
                continue  # it is tried again when there is one
            letters = "".join(self._random.choice(_LETTERS) for _ in range(5))
            owner = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": name,
                "uid": pod["metadata"]["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
            metadata = dict(found["spec"].get("metadata") or {})
            metadata["annotations"] = {**(metadata.get("annotations") or {}), _OF_POD: one["name"]}
            metadata |= {
                "name": f"{name}-{one['name']}-{letters}",
                "generateName": f"{name}-{one['name']}-",
                "namespace": namespace,
                "ownerReferences": [owner],
            }
            document = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": metadata,
                "spec": found["spec"]["spec"],
            }
            self.store.create("resourceclaims", document)
            statuses = [{"name": one["name"], "resourceClaimName": metadata["name"]}]
            self.store.change("pods", name, {"status": {"resourceClaimStatuses": statuses}}, namespace)

    def _reserve(self, pod: Document) -> None:
        """Reserves allocated claims for a pod that no scheduler has seen."""
        if not pod["spec"].get("nodeName"):
            return
        for _, name in claim_names(pod):
            claim = find(self.store, "resourceclaims", name, pod["metadata"]["namespace"]) if name else None
            if claim is None or not (claim.get("status") or {}).get("allocation"):
                continue
            if claim["metadata"].get("deletionTimestamp") or len(consumers(claim)) >= MOST_CONSUMERS:
                continue
            if all(one["uid"] != pod["metadata"]["uid"] for one in consumers(claim)):
                self._change(claim, {"status": {"reservedFor": [*consumers(claim), reservation(pod)]}})

    def _release(self, claim: Document, pods: dict[str, Document]) -> None:
        kept = [one for one in consumers(claim) if one["uid"] in pods and not ended(pods[one["uid"]])]
        lost = len(kept) < len(consumers(claim))
        deleting = claim["metadata"].get("deletionTimestamp")
        owners = [
            one["uid"] for one in claim["metadata"].get("ownerReferences") or [] if one["kind"] == "Pod"
        ]
        if kept and lost:
            # Taken out one by one: lists of consumers are merged.
            gone = {one["uid"] for one in consumers(claim)} - {one["uid"] for one in kept}
            self._change(
                claim, {"status": {"reservedFor": [{"$patch": "delete", "uid": uid} for uid in gone]}}
            )
        elif not kept and (lost or deleting):
            # The last consumer, and with it what is allocated.
            self._change(claim, {"status": {"allocation": None, "reservedFor": None}})
            finalizers = {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}
            self._change(claim, {"metadata": finalizers})
        if owners and not deleting and all(uid not in pods or ended(pods[uid]) for uid in owners):
            metadata = claim["metadata"]
            self.store.delete("resourceclaims", metadata["name"], metadata["namespace"])

    def _change(self, claim: Document, patch: Document) -> None:
        metadata = claim["metadata"]
        if find(self.store, "resourceclaims", metadata["name"], metadata["namespace"]) is not None:
            self.store.change("resourceclaims", metadata["name"], patch, metadata["namespace"])
