# SPDX-License-Identifier: Apache-2.0
"""The objects of the API server stand-in: versions, conflicts, bindings, pages, and what watches are sent.

The one place for what a server does with objects; answers.py puts status codes to it, server.py HTTP. It is held
against recorded conversations of a real server in tests/unit/fakes/test_api_server.py. What it has not: validation,
admission, managed fields, ownership (nothing is collected), server-side apply by field.

Everything may be called from any thread. Documents that are handed out are those of the store: read them, and change
them by `change`.
"""

from __future__ import annotations

import copy
import threading
import uuid
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.fakes.kubeapi.device_rules import DeviceRules
from tests.fakes.kubeapi.refused import Refused
from tests.fakes.kubeapi.resources import RESOURCES, Resource

Document = dict[str, Any]
_MADE = "2026-11-22T00:00:00Z"
_TOO_OLD = "The provided continue parameter is too old to display a consistent list result."


class Change(NamedTuple):
    """A line of the history: OLD is what the object was before, for watches with a selector."""

    version: int
    resource: str
    kind: str
    document: Document
    old: Document | None


Snapshot = tuple[int, dict[str, dict[tuple[str, str], Document]]]


class ObjectStore:
    """The objects by the plural of their resource, then namespace and name."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 10
        self.oldest = 0
        """Watches and pages from before this version have expired."""
        self.objects: dict[str, dict[tuple[str, str], Document]] = {plural: {} for plural in RESOURCES}
        self.history: list[Change] = []
        self.listeners: list[Callable[[str, str, Document], None]] = []
        """Called with resource, kind and document of each change, at once."""
        self.changed: Callable[[], None] = lambda: None
        """Called when there is something for watches."""
        self.preconditions = True
        """Whether a Binding's UID and version are compared, which 1.20 does not do."""
        self.page_size = 0
        """Objects of a page at most, even of lists of any version, as without a watch cache; 0: what is asked for."""
        self.device_rules = DeviceRules()
        """What is refused or lost of objects of resource.k8s.io."""
        self._pages: dict[str, tuple[int, list[Document]]] = {}

    # --- objects ------------------------------------------------------------------------------------------------

    def all(self, resource: str) -> list[Document]:
        """The objects of RESOURCE, in the order in which they were made."""
        with self.lock:
            return list(self.objects[resource].values())

    def get(self, resource: str, name: str, namespace: str = "") -> Document:
        """One object.

        Raises:
            Refused: There is none.
        """
        with self.lock:
            found = self.objects[resource].get((namespace, name))
        if found is None:
            raise Refused(404, "NotFound", f'{RESOURCES[resource].title} "{name}" not found')
        return found

    def create(
        self, resource: str, document: Document, namespace: str = "", *, dry_run: bool = False
    ) -> Document:
        """Makes an object. DRY_RUN: only what would be made of it is told.

        Raises:
            Refused: There is one of that name, or the object is invalid.
        """
        made = copy.deepcopy(document)
        metadata = made.setdefault("metadata", {})
        if RESOURCES[resource].namespaced:
            metadata["namespace"] = metadata.get("namespace") or namespace or "default"
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", _MADE)
        if RESOURCES[resource].custom:
            metadata.setdefault("generation", 1)
        with self.lock:
            if (metadata.get("namespace", ""), metadata["name"]) in self.objects[resource]:
                title = RESOURCES[resource].title
                raise Refused(409, "AlreadyExists", f'{title} "{metadata["name"]}" already exists')
            made = self.device_rules.admitted(resource, made, None)
            return made if dry_run else self._keep(resource, made, None)

    def put(self, resource: str, document: Document) -> Document:
        """Makes an object, or makes it what DOCUMENT is; one of another UID is another object."""
        metadata = document["metadata"]
        with self.lock:
            namespace = (metadata.get("namespace") or "default") if RESOURCES[resource].namespaced else ""
            known = self.objects[resource].get((namespace, metadata["name"]))
            if known is not None and metadata.get("uid") not in (None, known["metadata"]["uid"]):
                self._drop(resource, known)
                known = None
            return (
                self.create(resource, document) if known is None else self.replace(resource, known, document)
            )

    def replace(self, resource: str, known: Document, document: Document) -> Document:
        """Makes KNOWN what DOCUMENT is. Who it is and when it was made stay."""
        after = copy.deepcopy(document)
        kept = ("uid", "creationTimestamp", "namespace", "generation", "resourceVersion")
        after["metadata"] |= {key: known["metadata"][key] for key in kept if key in known["metadata"]}
        return self._update(resource, known, after)

    def change(
        self,
        resource: str,
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        *,
        strategic: bool = True,
    ) -> Document:
        """Merges PATCH. STRATEGIC: conditions are merged by type, and not replaced.

        Raises:
            Refused: There is no such object.
        """
        with self.lock:
            known = self.get(resource, name, namespace)
            return self._update(resource, known, merged(known, patch, strategic=strategic))

    def delete(self, resource: str, name: str, namespace: str = "", grace: float = 0) -> Document:
        """Deletes an object; one with finalizers, or a bound pod with a GRACE period in seconds, is only marked.

        Raises:
            Refused: There is none.
        """
        with self.lock:
            known = self.get(resource, name, namespace)
            bound = resource == "pods" and known.get("spec", {}).get("nodeName")
            if known["metadata"].get("finalizers") or (bound and grace):
                return self.change(resource, name, {"metadata": {"deletionTimestamp": _MADE}}, namespace)
            return self._drop(resource, known)

    def bind(self, name: str, namespace: str, binding: Document) -> None:
        """Binds a pod: node, annotations and labels come in one write, or not at all.

        Raises:
            Refused: There is no such pod, it is another one, or it is not to be bound.
        """
        with self.lock:
            pod, metadata = self.get("pods", name, namespace), binding["metadata"]
            problem = ""
            for field in ("uid", "resourceVersion"):
                if self.preconditions and metadata.get(field) not in (None, pod["metadata"][field]):
                    message = f'Operation cannot be fulfilled on pods "{name}": Precondition failed: {field}'
                    raise Refused(409, "Conflict", message)
            if pod["metadata"].get("deletionTimestamp"):
                problem = f"pod {name} is being deleted, cannot be assigned to a host"
            elif pod["spec"].get("nodeName"):
                problem = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
            elif pod["spec"].get("schedulingGates"):
                problem = f"pod {name} has non-empty .spec.schedulingGates"
            if problem:
                raise Refused(
                    409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{name}": {problem}'
                )
            more = {key: metadata[key] for key in ("annotations", "labels") if metadata.get(key)}
            scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _MADE}
            patch = {
                "metadata": more,
                "spec": {"nodeName": binding["target"]["name"]},
                "status": {"conditions": [scheduled]},
            }
            self.change("pods", name, patch, namespace)

    # --- lists --------------------------------------------------------------------------------------------------

    def page(
        self, resource: Resource, namespace: str, query: Mapping[str, str], behind: Snapshot | None = None
    ) -> Document:
        """A list or a page of it: all pages show one version.

        Args:
            resource: What is listed.
            namespace: In which one; "" for all.
            query: That of the request.
            behind: An earlier state, shown to lists that take any state (version 0).

        Raises:
            Refused: The page has expired, or is none of this server's, or the selector names no field for that.
        """
        check_fields(resource, query)
        with self.lock:
            at_any = query.get("resourceVersion") == "0"
            version, objects = behind if behind is not None and at_any else (self.version, self.objects)
            asked = 0 if at_any else int(query.get("limit") or 0)  # from the watch cache all come at once
            limit = self.page_size or asked
            if token := query.get("continue"):
                if token not in self._pages:
                    expired = token.startswith("page-")
                    raise (
                        Refused(410, "Expired", _TOO_OLD)
                        if expired
                        else Refused(400, "BadRequest", "invalid continue token: continue key is not valid")
                    )
                version, items = self._pages[token]
            else:
                found = objects[resource.plural].values()
                items = [one for one in found if matches(one, namespace, query)]
            metadata: Document = {"resourceVersion": str(version)}
            if limit and len(items) > limit:
                metadata["continue"] = f"page-{uuid.uuid4()}"
                self._pages[metadata["continue"]] = version, items[limit:]
                if not query.get("labelSelector") and not query.get("fieldSelector"):
                    metadata["remainingItemCount"] = len(items) - limit
                items = items[:limit]
            group = resource.prefix.removeprefix("/apis/").removeprefix("/api/")
            return {"kind": f"{resource.kind}List", "apiVersion": group, "metadata": metadata, "items": items}

    def snapshot(self) -> Snapshot:
        """What there is now."""
        with self.lock:
            return self.version, {resource: dict(objects) for resource, objects in self.objects.items()}

    # --- history ------------------------------------------------------------------------------------------------

    def compact(self) -> None:
        """Forgets what was before: its versions and pages have expired."""
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self._pages.clear()
            self.changed()

    def tell(self, resource: str, kind: str, document: Document) -> None:
        """Sends every watch of RESOURCE an event that comes from no change."""
        with self.lock:
            self._note(resource, kind, copy.deepcopy(document), None)

    def bookmark(self, resource: str = "pods") -> None:
        """Sends every watch of RESOURCE the newest version without a change."""
        self.tell(resource, "BOOKMARK", {"kind": RESOURCES[resource].kind, "metadata": {}})

    def since(
        self, version: int, resource: str, namespace: str, query: Mapping[str, str]
    ) -> tuple[int, list[Document]]:
        """The events of a watch after VERSION, and the version to go on from.

        Raises:
            Refused: VERSION has expired.
        """
        with self.lock:
            if version < self.oldest:
                message = f"too old resource version: {version} ({self.oldest})"
                raise Refused(410, "Expired", message)
            events = []
            for change in self.history[bisect_right(self.history, version, key=lambda one: one.version) :]:
                version = change.version
                if change.resource == resource and (event := _event(change, namespace, query)):
                    events.append(event)
            return version, events

    # --- within -------------------------------------------------------------------------------------------------

    def _update(self, resource: str, known: Document, after: Document) -> Document:
        """Writes AFTER in place of KNOWN; nothing happens where nothing changes."""
        after = self.device_rules.admitted(resource, after, known)
        if after == known:
            return known
        metadata = after["metadata"]
        if RESOURCES[resource].custom and after.get("spec") != known.get("spec"):
            after["metadata"] = metadata = {**metadata, "generation": known["metadata"]["generation"] + 1}
        found = self._keep(resource, after, known)
        if (
            metadata.get("deletionTimestamp")
            and known["metadata"].get("finalizers")
            and not metadata.get("finalizers")
        ):
            return self._drop(resource, found)
        return found

    def _keep(self, resource: str, document: Document, old: Document | None) -> Document:
        metadata = document["metadata"]
        self.objects[resource][metadata.get("namespace", ""), metadata["name"]] = document
        return self._note(resource, "MODIFIED" if old else "ADDED", document, old)

    def _drop(self, resource: str, known: Document) -> Document:
        metadata = known["metadata"]
        del self.objects[resource][metadata.get("namespace", ""), metadata["name"]]
        return self._note(resource, "DELETED", known, known)

    def _note(self, resource: str, kind: str, document: Document, old: Document | None) -> Document:
        self.version += 1
        noted = {**document, "metadata": {**document["metadata"], "resourceVersion": str(self.version)}}
        if kind != "DELETED":
            document["metadata"] = noted["metadata"]
            noted = document
        self.history.append(Change(self.version, resource, kind, noted, old))
        self.changed()
        for listener in self.listeners:
            listener(resource, kind, noted)
        return noted


def check_fields(resource: Resource, query: Mapping[str, str]) -> None:
    """Refuses a field selector with a field that objects of RESOURCE are not selected by."""
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path = term.replace("!=", "=").partition("=")[0]
        if resource.fields and path not in resource.fields:
            raise Refused(400, "BadRequest", f"field label not supported: {path}")


def matches(document: Document, namespace: str, query: Mapping[str, str]) -> bool:
    """Whether an object is in a namespace ("": any) and fits the selectors of a query."""
    if namespace and document["metadata"].get("namespace") != namespace:
        return False
    labels = document["metadata"].get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = term.partition("=")
        if labels.get(key) != value:
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = term.replace("!=", "=").partition("=")
        found: Any = document
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if ((found or "") == value) == ("!=" in term):
            return False
    return True


def _event(change: Change, namespace: str, query: Mapping[str, str]) -> Document | None:
    """What a watch with selectors is sent of a change: what begins to match is added, what ends to is deleted."""
    if change.kind == "BOOKMARK":
        return {"type": "BOOKMARK", "object": change.document}
    now = change.kind != "DELETED" and matches(change.document, namespace, query)
    if change.kind == "DELETED" or change.old is None:
        fits = matches(change.document, namespace, query)
        return {"type": change.kind, "object": change.document} if fits else None
    before = matches(change.old, namespace, query)
    if now:
        return {"type": "MODIFIED" if before else "ADDED", "object": change.document}
    if not before:
        return None
    metadata = {**change.old["metadata"], "resourceVersion": str(change.version)}
    return {"type": "DELETED", "object": {**change.old, "metadata": metadata}}


_MERGE_KEYS = {
    "conditions": "type",
    "ownerReferences": "uid",
    "reservedFor": "uid",
    "resourceClaims": "name",
    "resourceClaimStatuses": "name",
}
"""Lists of objects that a strategic merge patch merges, and the field that names an element."""


def merged(before: Any, patch: Any, *, strategic: bool = False) -> Any:
    """BEFORE with a merge patch (RFC 7386); STRATEGIC: lists whose elements have names, and finalizers, are merged."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    found = dict(before) if isinstance(before, Mapping) else {}
    for key, value in patch.items():
        if strategic and key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            found[name] = [one for one in found.get(name) or [] if one not in value]
        elif value is None:
            found.pop(key, None)
        elif strategic and key in _MERGE_KEYS:
            found[key] = _merged_list(found.get(key) or [], value, _MERGE_KEYS[key])
        elif strategic and key == "finalizers":
            found[key] = list(dict.fromkeys([*(found.get(key) or []), *value]))
        else:
            found[key] = merged(found.get(key), value, strategic=strategic)
    return found


def _merged_list(before: list[Document], patch: list[Document], key: str) -> list[Document]:
    """BEFORE with the elements of PATCH in place of those of the same name, and the others behind."""
    kept = {one[key]: one for one in before}
    for one in patch:
        if one.get("$patch") == "delete":
            kept.pop(one[key], None)
        else:
            kept[one[key]] = merged(kept.get(one[key]), one, strategic=True)
    return list(kept.values())
