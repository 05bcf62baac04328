"""An API server stand-in for whole clusters: any resource, lists in pages, watches, bindings, leases, failures.

    async with ObjectServer() as api:
        api.create("nodes", {...}); ...clients with api.access...; api.faults.append(fault); api.writes

One event loop with its clients, real HTTP. What a real one answers is held in tests/fixtures/transcripts and compared
in tests/unit/fakes/test_cluster_server.py.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gigaslice.kubeapi.access import Access

Object = dict[str, Any]
GROUPS = {
    "/api/v1": ("nodes", "pods", "events", "namespaces"),
    "/apis/coordination.k8s.io/v1": ("leases",),
    "/apis/gigaslice.io/v1alpha1": ("resourceclasses", "extendedresources"),
}
CLUSTER_SCOPED = {"nodes", "namespaces", "resourceclasses", "extendedresources"}


@dataclass
class Fault:
    """What goes wrong with requests of METHOD whose path has PART in it, COUNT times.

    status: the answer; 0: the connection is cut. effect: whether the request is carried out before. delay: seconds
    before anything happens; later: seconds between the answer and the effect.
    """

    method: str
    part: str
    status: int = 500
    effect: bool = False
    delay: float = 0.0
    later: float = -1.0
    count: int = 1 << 30
    headers: str = ""


@dataclass
class ObjectServer:
    """The server. `writes`: method, path, body and status of every request that is no GET."""

    crds: bool = True
    lag: float = 0.0
    """Seconds by which watches are behind."""
    uid_precondition: bool = True
    """Whether a Binding's uid is compared, as since 1.20."""
    writes: list[tuple[str, str, Any, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.version = 10
        self.oldest = 0
        self.objects: dict[str, dict[tuple[str, str], Object]] = {}
        self.history: list[tuple[int, str, str, Object]] = []  # version, resource, kind, object
        self.listeners: list[Callable[[str, str, Object], None]] = []
        self._moved = asyncio.Event()
        self._talks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self._pages: dict[str, tuple[int, list[Object]]] = {}

    @property
    def access(self) -> Access:
        return Access("127.0.0.1", self.port, tls=False, token="a token")

    async def __aenter__(self) -> ObjectServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cuts every connection."""
        assert self._server is not None
        self._server.close()
        for one in list(self._talks):
            one.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    # --- what happens in the cluster ----------------------------------------------------------------------------

    def all(self, resource: str) -> list[Object]:
        return list(self.objects.get(resource, {}).values())

    def get(self, resource: str, name: str, namespace: str = "") -> Object:
        return self.objects[resource][namespace, name]

    def create(self, resource: str, document: Object, namespace: str = "") -> Object:
        one = copy.deepcopy(document)
        metadata = one.setdefault("metadata", {})
        if resource not in CLUSTER_SCOPED:
            metadata.setdefault("namespace", namespace or "default")
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", "2026-11-22T00:00:00Z")
        return self._store(resource, "ADDED", one)

    def change(self, resource: str, name: str, patch: Object, namespace: str = "") -> Object:
        """Merges PATCH; nothing happens where nothing changes."""
        before = self.objects[resource][namespace, name]
        after = _merged(before, patch)
        return before if after == before else self._store(resource, "MODIFIED", after)

    def delete(self, resource: str, name: str, namespace: str = "") -> Object:
        one = self.objects[resource].pop((namespace, name))
        self._note(resource, "DELETED", copy.deepcopy(one))
        return one

    def compact(self) -> None:
        """Forgets history: watches from older versions get 410."""
        self.version += 1
        self.oldest = self.version
        self._pages.clear()
        self._moved.set()

    def _store(self, resource: str, kind: str, one: Object) -> Object:
        metadata = one["metadata"]
        self.objects.setdefault(resource, {})[metadata.get("namespace", ""), metadata["name"]] = one
        self._note(resource, kind, one)
        return one

    def _note(self, resource: str, kind: str, one: Object) -> None:
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, resource, kind, one))
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        for listener in self.listeners:
            listener(resource, kind, one)

    # --- HTTP ---------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._talks.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (one.partition(":") for one in rest if one)}
        length = int(headers.get("content-length", 0))
        body = json.loads(await reader.readexactly(length)) if length else None
        url = urlsplit(target)
        query = dict(parse_qsl(url.query))
        self.requests.append((method, target))
        fault = self._fault(method, target)
        if fault is not None:
            await asyncio.sleep(fault.delay)
            if fault.effect:
                self._carry_out(method, url.path, query, body, headers)
            elif fault.later >= 0:
                work = lambda: self._carry_out(method, url.path, query, body, headers)  # noqa: E731
                asyncio.get_running_loop().call_later(fault.later, work)
            if not fault.status:
                return False
            if fault.status != 200:
                reason = {429: "TooManyRequests", 403: "Forbidden", 410: "Expired"}.get(fault.status, "Error")
                document = _status(fault.status, reason, "by the test's fault")
                if method != "GET" and not fault.effect:
                    self.writes.append((method, url.path, body, fault.status))
                await _send(writer, fault.status, document, fault.headers)
                return True
        if method == "GET" and query.get("watch"):
            return await self._watch(writer, url.path, query)
        status, document = self._carry_out(method, url.path, query, body, headers)
        await _send(writer, status, document)
        return True

    def _fault(self, method: str, target: str) -> Fault | None:
        for one in self.faults:
            if one.method == method and one.part in target and one.count > 0:
                one.count -= 1
                return one
        return None

    def _carry_out(
        self, method: str, path: str, query: dict[str, str], body: Any, headers: dict[str, str]
    ) -> tuple[int, Object]:
        status, document = self._dispatch(method, path, query, body, headers.get("content-type", ""))
        if method != "GET":
            self.writes.append((method, path, body, status))
        return status, document

    def _dispatch(
        self, method: str, path: str, query: dict[str, str], body: Any, content: str
    ) -> tuple[int, Object]:
        prefix = next((one for one in GROUPS if path.startswith(f"{one}/")), "")
        parts = path[len(prefix) + 1 :].split("/") if prefix else []
        namespace = ""
        if len(parts) > 2 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        if not parts or parts[0] not in GROUPS[prefix] or ("gigaslice" in prefix and not self.crds):
            return 404, _status(404, "NotFound", "the server could not find the requested resource")
        resource, name, sub = parts[0], *([*parts[1:3], "", ""])[:2]
        if method == "GET" and not name:
            return self._list(resource, namespace, query)
        if method == "POST" and not name:
            return self._create(resource, namespace, body)
        one = self.objects.get(resource, {}).get((namespace, name))
        if sub == "binding" and method == "POST":
            return self._bind(one, name, body)
        if one is None:
            if method == "PATCH" and "apply" in content:
                return 201, self.create(resource, body, namespace)
            return 404, _status(404, "NotFound", f'{resource} "{name}" not found')
        if method == "GET":
            return 200, one
        return self._write(method, resource, one, body)

    def _create(self, resource: str, namespace: str, body: Object) -> tuple[int, Object]:
        name = body["metadata"]["name"]
        if (namespace, name) in self.objects.get(resource, {}):
            return 409, _status(409, "AlreadyExists", f'{resource} "{name}" already exists')
        return 201, self.create(resource, body, namespace)

    def _write(self, method: str, resource: str, one: Object, body: Object) -> tuple[int, Object]:
        namespace, name = one["metadata"].get("namespace", ""), one["metadata"]["name"]
        asked = ((body or {}).get("metadata") or {}).get("resourceVersion")
        current = one["metadata"]["resourceVersion"]
        if method == "PUT" and not asked:
            return 422, _status(422, "Invalid", "metadata.resourceVersion: must be specified for an update")
        uid = ((body or {}).get("metadata") or {}).get("uid") or (
            (body or {}).get("preconditions") or {}
        ).get("uid")
        if (asked and asked != current) or (uid and uid != one["metadata"]["uid"]):
            return 409, _status(409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}"')
        if method == "DELETE" and one["metadata"].get("finalizers"):
            patch = {"metadata": {"deletionTimestamp": "2026-11-22T00:00:00Z"}}
            return 200, self.change(resource, name, patch, namespace)
        if method == "DELETE":
            return 200, self.delete(resource, name, namespace)
        if method == "PUT":
            kept = {"uid": one["metadata"]["uid"], "creationTimestamp": one["metadata"]["creationTimestamp"]}
            after = copy.deepcopy(body)
            after["metadata"] = {**after["metadata"], **kept}
            if namespace:
                after["metadata"]["namespace"] = namespace
            return 200, self._store(resource, "MODIFIED", after)
        return 200, self.change(resource, name, body, namespace)

    def _bind(self, pod: Object | None, name: str, body: Object) -> tuple[int, Object]:
        """One transaction: the node and the annotations come together, or not at all."""
        if pod is None:
            return 404, _status(404, "NotFound", f'pods "{name}" not found')
        metadata = body["metadata"]
        if self.uid_precondition and metadata.get("uid") not in (None, pod["metadata"]["uid"]):
            return 409, _status(
                409, "Conflict", f'Operation cannot be fulfilled on pods "{name}": Precondition failed'
            )
        problem = ""
        if pod["metadata"].get("deletionTimestamp"):
            problem = f"pod {name} is being deleted, cannot be assigned to a host"
        elif pod["spec"].get("nodeName"):
            problem = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
        elif pod["spec"].get("schedulingGates"):
            problem = f"pod {name} has non-empty .spec.schedulingGates"
        if problem:
            text = f'Operation cannot be fulfilled on pods/binding "{name}": {problem}'
            return 409, _status(409, "Conflict", text)
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-22T00:00:00Z"}
        patch = {
            "metadata": {"annotations": metadata.get("annotations") or {}},
            "spec": {"nodeName": body["target"]["name"]},
            "status": {"conditions": [scheduled]},
        }
        self.change("pods", name, patch, pod["metadata"]["namespace"])
        return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _list(self, resource: str, namespace: str, query: dict[str, str]) -> tuple[int, Object]:
        token = query.get("continue")
        if token:
            if token not in self._pages:
                return 410, _status(410, "Expired", "The provided continue parameter is too old")
            version, items = self._pages.pop(token)
        else:
            version = self.version
            items = [one for one in self.all(resource) if _matches(one, namespace, query)]
        limit = int(query.get("limit") or 0)
        metadata: Object = {"resourceVersion": str(version)}
        if limit and len(items) > limit:
            metadata["continue"] = str(uuid.uuid4())
            self._pages[metadata["continue"]] = version, items[limit:]
            items = items[:limit]
        return 200, {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}

    async def _watch(self, writer: asyncio.StreamWriter, path: str, query: dict[str, str]) -> bool:
        prefix = next((one for one in GROUPS if path.startswith(f"{one}/")), "")
        resource = path.rsplit("/", maxsplit=1)[-1]
        if not prefix or ("gigaslice" in prefix and not self.crds):
            await _send(
                writer, 404, _status(404, "NotFound", "the server could not find the requested resource")
            )
            return True
        namespace = path.split("/namespaces/")[1].split("/", maxsplit=1)[0] if "/namespaces/" in path else ""
        at = int(query["resourceVersion"])
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        position = 0
        known: set[tuple[str, str]] = set()
        while True:
            moved = self._moved
            if at < self.oldest:
                await _chunk(
                    writer, {"type": "ERROR", "object": _status(410, "Expired", "too old resource version")}
                )
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            while position < len(self.history):
                version, what, kind, one = self.history[position]
                position += 1
                if version <= at or what != resource:
                    continue
                at = version
                key = (one["metadata"].get("namespace", ""), one["metadata"]["name"])
                matches = _matches(one, namespace, query)
                if kind != "DELETED" and not matches:
                    if key in known or kind == "MODIFIED":
                        known.discard(key)
                        await _chunk(writer, {"type": "DELETED", "object": one})
                    continue
                (known.discard if kind == "DELETED" else known.add)(key)
                if matches:
                    await _chunk(writer, {"type": kind, "object": one})
            await moved.wait()
            if self.lag:
                await asyncio.sleep(self.lag)


def _status(code: int, reason: str, message: str) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


async def _send(writer: asyncio.StreamWriter, status: int, document: Object, headers: str = "") -> None:
    content = json.dumps(document).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()


async def _chunk(writer: asyncio.StreamWriter, document: Object) -> None:
    content = json.dumps(document).encode() + b"\n"
    writer.write(b"%x\r\n%s\r\n" % (len(content), content))
    await writer.drain()


def _matches(one: Object, namespace: str, query: dict[str, str]) -> bool:
    if namespace and one["metadata"].get("namespace") != namespace:
        return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        key, wanted = term.replace("!=", "=").split("=")
        found: Any = one
        for part in key.split("."):
            found = found.get(part, {}) if isinstance(found, dict) else {}
        if (found == wanted) == ("!=" in term):
            return False
    return True


def _merged(before: Any, patch: Any) -> Any:
    """A merge patch; conditions are merged by type, as a strategic merge does."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    found = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif key == "conditions":
            kept = {one["type"]: one for one in found.get(key, [])}
            kept.update({one["type"]: one for one in value})
            found[key] = list(kept.values())
        else:
            found[key] = _merged(found.get(key), value)
    return found
