# SPDX-License-Identifier: Apache-2.0
import asyncio
import threading
from dataclasses import dataclass

import pytest

from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.objects import parse_dataset
from gigaslice.kubeapi.client import KubeClient
from gigaslice.kubeapi.documents import WHOLE, AnswerDecoder
from gigaslice.kubeapi.informer import Informer
from tests.fakes.kubeapi import ApiServer, Fault
from tests.fakes.kubeapi.replay import Replay, transcript


@dataclass(frozen=True)
class Seen:
    name: str
    uid: str
    node: str
    ending: bool


def seen(document):
    metadata = document["metadata"]
    node = document.get("spec", {}).get("nodeName", "")
    return Seen(metadata["name"], metadata["uid"], node, "deletionTimestamp" in metadata)


def page(items, version="10", more=""):
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    return {"kind": "List", "metadata": metadata, "items": items}


def pod(name, uid="u", **spec):
    return {"metadata": {"name": name, "namespace": "n", "uid": uid, "resourceVersion": "1"}, "spec": spec}


def got(path, reply, status=200, **more):
    return {"method": "GET", "path": path, "status": status, "reply": reply, **more}


def watch(path, stream, *events):
    head = {
        "method": "GET",
        "path": path,
        "query": "watch=1",
        "status": 200,
        "stream": stream,
        "reply_transfer_encoding": "chunked",
        "ends": True,
    }
    return [head, *({"stream": stream, "event": event} for event in events)]


def event(kind, document, version="11"):
    document["metadata"]["resourceVersion"] = version
    return {"type": kind, "object": document}


class Told(list):
    def change(self, one):
        self.append(("change", one))

    def drop(self, one):
        self.append(("drop", one))

    def short(self):
        return [(what, one.name, one.uid) for what, one in self]


def run(lines, until, *, path="/pods", at_end="open", parse=seen, **more):
    """Lets an informer meet a recorded server until UNTIL(informer, told, server)."""
    told = Told()

    async def main():
        async with Replay(lines) as server:
            server.at_end = at_end
            async with KubeClient(server.access, "test") as client:
                informer = Informer(client, path, parse, told.change, told.drop, pause=0.01, **more)
                work = asyncio.create_task(informer.run())
                for _ in range(3000):
                    if until(informer, told, server) or work.done():
                        break
                    await asyncio.sleep(0.01)
                else:
                    pytest.fail(f"not reached: {told} {server.requests}")
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                return informer, told, server

    return asyncio.run(main())


def test_a_recorded_watch_of_a_pods_life():
    lines = transcript("api-watch-pods")
    _, told, server = run(
        lines, lambda i, t, s: t and t[-1][0] == "drop", path="/api/v1/namespaces/t-watch/pods"
    )
    assert [(what, one.node, one.ending) for what, one in told] == [
        ("change", "", False),
        ("change", "n-0", False),  # the change of its status alone has not been told
        ("change", "n-0", True),
        ("drop", "n-0", True),
    ]
    (_, listing, _), (_, watching, _) = server.requests
    assert "limit=500" in listing
    assert "resourceVersion=263" in watching
    assert "allowWatchBookmarks=true" in watching


def test_the_pages_of_a_recorded_list():
    lines = transcript("api-list-pages")[:3]
    informer, told, server = run(
        lines, lambda i, t, s: i.synced.is_set(), path="/api/v1/namespaces/t-list/pods", page=3
    )
    assert [one.name for _, one in told] == [f"p{number}" for number in range(7)]
    assert len(informer) == 7
    assert ["continue=" in target for _, target, _ in server.requests[:3]] == [False, True, True]


def test_pages_that_expire_are_listed_anew():
    lines = transcript("api-list-pages")
    expired = next(line for line in lines if line["status"] == 410 and "continue" in line.get("query", ""))
    _, told, _ = run([lines[0], expired, *lines[:3]], lambda i, t, s: i.synced.is_set(), path=expired["path"])
    assert len(told) == 7


@pytest.mark.parametrize("name", ["api-watch-410", "1.20-api-watch-410"])
def test_a_recorded_expired_version_is_followed_by_a_list(name):
    lines = [line for line in transcript(name) if str(line.get("stream", "")).startswith("rv 1")]
    path = lines[0]["path"]
    lists = [got(path, page([pod("a"), pod("b")])), got(path, page([pod("b"), pod("c")]))]
    informer, told, _ = run(
        [*lists, *lines], lambda i, t, s: i.lists == 2 and len(t) == 4, path=path, at_end="end"
    )
    assert told.short()[2:] == [("drop", "a", "u"), ("change", "c", "u")]  # what no watch has shown
    assert {one.name for one in informer.values} == {"b", "c"}


def test_a_watch_refused_with_410_is_followed_by_a_list():
    gone = got("/pods", {"kind": "Status", "code": 410, "message": "old"}, 410, query="watch=1")
    lines = [got("/pods", page([pod("a")])), gone, got("/pods", page([]))]
    _, told, _ = run(lines, lambda i, t, s: i.lists == 2)
    assert told.short() == [("change", "a", "u"), ("drop", "a", "u")]


def test_an_object_leaving_a_recorded_selector_is_dropped():
    lines = [line for line in transcript("api-watch-selector") if line.get("stream") == "by-label"]
    path = lines[0]["path"]
    _, told, _ = run([got(path, page([])), *lines], lambda i, t, s: t and t[-1][0] == "drop", path=path)
    assert [(what, one.node) for what, one in told] == [("change", ""), ("change", "n-0"), ("drop", "n-0")]


def test_a_cut_connection_goes_on_from_where_it_was():
    lines = [
        got("/pods", page([pod("a")])),
        *watch("/pods", "one", event("ADDED", pod("b"), "12")),
        *watch("/pods", "two", event("ADDED", pod("c"), "13")),
    ]
    for line in lines:
        line.pop("ends", None)
    informer, _, server = run(lines, lambda i, t, s: len(t) == 3, at_end="cut")
    assert informer.lists == 1
    assert "resourceVersion=12" in server.requests[2][1]


def test_the_same_name_with_another_uid_is_another_object():
    lines = [
        got("/pods", page([pod("a", "1")])),
        *watch(
            "/pods",
            "one",
            event("MODIFIED", pod("a", "2"), "12"),
            event("DELETED", pod("a", "1"), "13"),  # late, of the first
            event("ADDED", pod("end"), "14"),
        ),
    ]
    _, told, _ = run(lines, lambda i, t, s: len(t) >= 4)
    assert told.short() == [
        ("change", "a", "1"),
        ("drop", "a", "1"),
        ("change", "a", "2"),
        ("change", "end", "u"),
    ]


def test_what_does_not_matter_any_more_is_dropped():
    def parse(document):
        return seen(document) if document["spec"].get("nodeName") else None

    lines = [
        got("/pods", page([pod("a", nodeName="n"), pod("b")])),
        *watch("/pods", "one", event("MODIFIED", pod("a")), event("DELETED", pod("b"))),
    ]
    _, told, _ = run(lines, lambda i, t, s: len(t) == 2, parse=parse)
    assert told.short() == [("change", "a", "u"), ("drop", "a", "u")]


MISTAKES = [
    ValueError("no such thing"),
    RequestError("no such option"),
    AttributeError("a mistake"),
    KeyError("k"),
]


def unless_bad(mistake):
    def parse(document):
        if document["spec"].get("bad"):
            raise mistake
        return seen(document)

    return parse


@pytest.mark.parametrize("mistake", MISTAKES, ids=repr)
def test_an_object_that_makes_no_sense_hides_no_other_and_ends_nothing(mistake):
    lines = [
        got("/pods", page([pod("bad", bad=True), pod("a")])),
        *watch("/pods", "one", event("ADDED", pod("bad-too", bad=True)), event("ADDED", pod("b"))),
    ]
    _, told, _ = run(lines, lambda i, t, s: len(t) == 2, parse=unless_bad(mistake))
    assert told.short() == [("change", "a", "u"), ("change", "b", "u")]


def test_a_misspelt_dataset_is_left_out_with_its_sentence(capsys):
    good = pod("good") | {"spec": {"source": "s3://bucket"}}
    bad = [
        pod("option") | {"spec": {"source": "s3://bucket", "options": {"endpoin": "http://minio"}}},
        pod("empty") | {"spec": {"source": "s3://"}},
    ]
    lines = [
        got("/x", page([*bad, good])),
        *watch("/x", "one", event("MODIFIED", bad[0])),
        got("/x", page([good])),
    ]
    _informer, told, _ = run(
        lines, lambda i, t, s: i.lists == 2, path="/x", parse=lambda one: seen(one) and parse_dataset(one)
    )
    assert [str(one) for _, one in told] == ["n/good"]
    log = capsys.readouterr().out
    assert log.count("did you mean endpoint") == 1 and log.count("names no bucket") == 1, log


@pytest.mark.parametrize("how", ["watch", "list"])
@pytest.mark.parametrize("uid", ["u", 7])
def test_an_object_that_cannot_be_read_any_more_may_keep_its_last_value(how, uid):
    def unread(document, last):
        return last or Seen(document["metadata"]["name"], "unread", "", False)

    bad = [pod("a", uid, bad=True), pod("new", bad=True)]
    if how == "watch":
        later = watch("/pods", "one", *(event("MODIFIED", one) for one in bad), event("ADDED", pod("end")))
    else:
        later = [*watch("/pods", "silent"), got("/pods", page([*bad, pod("end")]))]
    informer, told, _ = run(
        [got("/pods", page([pod("a", nodeName="n")])), *later],
        lambda i, t, s: t and t[-1][1].name == "end",
        parse=unless_bad(ValueError("bad")),
        unread=unread,
    )
    assert told.short() == [("change", "a", "u"), ("change", "new", "unread"), ("change", "end", "u")]
    assert informer.get("n", "a").node == "n"


def test_another_object_of_the_name_has_no_last_value():
    lines = [
        got("/pods", page([pod("a", "1", nodeName="n")])),
        *watch("/pods", "one", event("ADDED", pod("a", "2", bad=True)), event("ADDED", pod("end"))),
    ]
    _, told, _ = run(
        lines,
        lambda i, t, s: t and t[-1][1].name == "end",
        parse=unless_bad(ValueError("bad")),
        unread=lambda document, last: last,
    )
    assert told.short() == [("change", "a", "1"), ("drop", "a", "1"), ("change", "end", "u")]


def test_a_resource_that_is_not_installed_is_empty():
    missing = {"kind": "Status", "message": "the server could not find the requested resource", "code": 404}
    informer, told, _ = run(
        [got("/x", missing, 404)], lambda i, t, s: i.synced.is_set(), path="/x", optional=True
    )
    assert not told
    assert not informer.refusal


def test_refusals_are_shown_and_tried_again():
    denied = {"kind": "Status", "message": "pods is forbidden", "reason": "Forbidden", "code": 403}
    informer, _, _ = run([got("/pods", denied, 403)] * 2, lambda i, t, s: i.refusal)
    assert "forbidden" in informer.refusal
    informer, _, _ = run(
        [got("/pods", denied, 403), got("/pods", page([]))], lambda i, t, s: i.synced.is_set()
    )


def test_a_server_is_left_alone_as_long_as_it_has_asked():
    busy = got("/pods", {"kind": "Status", "message": "slow down", "code": 503}, 503, reply_retry_after="1")
    began = []

    def until(informer, told, server):
        began.append(len(server.requests))
        return informer.synced.is_set()

    run([busy, got("/pods", page([]))], until)
    assert began.count(1) > 20  # polls of 10 ms with the first request only


def test_silence_from_the_beginning_to_the_end_of_a_watch_is_followed_by_a_list():
    """A server restored from an older state waits silently for the version to come."""
    lines = [got("/pods", page([])), *watch("/pods", "silent"), got("/pods", page([pod("a")], "3"))]
    informer, told, server = run(lines, lambda i, t, s: t, watch_seconds=0)
    assert told.short() == [("change", "a", "u")]
    assert informer.lists == 2
    assert ["watch=1" in target for _, target, _ in server.requests][:3] == [False, True, False]


def test_a_watch_that_ends_before_a_bookmark_is_due_goes_on_where_it_was():
    """As the watches of all clients end when an API server is restarted, which must not make all of them list."""
    lines = [
        got("/pods", page([])),
        *watch("/pods", "silent"),
        *watch("/pods", "later", event("ADDED", pod("a"))),
    ]
    informer, _, server = run(lines, lambda i, t, s: t)
    assert informer.lists == 1
    assert ["watch=1" in target for _, target, _ in server.requests][:3] == [False, True, True]


@pytest.mark.parametrize("line", [b"[]", b"{", b'{"type":1}', b'{"type":"ADDED","object":{"metadata":{}}}'])
def test_nonsense_in_a_watch_is_followed_by_a_list(line):
    import json

    try:
        document = json.loads(line)
    except ValueError:
        document = "text"
    lines = [got("/pods", page([])), *watch("/pods", "one", document), got("/pods", page([pod("a")]))]
    _, told, _ = run(lines, lambda i, t, s: t)
    assert told.short() == [("change", "a", "u")]


@pytest.mark.parametrize("beside", [True, False])
def test_a_decoder_that_takes_long_reads_beside_the_event_loop(beside):
    threads = []

    class Page:
        def __init__(self):
            self.page = WHOLE.page()

        @property
        def envelope(self):
            return self.page.envelope

        def feed(self, chunk):
            threads.append(threading.get_ident())
            return self.page.feed(chunk)

        def end(self):
            return self.page.end()

    class Watch(Page):
        def __init__(self):
            self.page = WHOLE.watch()

        def feed(self, chunk):
            for document in super().feed(chunk):
                threads.append(threading.get_ident())
                yield document

    lines = [got("/pods", page([pod("a")])), *watch("/pods", "one", event("ADDED", pod("b"), "12"))]
    decoder = AnswerDecoder(Page, Watch, beside=beside)
    run(lines, lambda i, t, s: len(t) == 2, decoder=decoder)
    assert len(threads) > 2
    if not beside:
        assert set(threads) == {threading.get_ident()}
    else:
        assert threads[-1] != threading.get_ident()


def test_a_list_that_is_asked_for_shows_what_the_watch_does_not():
    """One that has begun already does not count."""

    async def story():
        async with ApiServer() as api, KubeClient(api.access, "t") as client:
            api.lag = 3600.0
            told = Told()
            found = Informer(client, "/api/v1/pods", seen, told.change, told.drop)
            work = asyncio.create_task(found.run())
            await found.synced.wait()
            api.create("pods", pod("late"), "n")
            await asyncio.wait_for(asyncio.gather(found.refresh(), found.refresh()), 30)
            assert told.short() == [("change", "late", "u")]
            api.faults.append(Fault("GET", "/api/v1/pods?limit", 200, delay=0.3, count=1))
            first = asyncio.create_task(found.refresh())
            while api.faults[0].count:
                await asyncio.sleep(0.01)
            second = asyncio.create_task(found.refresh())  # while the list of the first is being read
            before = found.lists
            await asyncio.wait_for(asyncio.gather(first, second), 30)
            assert found.lists == before + 2
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    asyncio.run(story())
