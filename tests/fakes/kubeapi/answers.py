# SPDX-License-Identifier: Apache-2.0
"""What the API server stand-in answers to a request, without HTTP: status and document."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.fakes.kubeapi.refused import Refused
from tests.fakes.kubeapi.resources import Target, target_of
from tests.fakes.kubeapi.store import Document, ObjectStore, Snapshot, merged

_PATCHES = {
    "application/merge-patch+json": False,
    "application/strategic-merge-patch+json": True,
    "application/apply-patch+yaml": True,
}


class Request(NamedTuple):
    """A request. target: its path with its query; headers: by name in small letters."""

    method: str
    target: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


class Answers:
    """The answers from the objects of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.crds = True
        """Whether the project's definitions are installed."""
        self.refused_rights: set[tuple[str, str]] = set()
        """Verb and resource ("pods/eviction") that access reviews answer with no."""
        self.node_policy = True
        """Whether a policy keeps who patches a Node to annotations and labels of ours."""
        self.pod_policy = False
        """Whether a policy keeps who patches a pod to the one annotation by which node agents wake pods."""
        self.behind: Snapshot | None = None
        """What lists of any version are shown, as by another server that is behind."""

    def target(self, path: str) -> Target:
        """What a path names.

        Raises:
            Refused: No installed resource has such paths.
        """
        found = target_of(path)
        if found is None or (found.resource.custom and not self.crds):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        return found

    def answer(self, request: Request) -> tuple[int, Document]:
        """Carries out a request that is no watch."""
        try:
            with self.store.lock:
                return self._carry_out(request, self.target(request.path))
        except Refused as refused:
            return refused.status, status_of(refused)

    def _carry_out(self, request: Request, target: Target) -> tuple[int, Document]:
        plural, method = target.resource.plural, request.method
        if plural == "selfsubjectaccessreviews":
            return 201, self._review(request.body)
        if not target.name:
            if method == "GET":
                return 200, self.store.page(target.resource, target.namespace, request.query, self.behind)
            if method == "POST":
                return 201, self._create(target, request.body, dry_run=bool(request.query.get("dryRun")))
        elif method == "GET":
            return 200, self.store.get(plural, target.name, target.namespace)
        elif target.below == "binding" and method == "POST":
            self.store.bind(target.name, target.namespace, request.body)
            return 201, _done(201)
        elif target.below == "eviction" and method == "POST":
            self.store.get(plural, target.name, target.namespace)
            return 201, _done(201)  # what the kubelet does of it is left to the test
        elif method in ("PUT", "PATCH", "DELETE"):
            return self._write(request, target)
        raise Refused(
            405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
        )

    def _review(self, body: Document) -> Document:
        asked = body["spec"]["resourceAttributes"]
        name = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        return {**body, "status": {"allowed": (asked["verb"], name) not in self.refused_rights}}

    def _create(self, target: Target, body: Document, *, dry_run: bool = False) -> Document:
        made = copy.deepcopy(body)
        if target.resource.status and (target.resource.custom or target.resource.plural == "resourceclaims"):
            made.pop("status", None)
        return self.store.create(target.resource.plural, made, target.namespace, dry_run=dry_run)

    def _write(self, request: Request, target: Target) -> tuple[int, Document]:
        plural, body = target.resource.plural, request.body or {}
        content = request.headers.get("content-type", "")
        if request.method == "PATCH" and content not in _PATCHES:
            raise Refused(
                415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content}"
            )
        if request.method == "PATCH" and target.resource.custom and "strategic" in content:
            raise Refused(415, "UnsupportedMediaType", "strategic merge patches are not for custom resources")
        if "apply" in content and (target.namespace, target.name) not in self.store.objects[plural]:
            return 201, self._create(target, body)
        known = self.store.get(plural, target.name, target.namespace)
        _compare(request.method, target, known, body)
        if request.method == "DELETE":
            grace = body.get(
                "gracePeriodSeconds", known.get("spec", {}).get("terminationGracePeriodSeconds", 0)
            )
            return 200, self.store.delete(plural, target.name, target.namespace, grace)
        after = (
            copy.deepcopy(body)
            if request.method == "PUT"
            else merged(known, body, strategic=_PATCHES[content])
        )
        if plural == "nodes" and self.node_policy:
            _check_node(known, after)
        if plural == "pods" and self.pod_policy and not target.below:
            _check_pod(known, after)
        if request.query.get("dryRun"):
            return 200, self.store.device_rules.admitted(plural, after, known)
        if target.resource.status and target.below == "status":
            after = {**known, "status": after.get("status", {})}
        elif target.resource.status:
            after.pop("status", None)
            after |= {"status": known["status"]} if "status" in known else {}
        return 200, self.store.replace(plural, known, after)


def _check_node(known: Document, after: Document) -> None:
    """Refuses what deploy/node-policy.yaml refuses of annotations and labels."""
    for field in ("annotations", "labels"):
        old, new = known["metadata"].get(field) or {}, after["metadata"].get(field) or {}
        changed = {key for key in {*old, *new} if old.get(key) != new.get(key)}
        if any(not key.startswith("gigaslice.io/") for key in changed):
            message = "a node agent of gigaslice changes annotations and labels under gigaslice.io/ only"
            raise Refused(403, "Forbidden", message)


def _check_pod(known: Document, after: Document) -> None:
    """Refuses what deploy/claims.yaml refuses of pods."""
    old, new = (copy.deepcopy(pod) for pod in (known, after))
    for pod in (old, new):
        (pod["metadata"].get("annotations") or {}).pop("gigaslice.io/wake", None)
        pod["metadata"]["annotations"] = pod["metadata"].get("annotations") or {}
    if old != new:
        raise Refused(403, "Forbidden", "a node agent of gigaslice changes gigaslice.io/wake of pods only")


def _compare(method: str, target: Target, known: Document, body: Document) -> None:
    """Refuses a write that was made for another object or for an earlier version of it."""
    read = body.get("preconditions" if method == "DELETE" else "metadata") or {}
    title = target.resource.title
    if method == "PUT" and target.resource.versioned and not read.get("resourceVersion"):
        message = (
            f"{title} {target.name!r} is invalid: metadata.resourceVersion: must be specified for an update"
        )
        raise Refused(422, "Invalid", message)
    for field in ("uid", "resourceVersion"):
        if read.get(field) and read[field] != known["metadata"][field]:
            message = (
                f'Operation cannot be fulfilled on {title} "{target.name}": the object has been modified'
            )
            raise Refused(409, "Conflict", message)


def status_of(refused: Refused) -> Document:
    """The document of a refusal."""
    document: Document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**document, "message": str(refused), "reason": refused.reason, "code": refused.status}


def _done(code: int) -> Document:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}
