"""A stand-in of the API server for objects of any kind: lists, watches, writes with preconditions, and its bad days.

    with ObjectApi("gigaslice.io/v1alpha1/resourceclasses") as api:
        api.put("v1/nodes", {...})
        ...a client with api.kubeconfig(directory)...
        api.fail = lambda method, path: 500 if method == "POST" else 0

A resource is named by group, version and plural: "v1/pods", "coordination.k8s.io/v1/leases". What is not installed is
answered with 404, as by a server without the definition. Writes follow the real server where the controller depends on
it: an update is refused with 409 when uid or resourceVersion are not those of the object, status and the rest are
written apart, and merge patches are those of RFC 7386.
"""

from __future__ import annotations

import copy
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

__all__ = ["ObjectApi"]

Document = dict[str, Any]
_BUILT_IN = ("v1/nodes", "v1/pods", "v1/events", "v1/resourcequotas", "coordination.k8s.io/v1/leases")


class _RefusedError(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class ObjectApi:
    """The server. Everything public may be used from any thread while it runs."""

    def __init__(self, *installed: str) -> None:
        self.lock = threading.Condition()
        self.installed = {*_BUILT_IN, *installed}
        self.version = 10
        self.oldest = 0
        self.objects: dict[tuple[str, str, str], Document] = {}
        self.history: list[tuple[int, str, str, Document]] = []
        self.requests: list[tuple[str, str]] = []
        self.fail: Callable[[str, str], int] = lambda method, path: 0
        """The status with which a request is refused before anything is done; 0: it is not."""
        self.delay = 0.0
        self.generation = 0
        self.closed = False
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> ObjectApi:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.lock:
            self.closed = True
            self.lock.notify_all()
        self.server.shutdown()
        self.server.server_close()

    def kubeconfig(self, directory: Path) -> Path:
        """A file by which a client finds the server."""
        path = directory / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self.server.server_address[1]}"}
        document = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    # --- what happens in the cluster ----------------------------------------------------------------------------

    def put(self, resource: str, document: Document) -> Document:
        """Makes an object, or replaces it, as another client would."""
        with self.lock:
            metadata = document["metadata"]
            key = (resource, metadata.get("namespace", ""), metadata["name"])
            known = self.objects.get(key)
            metadata = {**metadata, "uid": known["metadata"]["uid"] if known else str(uuid.uuid4())}
            return self._record(key, {**copy.deepcopy(document), "metadata": metadata}, known)

    def remove(self, resource: str, name: str, namespace: str = "") -> None:
        """Deletes an object."""
        with self.lock:
            self._delete((resource, namespace, name))

    def of(self, resource: str) -> dict[str, Document]:
        """The objects of a resource by name."""
        with self.lock:
            return {key[2]: copy.deepcopy(one) for key, one in self.objects.items() if key[0] == resource}

    def forget(self) -> None:
        """Compacts: watches from before get 410."""
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self.generation += 1
            self.lock.notify_all()

    def writes(self, part: str = "") -> list[tuple[str, str]]:
        """The requests that write, of those with PART in their path; leases and events left out."""
        with self.lock:
            return [
                (method, path)
                for method, path in self.requests
                if method != "GET" and part in path and "/leases" not in path and "/events" not in path
            ]

    # --- the store ----------------------------------------------------------------------------------------------

    def _record(self, key: tuple[str, str, str], document: Document, known: Document | None) -> Document:
        self.version += 1
        metadata = {"creationTimestamp": "2026-11-22T18:00:00Z", **document["metadata"]}
        generation = known["metadata"]["generation"] if known else 0
        changed = known is None or known.get("spec") != document.get("spec")
        metadata |= {"resourceVersion": str(self.version), "generation": generation + changed}
        found = {**document, "metadata": metadata}
        self.objects[key] = found
        self.history.append((self.version, "MODIFIED" if known else "ADDED", key[0], copy.deepcopy(found)))
        self.lock.notify_all()
        return found

    def _delete(self, key: tuple[str, str, str]) -> None:
        known = self.objects.pop(key)
        self.version += 1
        gone = copy.deepcopy(known)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, "DELETED", key[0], gone))
        self.lock.notify_all()

    def change(self, method: str, path: str, body: Document) -> tuple[int, Document]:
        """Does a write."""
        resource, namespace, name, below = _target(path)
        with self.lock:
            if resource not in self.installed:
                raise _RefusedError(404, "NotFound", "the server could not find the requested resource")
            if method == "POST":
                return self._create(resource, namespace, body)
            known = self.objects.get((resource, namespace, name))
            if known is None:
                raise _RefusedError(404, "NotFound", f'{resource} "{name}" not found')
            read = body.get("preconditions") if method == "DELETE" else body.get("metadata")
            for field in ("uid", "resourceVersion"):
                if (read or {}).get(field, known["metadata"][field]) != known["metadata"][field]:
                    raise _RefusedError(409, "Conflict", "the object has been modified")
            if method == "DELETE":
                self._delete((resource, namespace, name))
                return 200, {"kind": "Status", "status": "Success"}
            changed = copy.deepcopy(body) if method == "PUT" else merged(known, body)
            if method == "PUT":
                changed["metadata"] = {**known["metadata"], **changed["metadata"]}
            if below == "status":
                changed = {**known, "status": changed.get("status")}
            elif resource.startswith("gigaslice.io/"):
                changed = {**changed, **({"status": known["status"]} if "status" in known else {})}
            return 200, self._record((resource, namespace, name), changed, known)

    def _create(self, resource: str, namespace: str, body: Document) -> tuple[int, Document]:
        key = (resource, namespace, body["metadata"]["name"])
        if key in self.objects:
            raise _RefusedError(409, "AlreadyExists", f'{resource} "{key[2]}" already exists')
        found = copy.deepcopy(body)
        if resource.startswith("gigaslice.io/"):
            found.pop("status", None)
        found["metadata"] |= {"uid": str(uuid.uuid4())} | ({"namespace": namespace} if namespace else {})
        return 201, self._record(key, found, None)

    def listed(self, resource: str, query: Mapping[str, str]) -> Document:
        """A list."""
        with self.lock:
            if resource not in self.installed:
                raise _RefusedError(404, "NotFound", "the server could not find the requested resource")
            items = [one for key, one in self.objects.items() if key[0] == resource and _selected(one, query)]
            return {"metadata": {"resourceVersion": str(self.version)}, "items": copy.deepcopy(items)}

    def news(self, at: int, resource: str, generation: int, deadline: float) -> list[Document] | None:
        """What a watch is told next; None when it is to be cut."""
        with self.lock:
            while not self.closed and time.monotonic() < deadline:
                if self.generation != generation:
                    return None
                found = [(v, kind, one) for v, kind, of, one in self.history if v > at and of == resource]
                if found:
                    return [{"type": kind, "object": one} for _, kind, one in found]
                self.lock.wait(0.05)
            return None if self.closed else []

    # --- HTTP ---------------------------------------------------------------------------------------------------

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *arguments: object) -> None:
                pass

            def _serve(self) -> None:
                url = urlsplit(self.path)
                query = {key: values[-1] for key, values in parse_qs(url.query).items()}
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                try:
                    with api.lock:
                        api.requests.append((self.command, url.path))
                        generation, delay = api.generation, api.delay
                        status = api.fail(self.command, url.path)
                    time.sleep(delay)
                    if status:
                        raise _RefusedError(status, "Denied", "denied by the test")
                    if self.command != "GET":
                        self._answer(*api.change(self.command, url.path, body))
                        return
                    resource, namespace, name, _ = _target(url.path)
                    if name:
                        with api.lock:
                            found = api.objects.get((resource, namespace, name))
                        if found is None:
                            raise _RefusedError(404, "NotFound", f'{resource} "{name}" not found')
                        self._answer(200, found)
                    elif query.get("watch"):
                        self._watch(resource, query, generation)
                    else:
                        self._answer(200, api.listed(resource, query))
                except _RefusedError as refused:
                    message = {"kind": "Status", "code": refused.status, "reason": refused.reason}
                    self._answer(refused.status, {**message, "message": str(refused)})
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

            def _answer(self, status: int, document: object) -> None:
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if status == 429:
                    self.send_header("Retry-After", "1")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _watch(self, resource: str, query: Mapping[str, str], generation: int) -> None:
                at = int(query["resourceVersion"])
                if at < api.oldest:
                    raise _RefusedError(410, "Expired", "too old resource version")
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                deadline = time.monotonic() + float(query.get("timeoutSeconds", 3600))
                while time.monotonic() < deadline:
                    news = api.news(at, resource, generation, deadline)
                    if news is None:
                        self.close_connection = True
                        return
                    for event in news:
                        at = int(event["object"]["metadata"]["resourceVersion"])
                        if _selected(event["object"], query):
                            line = json.dumps(event).encode() + b"\n"
                            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.write(b"0\r\n\r\n")

        return Handler


def merged(target: Document, patch: Document) -> Document:
    """RFC 7386."""
    found = dict(target)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            there = found.get(key)
            found[key] = merged(there if isinstance(there, dict) else {}, value)
        else:
            found[key] = value
    return found


def _target(path: str) -> tuple[str, str, str, str]:
    """Resource, namespace, name and what is below of a path."""
    parts = path.strip("/").split("/")
    head, rest = (parts[1:2], parts[2:]) if parts[0] == "api" else (parts[1:3], parts[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return "/".join([*head, rest[0]]), namespace, *[*rest[1:3], "", ""][:2]  # type: ignore[return-value]


def _selected(document: Document, query: Mapping[str, str]) -> bool:
    labels = document["metadata"].get("labels") or {}
    pairs = (one.split("=", 1) for one in query.get("labelSelector", "").split(",") if one)
    return all(labels.get(key) == value for key, value in pairs)
