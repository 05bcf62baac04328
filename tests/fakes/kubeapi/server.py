"""The stand-in itself: state under one lock, a thread per connection."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

NODE = "node-a"
TOKEN = "a token"


def pod_document(
    name: str,
    *requests: Mapping[str, int],
    namespace: str = "default",
    init: tuple[Mapping[str, int], ...] = (),
    sidecars: tuple[Mapping[str, int], ...] = (),
    annotations: Mapping[str, str] | None = None,
    node: str = NODE,
    uid: str | None = None,
    controlled: bool = False,
) -> dict[str, Any]:
    """A pod of containers c0, c1, …; init containers i0, …; sidecars s0, …, each with what it asks for."""

    def containers(
        letter: str, requested: tuple[Mapping[str, int], ...], **more: object
    ) -> list[dict[str, Any]]:
        return [
            {
                "name": f"{letter}{number}",
                "image": "x",
                "resources": {"limits": {key: str(count) for key, count in one.items()}},
                **more,
            }
            for number, one in enumerate(requested)
        ]

    metadata: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "uid": uid or str(uuid.uuid4()),
        "annotations": dict(annotations or {}),
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
    }
    if controlled:
        metadata["ownerReferences"] = [{"kind": "ReplicaSet", "name": "r", "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "nodeName": node,
            "initContainers": containers("i", init) + containers("s", sidecars, restartPolicy="Always"),
            "containers": containers("c", requests),
        },
        "status": {"phase": "Pending"},
    }


def published(spec: Any, uid: str, node: str = NODE) -> dict[str, Any]:
    """The document of a pod of the kubelet stand-in (a PodSpec)."""

    def container(one: Any) -> dict[str, Any]:
        limits = {name: str(count) for name, count in one.resources.items()}
        more = {"restartPolicy": "Always"} if one.sidecar else {}
        return {"name": one.name, "image": "x", "resources": {"limits": limits}, **more}

    document = pod_document(
        spec.name, namespace=spec.namespace, annotations=spec.annotations, node=node, uid=uid
    )
    document["spec"]["initContainers"] = [container(one) for one in spec.init_containers]
    document["spec"]["containers"] = [container(one) for one in spec.containers]
    return document


class KubeApi:
    """The server. Everything public may be called from any thread while it runs."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.version = 1
        self.oldest = 1  # watches from before this version are answered with 410
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.posted: dict[str, dict[str, Any]] = {}  # events by name
        self.evicted: list[dict[str, Any]] = []
        self.nodes: dict[str, dict[str, Any]] = {NODE: {"kind": "Node", "metadata": {"name": NODE}}}
        self.node_patches: list[tuple[float, dict[str, Any]]] = []  # time by the monotonic clock, body
        self.node_denials: list[int] = []  # the next patches of nodes are answered with these
        self.refused_rights: set[tuple[str, str]] = set()  # verb and resource, as access reviews answer
        self.requests: list[tuple[str, str]] = []
        self.denial = 0  # status for every request, 0: none
        self.event_denial = 0
        self.eviction_status = 201
        self.hanging = False  # requests are taken and not answered, watches are silent
        self.lag = 0.0  # seconds by which watches are behind
        self.lagging: tuple[int, dict[tuple[str, str], dict[str, Any]]] | None = None
        """Version and pods of lists from memory (version 0), as of another server that is behind."""
        self.token = TOKEN
        self.generation = 0  # of watches: those of older ones are cut
        self.cut_short = False  # ... in the middle of a line
        self.closed = False
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> KubeApi:
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

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def kubeconfig(self, directory: Path) -> Path:
        """A file with which a client gets in; the token is in a file of its own, which may be replaced."""
        (directory / "token").write_text(self.token)
        path = directory / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                    "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
                    "users": [{"name": "u", "user": {"tokenFile": "token"}}],
                }
            )
        )
        return path

    # --- what happens in the cluster ---------------------------------------------------------------------------

    def put(self, document: dict[str, Any]) -> None:
        """Makes or changes a pod."""
        with self.lock:
            key = (document["metadata"]["namespace"], document["metadata"]["name"])
            kind = "MODIFIED" if key in self.pods else "ADDED"
            self.pods[key] = self._record(kind, document)

    def annotate(self, namespace: str, name: str, **changes: str | None) -> None:
        """Changes annotations; the names may be given with "__" for "/" and "_" for "-"."""
        with self.lock:
            document = json.loads(json.dumps(self.pods[namespace, name]))
            for key, value in changes.items():
                full = key.replace("__", "/").replace("_", "-") if "/" not in key else key
                document["metadata"]["annotations"].pop(full, None)
                if value is not None:
                    document["metadata"]["annotations"][full] = value
            self.put(document)

    def set_phase(self, namespace: str, name: str, uid: str, phase: str) -> None:
        """What the kubelet reports of a pod; nothing where that pod is no more."""
        with self.lock:
            known = self.pods.get((namespace, name))
            if known is not None and known["metadata"]["uid"] == uid:
                self.put({**known, "status": {**known["status"], "phase": phase}})

    def remove(self, namespace: str, name: str) -> None:
        """A pod is gone."""
        with self.lock:
            document = self.pods.pop((namespace, name), None)
            if document is not None:
                self._record("DELETED", document)

    def _record(self, kind: str, document: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            return self._recorded(kind, document)

    def _recorded(self, kind: str, document: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        copy = json.loads(json.dumps(document))
        copy["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, copy))
        self.lock.notify_all()
        return copy

    # --- what happens to the server ----------------------------------------------------------------------------

    def forget(self) -> None:
        """Compacts: watches from older versions get 410."""
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self.lock.notify_all()

    def bookmark(self) -> None:
        """Tells every watch the newest version without an object."""
        with self.lock:
            self.version += 1
            empty = {"kind": "Pod", "metadata": {"resourceVersion": str(self.version)}}
            self.history.append((self.version, "BOOKMARK", empty))
            self.lock.notify_all()

    def drop_watches(self, *, in_the_middle: bool = False) -> None:
        """Closes every open watch."""
        with self.lock:
            self.cut_short = in_the_middle
            self.generation += 1
            self.lock.notify_all()

    def events(self, reason: str = "") -> list[dict[str, Any]]:
        """Events that were posted, in order."""
        with self.lock:
            return [event for event in self.posted.values() if not reason or event["reason"] == reason]

    def asked(self, method: str, part: str) -> int:
        """How many requests of METHOD had PART in their target."""
        with self.lock:
            return sum(one == method and part in target for one, target in self.requests)

    def lists(self) -> int:
        """How many times all pods were listed, watches left out."""
        with self.lock:
            return sum(
                one == "GET" and "/pods" in target and "watch=1" not in target
                for one, target in self.requests
            )

    # --- HTTP --------------------------------------------------------------------------------------------------

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                self._serve()

            def do_POST(self) -> None:
                self._serve()

            def do_PATCH(self) -> None:
                self._serve()

            def _serve(self) -> None:
                url = urlsplit(self.path)
                query = {key: values[-1] for key, values in parse_qs(url.query).items()}
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                with api.lock:
                    api.requests.append((self.command, self.path))
                    while api.hanging and not api.closed:
                        api.lock.wait(0.1)
                    denial = api.denial
                    if not denial and self.headers.get("Authorization") != f"Bearer {api.token}":
                        denial = 401
                    # Together with the authorization: a watch that is dropped now, but was let in before, ends too.
                    generation = api.generation
                try:
                    if denial:
                        self._answer(
                            denial, {"kind": "Status", "message": "denied by the test", "code": denial}
                        )
                    elif self.command == "GET" and query.get("watch"):
                        self._watch(query, generation)
                    elif self.command == "GET":
                        self._answer(200, api._list(query))
                    else:
                        self._answer(*api._change(self.command, url.path, body))
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def _answer(self, status: int, document: object) -> None:
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _chunk(self, content: bytes) -> None:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
                self.wfile.flush()

            def _watch(self, query: Mapping[str, str], generation: int) -> None:
                at = int(query["resourceVersion"])
                if at < api.oldest:
                    self._answer(410, {"kind": "Status", "message": "too old resource version", "code": 410})
                    return
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.flush()
                deadline = time.monotonic() + float(query.get("timeoutSeconds", 3600))
                while time.monotonic() < deadline:
                    news = api._news(at, generation, deadline)
                    if news is None:
                        if api.cut_short and not api.closed:
                            self._chunk(b'{"type":"ADDED","object":{"kind":')
                        self.close_connection = True
                        return
                    for version, kind, document in news:
                        at = version
                        if kind in ("BOOKMARK", "ERROR") or _matches(document, query):
                            line = json.dumps({"type": kind, "object": document}).encode() + b"\n"
                            for start in range(0, len(line), 777):  # lines and chunks do not end together
                                self._chunk(line[start : start + 777])
                self.wfile.write(b"0\r\n\r\n")

        return Handler

    def _news(
        self, at: int, generation: int, deadline: float
    ) -> list[tuple[int, str, dict[str, Any]]] | None:
        """What a watch that is AT a version is told next; None: its connection is to be cut."""
        with self.lock:
            while not self.closed and self.generation == generation and time.monotonic() < deadline:
                if not self.hanging and at < self.oldest:
                    expired = {"kind": "Status", "code": 410, "message": "too old resource version"}
                    return [(self.version, "ERROR", expired)]
                found = [one for one in self.history if one[0] > at]
                if found and not self.hanging:
                    break
                self.lock.wait(0.05)
            else:
                return None if self.closed or self.generation != generation else []
            lag = self.lag
        time.sleep(lag)
        return found

    def _list(self, query: Mapping[str, str]) -> dict[str, Any]:
        with self.lock:
            version, pods = self.version, self.pods
            if self.lagging is not None and query.get("resourceVersion") == "0":
                version, pods = self.lagging
            items = [document for document in pods.values() if _matches(document, query)]
            metadata = {"resourceVersion": str(version)}
            return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}

    def _change(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        parts = path.strip("/").split("/")
        with self.lock:
            if parts[-1] == "selfsubjectaccessreviews":
                asked = body["spec"]["resourceAttributes"]
                name = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
                return 201, {"status": {"allowed": (asked["verb"], name) not in self.refused_rights}}
            if parts[-1] == "eviction":
                self.evicted.append(body)
                return self.eviction_status, {"kind": "Status", "message": "as the test wants it"}
            if method == "PATCH" and parts[-2] == "nodes":
                return self._patch_node(parts[-1], body)
            if self.event_denial:
                return self.event_denial, {"kind": "Status", "message": "no events, says the test"}
            if method == "POST" and parts[-1] == "events":
                name = body["metadata"]["name"]
                if name in self.posted:
                    return 409, {"kind": "Status", "message": f'events "{name}" already exists'}
                self.posted[name] = body
                return 201, body
            if method == "PATCH" and parts[-2] == "events":
                if parts[-1] not in self.posted:
                    return 404, {"kind": "Status", "message": "not found"}
                self.posted[parts[-1]].update(body)
                return 200, self.posted[parts[-1]]
        return 404, {"kind": "Status", "message": f"the stand-in knows no {method} {path}"}

    def _patch_node(self, name: str, body: Any) -> tuple[int, dict[str, Any]]:
        """A merge patch of annotations and labels; one that changes nothing leaves the version as it is."""
        if self.node_denials:
            status = self.node_denials.pop(0)
            return status, {"kind": "Status", "message": "denied by the test", "code": status}
        if name not in self.nodes:
            return 404, {"kind": "Status", "message": f'nodes "{name}" not found'}
        self.node_patches.append((time.monotonic(), body))
        node = json.loads(json.dumps(self.nodes[name]))
        for field, changes in body["metadata"].items():
            values = node["metadata"].setdefault(field, {})
            for key, value in changes.items():
                values.pop(key, None)
                if value is not None:
                    values[key] = value
        if node != self.nodes[name]:
            self.version += 1
            node["metadata"]["resourceVersion"] = str(self.version)
            self.nodes[name] = node
        return 200, self.nodes[name]


def _matches(document: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    selector = query.get("fieldSelector", "")
    return not selector or selector == f"spec.nodeName={document['spec'].get('nodeName')}"
