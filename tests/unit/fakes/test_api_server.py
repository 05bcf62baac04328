# SPDX-License-Identifier: Apache-2.0
"""The API server's stand-in answers as real ones have answered: held against recorded conversations."""

from __future__ import annotations

import asyncio
import http.client
import json

import pytest

from gigaslice.kubeapi.client import ApiFailure, KubeClient
from tests.fakes.kubeapi import ApiServer, wire
from tests.fakes.kubeapi.answers import Answers, Request
from tests.fakes.kubeapi.replay import transcript
from tests.fakes.kubeapi.store import ObjectStore, Refused

VALIDATED = (400, 422, 500)
"""Statuses of what a validation refuses; the stand-in has none, a missing version apart."""


class Conversation:
    """Says what was said to a real server to the stand-in; UIDs and versions are exchanged for its own."""

    def __init__(self) -> None:
        self.store = ObjectStore()
        self.answers = Answers(self.store)
        self.own: dict[str, str] = {}

    def say(self, line):
        """The stand-in's status and document for a recorded request."""
        text = json.dumps(line.get("body"))
        for recorded, own in self.own.items():
            text = text.replace(recorded, own)
        query = dict(part.split("=", 1) for part in line.get("query", "").split("&") if part)
        query = {key: value.replace("%3D", "=") for key, value in query.items()}
        headers = {"content-type": line.get("content_type", "")}
        request = Request(line["method"], line["path"], line["path"], query, headers, json.loads(text))
        status, answer = self.answers.answer(request)
        metadata = (line.get("reply") or {}).get("metadata") or {}
        if "uid" in metadata:
            self.own[metadata["uid"]] = answer["metadata"]["uid"]
            self.own[f'"{metadata["resourceVersion"]}"'] = f'"{answer["metadata"]["resourceVersion"]}"'
        return status, answer


@pytest.mark.parametrize(
    "name", ["api-binding", "api-lease", "api-events", "api-watch-pods", "1.20-api-binding"]
)
def test_requests_get_the_recorded_status_and_reason(name):
    conversation, compared = Conversation(), 0
    conversation.store.preconditions = not name.startswith("1.20")
    for line in transcript(name):
        note, path = line.get("note", ""), line.get("path", "")
        refused = line.get("status") in VALIDATED and "without resourceVersion" not in note
        if "method" not in line or "stream" in line or refused:
            continue
        if "events.k8s.io" in path or path.endswith("/p1.17a2") or "old form" in note or "left out" in note:
            continue  # other ways to the same objects, which the project does not use
        status, answer = conversation.say(line)
        found = answer.get("reason") if status >= 300 else None
        recorded = (line.get("reply") or {}).get("reason") if line["status"] >= 300 else None
        assert (status, found) == (line["status"], recorded), (note, line)
        compared += 1
    assert compared >= 4


@pytest.mark.parametrize("name", ["api-watch-pods", "api-watch-selector"])
def test_watches_are_sent_the_recorded_events(name):
    """What begins or ends to fit a selector comes as added or deleted, the latter with the labels of before."""
    conversation, watches, recorded = Conversation(), {}, {}
    for line in transcript(name):
        if "stream" in line and "path" in line:
            query = dict(part.split("=", 1) for part in line.get("query", "").replace("%3D", "=").split("&"))
            watches[line["stream"]] = line["path"].split("/")[4], query
        elif "event" in line:
            event = line["event"]
            metadata = event["object"]["metadata"]
            if event["type"] != "BOOKMARK":
                shown = event["type"], metadata["name"], metadata.get("labels")
                recorded.setdefault(line["stream"], []).append(shown)
        elif (
            "method" in line
            and line["method"] != "GET"
            and line["status"] < 300
            and "old form" not in line.get("note", "")
        ):
            conversation.say(line)
    assert recorded
    for stream, (namespace, query) in watches.items():
        _, events = conversation.store.since(10, "pods", namespace, query)
        found = [
            (one["type"], one["object"]["metadata"]["name"], one["object"]["metadata"].get("labels"))
            for one in events
        ]
        assert _steps(found) == _steps(recorded[stream])


def _steps(events):
    """Without repetitions: a deletion with a period of grace is one more change of the same kind in a real server."""
    return [one for number, one in enumerate(events) if not number or events[number - 1] != one]


def test_pages_are_one_version_and_expire():
    store = ObjectStore()
    answers = Answers(store)

    def listed(query):
        path = "/api/v1/namespaces/t-list/pods"
        pairs = dict(part.split("=", 1) for part in (query or "").replace("%3D", "=").split("&") if part)
        return answers.answer(Request("GET", path, path, pairs, {}, None))

    for number in range(7):
        store.create("pods", {"metadata": {"name": f"p{number}"}, "spec": {}}, "t-list")
    token, compared = "", 0
    for line in transcript("api-list-pages"):
        query = line.get("query", "")
        if (
            "resourceVersionMatch" in query
            or "future" in line.get("note", "")
            or "as=" in line.get("note", "")
        ):
            continue  # the project sends none of them
        if "compacted" in line.get("note", ""):
            store.compact()
        recorded = line["reply"]
        if "continue=ey" in query:
            query = f"limit=3&continue={token}"
        status, answer = listed(query)
        assert (status, answer["kind"]) == (line["status"], recorded["kind"]), line["note"]
        if status == 200:
            names = [one["metadata"]["name"] for one in answer["items"]]
            wanted = [one["metadata"]["name"] for one in recorded["items"]]
            assert sorted(names) == sorted(wanted), line["note"]
            remaining = answer["metadata"].get("remainingItemCount")
            assert remaining == recorded["metadata"].get("remainingItemCount"), line["note"]
            token = answer["metadata"].get("continue", token)
            if compared == 0:
                first = token
                store.create("pods", {"metadata": {"name": "p1b"}, "spec": {}}, "t-list")
        else:
            assert answer["reason"] == recorded["reason"]
        compared += 1
        if compared == 3:
            token = first  # it is tried again after the compaction
    assert compared >= 7


@pytest.mark.parametrize("name", ["api-watch-410", "1.20-api-watch-410"])
def test_an_expired_version_is_an_event_of_a_watch_that_ends_properly(name):
    async def main():
        async with ApiServer() as api, KubeClient(api.access, "t") as client:
            api.store.version += 500
            api.store.compact()
            compared = 0
            for line in transcript(name):
                if "method" not in line or "Match" in line["query"] or "future" in line.get("note", ""):
                    continue
                path = f"{line['path']}?{line['query']}"
                if line["status"] != 200:
                    with pytest.raises(ApiFailure) as failure:
                        await client.request("GET", path)
                    assert failure.value.status == line["status"]
                else:
                    answer = await client.request("GET", path)
                    event = json.loads(answer.body)
                    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == (
                        "ERROR",
                        410,
                        "Expired",
                    )
                compared += 1
            assert compared == 4

    asyncio.run(main())


def test_what_is_not_the_object_that_was_read_is_not_written():
    store = ObjectStore()
    made = store.create("resourceclasses", {"metadata": {"name": "a"}, "spec": {"x": 1}})
    answers, path = Answers(store), "/apis/gigaslice.io/v1alpha1/resourceclasses/a"

    def patched(below="", **body):
        headers = {"content-type": "application/merge-patch+json"}
        return answers.answer(Request("PATCH", path, path + below, {}, headers, body))

    assert patched(metadata={"uid": "another"}, spec={"x": 2})[0] == 409
    assert patched(spec={"x": 1})[1]["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    status, found = patched(spec={"x": 2}, status={"free": 1})
    assert (status, found["spec"], found.get("status"), found["metadata"]["generation"]) == (
        200,
        {"x": 2},
        None,
        2,
    )
    status, found = patched("/status", spec={"x": 3}, status={"free": 1})
    assert (status, found["spec"], found["status"], found["metadata"]["generation"]) == (
        200,
        {"x": 2},
        {"free": 1},
        2,
    )
    request = Request("PATCH", path, path, {}, {"content-type": "application/strategic-merge-patch+json"}, {})
    assert answers.answer(request)[0] == 415
    answers.crds = False
    assert patched(spec={"x": 4})[0] == 404
    with pytest.raises(Refused):
        store.get("resourceclasses", "b")


def test_a_watch_that_is_dropped_as_soon_as_it_is_there_is_dropped(monkeypatch):
    """The watch was let in before: it ends although it has not read anything yet."""
    with ApiServer() as server:
        real = wire.begin_chunks

        async def dropped_at_once(writer):
            await real(writer)
            server.drop_watches()

        monkeypatch.setattr(wire, "begin_chunks", dropped_at_once)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        headers = {"Authorization": f"Bearer {server.token}"}
        connection.request("GET", "/api/v1/pods?watch=1&resourceVersion=1&timeoutSeconds=5", headers=headers)
        with pytest.raises(http.client.IncompleteRead):
            connection.getresponse().read()
        connection.close()
