"""The stand-in of kube-scheduler says what a real one has said: compared with recorded conversations."""

import asyncio
import json
import re

import pytest

from tests.fakes.kubeapi import ApiServer
from tests.fakes.kubeapi.replay import transcript
from tests.fakes.scheduler import SchedulerStandIn


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
        for line in lines:
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
                content = json.dumps(line.get("reply")).encode()
                writer.write(
                    f"HTTP/1.1 {line['status']} X\r\nContent-Length: {len(content)}\r\n\r\n".encode()
                    + content
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.mark.parametrize(
    "name",
    ["sched-plain", "sched-onenode", "sched-reject", "sched-binderr", "sched-filter-error", "sched-notours"],
)
def test_the_scheduler_says_what_a_real_one_has_said(name):
    lines = transcript(name)
    recorded = conversation(lines)

    async def main():
        async with ApiServer() as api, RecordedExtender(lines) as (url, extender):
            extender.api = api
            for number in range(4):
                status = {"allocatable": {"gigaslice.io/vgpu-memory": "640", "gigaslice.io/gpu": "8"}}
                api.create("nodes", {"metadata": {"name": f"n-{number}"}, "spec": {}, "status": status})
            async with SchedulerStandIn(api, url) as scheduler:
                for line in lines:
                    if line.get("method") == "POST" and line.get("path", "").endswith("/pods"):
                        document = {**line["body"], "metadata": {**line["body"]["metadata"]}}
                        api.create("pods", document, line["path"].split("/")[4])
                        await asyncio.sleep(0.3)
                return [(verb, pod) for verb, pod, *_ in scheduler.said]

    assert asyncio.run(main())[: len(recorded)] == recorded
