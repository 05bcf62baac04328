# SPDX-License-Identifier: Apache-2.0
"""The API server stand-in over HTTP, with its bad days: in the running event loop, or in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gigaslice.kubeapi.access import Access
from tests.fakes.connections import Connections
from tests.fakes.kubeapi import wire
from tests.fakes.kubeapi.answers import Answers, Request, status_of
from tests.fakes.kubeapi.device_rules import DeviceRules
from tests.fakes.kubeapi.refused import Refused
from tests.fakes.kubeapi.resources import Target
from tests.fakes.kubeapi.store import Document, ObjectStore, Snapshot, check_fields

TOKEN = "a token"
_PAUSE = 0.02
_REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired"}
_REASONS |= {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}


@dataclass
class Fault:
    """What goes wrong with requests of METHOD ("": any) whose target has PART in it, COUNT times.

    status: the answer; 0: the connection is cut. effect: whether the request is carried out before. delay: seconds
    before anything happens; later: seconds between the answer and the effect. headers: lines for the answer that end
    with CRLF. when: called with method and target, says whether it goes wrong this time.
    """

    method: str
    part: str
    status: int = 500
    effect: bool = False
    delay: float = 0.0
    later: float = -1.0
    count: int = 1 << 30
    headers: str = ""
    when: Callable[[str, str], object] = lambda method, target: True

    def meets(self, method: str, target: str) -> bool:
        """Whether it goes wrong with this request."""
        fits = self.method in ("", method) and self.part in target and self.count > 0
        return fits and bool(self.when(method, target))


class Write(NamedTuple):
    """A request that is no GET, and the status of its answer."""

    method: str
    path: str
    body: Any
    status: int


class ApiServer:
    """The server: `async with` runs it in the running loop, `with` in a thread of its own.

    What is in the cluster is changed by the methods from `create` to `tell`, what becomes of requests by the public
    attributes; all may be used from any thread while it runs.
    """

    def __init__(self, *nodes: str, crds: bool = True) -> None:
        self.store = ObjectStore()
        self.answers = Answers(self.store)
        self.answers.crds = crds
        self.requests: list[tuple[str, str]] = []
        """Method and target of every request."""
        self.writes: list[Write] = []
        self.faults: list[Fault] = []
        self.denial = 0
        """The status for every request; 0: none."""
        self.token = TOKEN
        """What every request must have; "": nothing, as behind `kubectl proxy`."""
        self.hanging = False
        """Requests are taken and not answered, watches are silent."""
        self.lag = 0.0
        """Seconds by which watches are behind."""
        self.port = 0
        self._cuts = 0
        self._cut_in_a_line = False
        self._moved = asyncio.Event()
        self._ringing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connections = Connections(self._serve)
        self.store.changed = self._ring
        for name in nodes:
            self.create("nodes", {"kind": "Node", "metadata": {"name": name}})

    # --- in the cluster -----------------------------------------------------------------------------------------

    def all(self, resource: str) -> list[Document]:
        """The objects of RESOURCE (a plural), in the order in which they were made."""
        return self.store.all(resource)

    def get(self, resource: str, name: str, namespace: str = "") -> Document:
        """An object that is there."""
        return self.store.get(resource, name, namespace)

    def named(self, resource: str) -> dict[str, Document]:
        """The objects of RESOURCE by name."""
        return {one["metadata"]["name"]: one for one in self.all(resource)}

    def create(self, resource: str, document: Document, namespace: str = "") -> Document:
        """Makes an object."""
        return self.store.create(resource, document, namespace)

    def put(self, resource: str, document: Document) -> Document:
        """Makes an object, or makes it what DOCUMENT is."""
        return self.store.put(resource, document)

    def change(self, resource: str, name: str, patch: Mapping[str, Any], namespace: str = "") -> Document:
        """Merges PATCH."""
        return self.store.change(resource, name, patch, namespace)

    def annotate(self, namespace: str, name: str, **changes: str | None) -> None:
        """Changes annotations of a pod; None takes one away."""
        self.change("pods", name, {"metadata": {"annotations": changes}}, namespace)

    def set_phase(self, namespace: str, name: str, uid: str, phase: str) -> None:
        """What the kubelet reports of a pod; nothing where that pod is no more."""
        with self.store.lock:
            known = self.store.objects["pods"].get((namespace, name))
            if known is not None and known["metadata"]["uid"] == uid:
                self.change("pods", name, {"status": {"phase": phase}}, namespace)

    def delete(self, resource: str, name: str, namespace: str = "") -> Document:
        """Deletes an object that is there."""
        return self.store.delete(resource, name, namespace)

    def clear(self, resource: str) -> None:
        """Deletes all objects of RESOURCE."""
        with self.store.lock:
            for namespace, name in list(self.store.objects[resource]):
                self.delete(resource, name, namespace)

    def events(self, reason: str = "") -> list[Document]:
        """The events, in the order in which they were first posted."""
        return [event for event in self.all("events") if reason in ("", event["reason"])]

    # --- what clients did ---------------------------------------------------------------------------------------

    def asked(self, method: str, part: str) -> int:
        """How many requests of METHOD had PART in their target."""
        return sum(one == method and part in target for one, target in list(self.requests))

    def sent(self, method: str, part: str) -> list[Any]:
        """The bodies of the requests of METHOD with PART in their path, whatever the answer was."""
        return [one.body for one in list(self.writes) if one.method == method and part in one.path]

    def accepted(self, method: str, part: str) -> list[Any]:
        """The bodies of those that were carried out."""
        done = [one for one in list(self.writes) if one.status < 300]
        return [one.body for one in done if one.method == method and part in one.path]

    # --- what happens to the server -----------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The newest version."""
        return self.store.version

    @property
    def device_rules(self) -> DeviceRules:
        """What it refuses or loses of slices and claims."""
        return self.store.device_rules

    def show_any_version(self, snapshot: Snapshot) -> None:
        """From now on, lists of any version (0) show this state, as those of another server that is behind."""
        self.answers.behind = snapshot

    def drop_watches(self, *, in_the_middle: bool = False) -> None:
        """Closes every open watch, IN_THE_MIDDLE of a line."""
        self._cut_in_a_line = in_the_middle
        self._cuts += 1
        self._ring()

    # --- how clients find it ------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def access(self) -> Access:
        """The way in for a KubeClient."""
        return Access("127.0.0.1", self.port, tls=False, token=self.token)

    def kubeconfig(self, directory: Path) -> Path:
        """A file with which a client gets in; the token is in a file of its own, which may be replaced."""
        (directory / "token").write_text(self.token)
        path = directory / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                    "clusters": [{"name": "k", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": {"tokenFile": "token"}}],
                }
            )
        )
        return path

    # --- start and end ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> ApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __enter__(self) -> ApiServer:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.start(), loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        loop, thread = self._loop, self._thread
        assert loop is not None and thread is not None
        asyncio.run_coroutine_threadsafe(self.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def start(self) -> None:
        """Serves; after a stop on the same port."""
        self.port = self._connections.listen(self.port)
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """Cuts every connection."""
        self._loop = None
        await self._connections.end()

    # --- connections --------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._one(await wire.read_request(reader), writer):
            pass

    async def _one(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answers; False: the connection is to be cut."""
        self.requests.append((request.method, request.target))
        while self.hanging:
            await asyncio.sleep(_PAUSE)
        denial = self.denial
        if not denial and self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            denial = 401
        cuts = self._cuts  # together with the authorization: a watch that is dropped from here on ends
        if denial:
            await wire.send(writer, denial, _by_the_test(denial))
            return True
        fault = next((one for one in self.faults if one.meets(request.method, request.target)), None)
        if fault is not None:
            fault.count -= 1
            if (goes_on := await self._fail(fault, request, writer)) is not None:
                return goes_on
        if request.method == "GET" and request.query.get("watch"):
            return await self._watch(request, writer, cuts)
        await wire.send(writer, *self._carry_out(request))
        return True

    async def _fail(self, fault: Fault, request: Request, writer: asyncio.StreamWriter) -> bool | None:
        """What a fault makes of a request; None: it is carried out after all."""
        await asyncio.sleep(fault.delay)
        if fault.effect:
            self._carry_out(request)
        elif fault.later >= 0:
            asyncio.get_running_loop().call_later(fault.later, self._carry_out, request)
        if fault.status in (0, 200):
            return None if fault.status else False
        if request.method != "GET" and not fault.effect:
            self.writes.append(Write(request.method, request.path, request.body, fault.status))
        await wire.send(writer, fault.status, _by_the_test(fault.status), fault.headers)
        return True

    def _carry_out(self, request: Request) -> tuple[int, Document]:
        status, document = self.answers.answer(request)
        if request.method != "GET":
            self.writes.append(Write(request.method, request.path, request.body, status))
        return status, document

    # --- watches ------------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        if self._loop is not None and not self._ringing:
            self._ringing = True
            self._loop.call_soon_threadsafe(self._move)

    def _move(self) -> None:
        self._ringing = False
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _watch(self, request: Request, writer: asyncio.StreamWriter, cuts: int) -> bool:
        text = request.query.get("resourceVersion", "0")
        try:
            target = self.answers.target(request.path)
            check_fields(target.resource, request.query)
            if not text.isdigit():
                raise Refused(500, "", f'resourceVersion: Invalid value: "{text}"')
        except Refused as refused:
            await wire.send(writer, refused.status, status_of(refused))
            return True
        await wire.begin_chunks(writer)
        seconds = float(request.query.get("timeoutSeconds") or 3600)
        try:
            await asyncio.wait_for(self._stream(request, target, writer, cuts), seconds)
        except asyncio.TimeoutError:
            pass
        except Refused as expired:
            await wire.send_line(writer, {"type": "ERROR", "object": status_of(expired)})
        if cuts != self._cuts:
            if self._cut_in_a_line:
                await wire.send_chunks(writer, b'{"type":"ADDED","object":{"kind":')
            return False
        await wire.end_chunks(writer)
        return True

    async def _stream(
        self, request: Request, target: Target, writer: asyncio.StreamWriter, cuts: int
    ) -> None:
        """The lines of a watch, until it is cut."""
        plural, version = target.resource.plural, int(request.query.get("resourceVersion") or 0)
        if not version:  # whatever there is comes first
            listed = self.store.page(
                target.resource, target.namespace, {**request.query, "resourceVersion": "0"}
            )
            version = int(listed["metadata"]["resourceVersion"])
            for one in listed["items"]:
                await wire.send_line(writer, {"type": "ADDED", "object": one})
        while cuts == self._cuts:
            moved = self._moved
            if self.hanging:
                await asyncio.sleep(_PAUSE)
                continue
            reached, events = self.store.since(version, plural, target.namespace, request.query)
            if self.hanging:  # set by the test's thread after the line above: what came then is not shown
                continue
            version = reached
            if events and self.lag:
                await asyncio.sleep(self.lag)
            for event in events:
                await wire.send_line(writer, event)
            if not events:
                await moved.wait()


def _by_the_test(status: int) -> Document:
    return status_of(Refused(status, _REASONS.get(status, "Error"), "denied by the test"))
