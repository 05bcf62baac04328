# SPDX-License-Identifier: Apache-2.0
"""The stand-in of kube-scheduler says what a real one has said: compared with recorded conversations."""

import asyncio
import json
import re

import pytest

from tests.fakes.eventually import until
from tests.fakes.kubeapi import ApiServer
from tests.fakes.kubeapi.replay import transcript
from tests.fakes.scheduler import SchedulerStandIn
from tests.fakes.scheduler.cycle import NAME


def conversation(lines):
    """Who said what to whom, without the texts: (verb or method and kind of path, pod)."""
    found = []
    for line in lines:
        path = line.get("path", "")
        if line.get("to") == "extender":
            body = line["body"]
            pod = body["PodName"] if "PodName" in body else body["Pod"]["metadata"]["name"]
            found.append((line["t"], path.rsplit("/", 1)[-1], pod))
    return [(verb, pod) for _, verb, pod in sorted(found)]


class RecordedExtender:
    """Answers each verb and pod as it was recorded, in order; afterwards as the last time."""

    def __init__(self, lines):
        self.answers = {}
        self.names = {}  # of pods, by the UID that they had when it was recorded
        for line in lines:
            if line.get("path", "").endswith("/binding"):
                self.names[line["body"]["metadata"]["uid"]] = line["body"]["metadata"]["name"]
            if line.get("to") == "extender":
                body = line["body"]
                pod = body["PodName"] if "PodName" in body else body["Pod"]["metadata"]["name"]
                self.answers.setdefault((line["path"], pod), []).append(line)

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}", self

    async def __aexit__(self, *_):
        self.server.close()

    async def serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
                body = json.loads(await reader.readexactly(length))
                path = head.split(b" ")[1].decode()
                pod = body["PodName"] if "PodName" in body else body["Pod"]["metadata"]["name"]
                known = self.answers[path, pod]
                line = known.pop(0) if len(known) > 1 else known[0]
                if (
                    path.endswith("/bind")
                    and not (line.get("reply") or {}).get("Error")
                    and line["status"] == 200
                ):
                    patch = {"spec": {"nodeName": body["Node"]}}
                    self.api.change("pods", pod, patch, body["PodNamespace"])
                if line.get("ms", 0) > 500:
                    await asyncio.sleep(0.5)
                content = self.as_now(json.dumps(line.get("reply"))).encode()
                writer.write(
                    f"HTTP/1.1 {line['status']} X\r\nContent-Length: {len(content)}\r\n\r\n".encode()
                    + content
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def as_now(self, text):
        """The text with the UIDs that the pods have here."""
        here = {one["metadata"]["name"]: one["metadata"]["uid"] for one in self.api.all("pods")}
        for recorded, name in self.names.items():
            text = text.replace(recorded, here.get(name, recorded))
        return text


def act(api, line):
    """What the user or a node did at this point of the conversation."""
    method, parts, body = line["method"], line["path"].split("/"), line.get("body")
    namespace = parts[4] if "namespaces" in parts else ""
    resource, name = parts[-2:] if parts[-1] != "status" else parts[-3:-1]
    if method == "POST" and parts[-1] == "pods":
        priority = ((line.get("reply") or {}).get("spec") or {}).get("priority", 0)
        document = {**body, "metadata": {**body["metadata"]}, "spec": {**body["spec"], "priority": priority}}
        api.create("pods", document, namespace)
    elif method == "POST" and parts[-1] == "nodes":
        api.create("nodes", {"spec": {}, "status": CAPACITY, **body})
    elif method == "PATCH":
        api.change(resource, name, body, namespace)
    elif method == "DELETE":
        api.delete(resource, name, namespace)


CAPACITY = {"allocatable": {"gigaslice.io/vgpu-memory": "640", "gigaslice.io/gpu": "8"}}
RECORDED = [
    "plain", "onenode", "reject", "binderr", "filter-error", "notours", "interleave",
    *(f"requeue-{event}" for event in (
        "annotation", "heartbeat", "label", "node-created", "other-pod-deleted", "own-annotation", "own-label",
        "status-allocatable",
    )),
    *(f"preempt-{answer}" for answer in ("pass", "none", "drop-first", "empty-victims", "500")),
]  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_the_scheduler_says_what_a_real_one_has_said(name):
    lines = transcript(f"sched-{name}")
    recorded = conversation(lines)

    async def main():
        async with ApiServer() as api, RecordedExtender(lines) as (url, extender):
            extender.api = api
            for number in range(4):
                api.create("nodes", {"metadata": {"name": f"n-{number}"}, "spec": {}, "status": CAPACITY})
            async with SchedulerStandIn(api, url) as scheduler:
                for line in lines:
                    if line.get("from") == "client" and line["method"] != "GET":
                        act(api, line)
                        await asyncio.sleep(0 if name == "interleave" else 0.3)
                await asyncio.sleep(0.3)
                return [(verb, pod) for verb, pod, *_ in scheduler.said]

    said = asyncio.run(main())
    assert said[: len(recorded)] == recorded
    assert len(said) == len(recorded) or name in ("binderr", "filter-error", "reject"), said


class FailingBindings(SchedulerStandIn):
    """Its extender takes every node, and refuses bindings when it is told to."""

    def __init__(self, api):
        super().__init__(api, "", second=60.0)
        self.refuse = asyncio.Event()

    async def _call(self, verb, pod, body):
        self.said.append((verb, pod["metadata"]["name"], body, 200, {}))
        if verb == "bind":
            await self.refuse.wait()
            return 200, {"Error": "no"}
        return 200, {"NodeNames": body["NodeNames"], "FailedNodes": {}, "FailedAndUnresolvableNodes": {}}


def test_a_binding_that_fails_has_the_pods_tried_for_which_there_was_no_room_beside_it():
    """Not recorded: read from the sources of 1.36. The pod is forgotten, and every waiting pod is moved."""

    async def main():
        async with ApiServer() as api:
            api.create("nodes", {"metadata": {"name": "n"}, "spec": {}, "status": CAPACITY})
            limits = {"gigaslice.io/vgpu-memory": "640"}
            spec = {"schedulerName": NAME, "containers": [{"name": "main", "resources": {"limits": limits}}]}
            async with FailingBindings(api) as scheduler:
                api.create("pods", {"metadata": {"name": "first"}, "spec": spec, "status": {}})
                await until(lambda: ("bind", "first") in said(scheduler))
                api.create("pods", {"metadata": {"name": "other"}, "spec": spec, "status": {}})
                await asyncio.sleep(0.1)
                assert said(scheduler) == [("filter", "first"), ("bind", "first")]
                scheduler.refuse.set()
                await until(lambda: ("bind", "other") in said(scheduler), seconds=10)

    def said(scheduler):
        return [(verb, pod) for verb, pod, *_ in scheduler.said]

    asyncio.run(main())
