# SPDX-License-Identifier: Apache-2.0
"""The scheduler for pods with claims: it allocates what is missing, reserves the claims and binds the pod.

As of the stock one, the node is the first on which everything fits, and a pod for which there is none is told no more
than "cannot allocate all claims". An allocation that somebody else wrote is taken as it is; without a time stamp the
binding fails for ever, since the scheduler would add one to what cannot be changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from tests.fakes.claims.pools import Usage, devices_of
from tests.fakes.claims.references import (
    FINALIZER,
    MOST_CONSUMERS,
    claim_names,
    consumers,
    ended,
    find,
    reservation,
)
from tests.fakes.claims.search import Search, Selector, Selectors, Unknown
from tests.fakes.kubeapi.refused import Refused
from tests.fakes.kubeapi.server import ApiServer

Document = dict[str, Any]


class _Unschedulable(Exception):  # noqa: N818
    """Why a pod is not bound."""


class _Later(Exception):  # noqa: N818
    """Something of the pod has not been made yet; nothing is said of that."""


class Allocator:
    """Schedules the pods of an API server that have claims.

    classes: what the selectors of a class stand for, by its name. expressions: the same of CEL expressions in requests,
    by their text with single spaces.
    """

    def __init__(
        self,
        api: ApiServer,
        classes: Mapping[str, Selector] | None = None,
        expressions: Mapping[str, Selector] | None = None,
    ) -> None:
        self.store = api.store
        self.classes = dict(classes or {})
        self.expressions = dict(expressions or {})

    def run_once(self) -> None:
        """Tries every pod that waits, in the order in which they were made."""
        with self.store.lock:
            for pod in self.store.all("pods"):
                spec = pod["spec"]
                waits = not spec.get("nodeName") and not spec.get("schedulingGates") and not ended(pod)
                if waits and spec.get("resourceClaims") and not pod["metadata"].get("deletionTimestamp"):
                    self._try(pod)

    def allocate(self, claim: Document, node: str, usage: Usage | None = None) -> Document | None:
        """The allocation of a claim on NODE, which is not written; None where it does not fit.

        USAGE has what is taken, that of all claims where it is left out, and gets what this one takes.
        """
        usage = Usage.of(self.store.all("resourceclaims")) if usage is None else usage
        devices = devices_of(node, self.store.all("resourceslices"))
        classes = {one["metadata"]["name"]: one for one in self.store.all("deviceclasses")}
        selectors = Selectors(self.classes, self.expressions, frozenset(classes))
        results = Search(claim, devices, usage, selectors).run()
        if results is None:
            return None
        found: Document = {"results": results}
        if configs := _configs(claim["spec"]["devices"], results, classes):
            found["config"] = configs
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        return {
            "devices": found,
            "nodeSelector": {"nodeSelectorTerms": terms},
            "allocationTimestamp": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    # --- a pod -----------------------------------------------------------------------------------------------

    def _try(self, pod: Document) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        try:
            claims = self._claims(pod)
            node, allocations = self._place(claims)
            self._reserve(pod, claims, allocations)
            binding = {"metadata": {"uid": pod["metadata"]["uid"]}, "target": {"name": node}}
            self.store.bind(name, namespace, binding)
        except _Later:
            return
        except (_Unschedulable, Unknown, Refused) as error:
            reason = "SchedulerError" if isinstance(error, Refused) else "Unschedulable"
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": reason,
                "message": str(error),
            }
            self.store.change("pods", name, {"status": {"conditions": [condition]}}, namespace)

    def _claims(self, pod: Document) -> list[Document]:
        claims = []
        for _, name in claim_names(pod):
            if not name:
                raise _Later
            claim = find(self.store, "resourceclaims", name, pod["metadata"]["namespace"])
            if claim is None:
                raise _Unschedulable(f'resourceclaim.resource.k8s.io "{name}" not found')
            if claim["metadata"].get("deletionTimestamp"):
                raise _Unschedulable(f'resourceclaim "{name}" is being deleted')
            if len(consumers(claim)) >= MOST_CONSUMERS:
                raise _Unschedulable(f'resourceclaim "{name}" in use')
            claims.append(claim)
        return claims

    def _place(self, claims: Sequence[Document]) -> tuple[str, list[Document | None]]:
        """A node and what is allocated there: None for claims that are allocated already."""
        nodes = sorted(one["metadata"]["name"] for one in self.store.all("nodes"))
        for node in nodes:
            usage = Usage.of(self.store.all("resourceclaims"))
            allocations: list[Document | None] = []
            for claim in claims:
                if allocation := (claim.get("status") or {}).get("allocation"):
                    if not _reachable(allocation, node):
                        break
                    allocations.append(None)
                elif (made := self.allocate(claim, node, usage)) is not None:
                    allocations.append(made)
                else:
                    break
            else:
                return node, allocations
        count = len(nodes)
        raise _Unschedulable(
            f"0/{count} nodes are available: {count} cannot allocate all claims. still not schedulable, "
            f"preemption: 0/{count} nodes are available: {count} Preemption is not helpful for scheduling."
        )

    def _reserve(
        self, pod: Document, claims: Sequence[Document], allocations: Sequence[Document | None]
    ) -> None:
        for claim, made in zip(claims, allocations, strict=True):
            name, namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]
            status: Document = {"reservedFor": [reservation(pod)]}
            if made is not None:
                self.store.change(
                    "resourceclaims", name, {"metadata": {"finalizers": [FINALIZER]}}, namespace
                )
                status["allocation"] = made
            elif not claim["status"]["allocation"].get("allocationTimestamp"):
                status["allocation"] = {
                    "allocationTimestamp": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
                }
            self.store.change("resourceclaims", name, {"status": status}, namespace)


def _reachable(allocation: Document, node: str) -> bool:
    selector = allocation.get("nodeSelector")
    return selector is None or any(
        all(node in field["values"] for field in term.get("matchFields") or [])
        for term in selector["nodeSelectorTerms"]
    )


def _configs(spec: Document, results: Sequence[Document], classes: Mapping[str, Document]) -> list[Document]:
    """What drivers are told: first of the classes, in the order of the requests, then of the claim."""
    names = list(dict.fromkeys(result["request"] for result in results))
    asked = {}
    for request in spec["requests"]:
        asked[request["name"]] = request.get("exactly")
        asked |= {f"{request['name']}/{one['name']}": one for one in request.get("firstAvailable") or []}
    found = [
        {"source": "FromClass", "requests": [name], **config}
        for name in names
        for config in (classes[asked[name]["deviceClassName"]].get("spec") or {}).get("config") or []
    ]
    chosen = {*names, *(name.partition("/")[0] for name in names)}
    for config in spec.get("config") or []:
        if not config.get("requests") or chosen & set(config["requests"]):
            found.append({"source": "FromClaim", **config})
    return found
