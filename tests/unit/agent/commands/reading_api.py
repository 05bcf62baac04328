"""An API server that is only read: lists of documents by path, in pages, and a status by path instead."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gigaslice.cluster.names import INVENTORY
from gigaslice.cluster.state import NodeFacts
from gigaslice.model import Pod

CLASSES = "/apis/gigaslice.io/v1alpha1/resourceclasses"


class ReadingApi:
    """The server. lists: by path; objects: by path; statuses: by path. pages: objects of a page, where pages are asked
    for without version 0.
    """

    def __init__(self) -> None:
        self.lists: dict[str, list[dict[str, Any]]] = {"/api/v1/nodes": [], "/api/v1/pods": [], CLASSES: []}
        self.objects: dict[str, dict[str, Any]] = {}
        self.statuses: dict[str, int] = {}
        self.asked: list[str] = []
        self.page = 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> ReadingApi:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def put_node(self, facts: NodeFacts) -> None:
        annotations = {} if facts.inventory_text is None else {INVENTORY: facts.inventory_text}
        self.lists["/api/v1/nodes"].append(
            {
                "metadata": {"name": facts.name, "uid": facts.name, "annotations": annotations},
                "spec": {} if facts.schedulable else {"unschedulable": True},
                "status": {"conditions": [{"type": "Ready", "status": "True" if facts.ready else "False"}]},
            }
        )

    def put_pod(self, pod: Pod, created: str = "2026-11-23T04:00:00Z") -> None:
        document = {
            "metadata": {
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
                "annotations": dict(pod.annotations),
                "creationTimestamp": created,
            },
            "spec": {
                "nodeName": pod.node,
                "containers": [
                    {
                        "name": one.name,
                        "resources": {"limits": {key: str(n) for key, n in one.requests.items()}},
                    }
                    for one in pod.containers
                ],
            },
            "status": {"phase": pod.phase},
        }
        self.lists["/api/v1/pods"].append(document)
        self.objects[f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"] = document

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Says nothing."""

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                api.asked.append(self.path)
                status, document = api._answer(url.path, dict(parse_qsl(url.query)))
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):  # a client that has heard enough elsewhere
                    self.wfile.write(body)

        return Handler

    def _answer(self, path: str, query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if path in self.statuses:
            return self.statuses[path], {"kind": "Status", "message": f"the test refuses {path}"}
        if path in self.objects:
            return 200, self.objects[path]
        if path not in self.lists:
            return 404, {"kind": "Status", "message": f"no {path}"}
        items = self.lists[path]
        start = int(query.get("continue", "0"))
        end = start + self.page if self.page else len(items)
        more = {"continue": str(end)} if end < len(items) else {}
        return 200, {"metadata": {"resourceVersion": "7", **more}, "items": items[start:end]}
