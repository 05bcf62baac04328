# SPDX-License-Identifier: Apache-2.0
"""Servers that answer what no API server should: at once and for ever, too much, too little, or nonsense.

The recorded shape of a version that is too old is the API server's own: status 200, one ERROR event with code 410, and
a proper end of the answer.
"""

import asyncio
import contextlib
import gzip
import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.apiserver import KubeCluster
from agent.apiserver.node_client import node_client
from agent.apiserver.node_pods import node_pods
from gigaslice.core.kube.decode import parse_pod, unread_pod
from gigaslice.core.kube.object_reader import Document
from gigaslice.core.kube.weight import bytes_of
from gigaslice.core.model import ContainerKind, Pod, PodContainer
from gigaslice.kubeapi import informer as informer_module
from gigaslice.kubeapi.client import KubeClient
from gigaslice.kubeapi.events import NODE_RATES, EventRecorder
from gigaslice.kubeapi.failures import ApiFailure, object_path
from gigaslice.kubeapi.informer import Bound, Informer
from tests.fakes.eventually import until
from tests.fakes.kubeapi import pod_document
from tests.fakes.kubeapi.raw import CHUNKED, END, chunk, serving, whole
from tests.fakes.kubeapi.reading import after_events, listed

ROOT = Path(__file__).resolve().parents[4]
GPU = "gigaslice.io/vgpu-memory"
LIST = {"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": []}
GONE = {
    "type": "ERROR",
    "object": {"kind": "Status", "message": "too old resource version: 1 (431)", "code": 410},
}


def cluster_pods(client, **more):
    """An informer as the cluster's roles have it: pages and lines are decoded whole, and values have no bound."""
    options = {"unread": lambda document, last: last or unread_pod(document), "pause": 1.0, **more}
    return Informer(client, "/api/v1/pods", parse_pod, lambda pod: None, lambda pod: None, **options)


def agent_pods(client, **more):
    return node_pods(client, "node-a", lambda: None, **more)


@pytest.fixture(params=[agent_pods, cluster_pods], ids=["agent", "cluster"])
def kind(request):
    return request.param


def one_list(watch_answer, documents=()):
    """An ANSWER that lists DOCUMENTS and has one answer for every watch."""
    return lambda target: watch_answer if "watch=1" in target else whole({**LIST, "items": list(documents)})


class Rests:
    """In place of an informer's pauses: notes them, and lets as many pass as the test wants."""

    def __init__(self, monkeypatch, count):
        self.seconds = []
        self.enough = asyncio.Event()
        sleep = asyncio.sleep

        async def rest(seconds):
            self.seconds.append(seconds)
            if len(self.seconds) >= count:
                self.enough.set()
                await asyncio.Event().wait()
            await sleep(0)

        monkeypatch.setattr(informer_module.asyncio, "sleep", rest)


def rests_of(kind, server, monkeypatch, count, **more):
    """The first COUNT pauses of an informer at SERVER, and the informer."""

    async def main():
        rests = Rests(monkeypatch, count)
        async with node_client(server.access, connect=5, answer=5) as client:
            pods = kind(client, **more)
            task = asyncio.ensure_future(pods.run())
            enough = asyncio.ensure_future(rests.enough.wait())
            done, _ = await asyncio.wait({task, enough}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            for waiter in (task, enough):
                waiter.cancel()
            results = await asyncio.gather(task, enough, return_exceptions=True)
            assert enough in done, f"no {count} pauses but {rests.seconds}, and {results[0]!r}"
            return rests.seconds, pods

    return asyncio.run(main())


# --- how often is asked ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [
    CHUNKED + END,  # ends at once, as it should be
    CHUNKED + chunk(json.dumps(GONE).encode() + b"\n") + END,  # recorded: 200, and then 410
    whole({"kind": "Status", "code": 410}, "410 Gone"),
    CHUNKED,  # cut
    b"",
], ids=["end", "gone", "status 410", "cut", "nothing"])  # fmt: skip
def test_a_watch_that_does_not_live_is_asked_for_less_and_less_often(kind, answer, monkeypatch):
    monkeypatch.setattr(informer_module.random, "uniform", lambda low, high: high)
    with serving(one_list(answer)) as server:
        pauses, _ = rests_of(kind, server, monkeypatch, 9)
        assert server.watches() == 9
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 30]


def test_pauses_are_jittered(kind, monkeypatch):
    with serving(one_list(CHUNKED + END)) as server:
        pauses, _ = rests_of(kind, server, monkeypatch, 9)
    assert len(set(pauses[5:])) > 1 and all(15 <= one <= 30 for one in pauses[5:])


def test_a_watch_that_lived_is_followed_by_the_next_at_once(kind, monkeypatch):
    def slowly():
        yield CHUNKED
        threading.Event().wait(0.3)
        yield END

    answers = iter([CHUNKED + END, CHUNKED + END, slowly(), CHUNKED + END])
    monkeypatch.setattr(informer_module.random, "uniform", lambda low, high: high)
    with serving(lambda target: next(answers) if "watch=1" in target else whole(LIST)) as server:
        pauses, _ = rests_of(kind, server, monkeypatch, 4, lived_seconds=0.2)
    assert pauses == [1, 2, 0, 1]


@pytest.mark.parametrize("head, least", [
    ("Retry-After: 7\r\n", 7), ("Retry-After: 999999\r\n", 300), ("Retry-After: soon\r\n", 0),
    ("Retry-After: -4\r\n", 0), ("Retry-After: " + "9" * 400 + "\r\n", 300),
])  # fmt: skip
@pytest.mark.parametrize("of", ["list", "watch"])
def test_a_server_that_asks_to_be_left_alone_is(kind, head, least, of, monkeypatch):
    busy = whole({"kind": "Status", "message": "too many requests"}, "429 Too Many Requests", head)
    with serving(lambda target: busy if of == "list" or "watch=1" in target else whole(LIST)) as server:
        pauses, _ = rests_of(kind, server, monkeypatch, 1)
    assert least <= pauses[0] <= least + 1


# --- how much is read -----------------------------------------------------------------------------------------------


def flood(start, piece):
    yield start
    for _ in range(2000):
        yield piece


def asked(server, **more):
    """One request to SERVER."""

    async def main():
        async with node_client(server.access, **more) as client:
            return await client.request("GET", "/")

    return asyncio.run(main())


@pytest.mark.parametrize("start, piece", [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"x" * 65536),
    (CHUNKED, chunk(b"x" * 65536)),
    (CHUNKED, b"1\r\nx\r\n" * 10_000),
    (CHUNKED + END[:-2], b"X-More: " + b"x" * 1000 + b"\r\n"),
    (b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"x" * 65000 + b"\r\n"),
    (b"HTTP/1.1 200 OK\r\n", b"X-More: x\r\n" * 5000),
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2000),
    (b"", b"HTTP/1.1 103 Early Hints\r\nLink: " + b"x" * 8000 + b"\r\n\r\n"),
], ids=["length", "chunks", "bytes", "trailers", "head", "headers", "interim", "hints"])  # fmt: skip
def test_an_answer_is_read_no_further_than_its_bound(start, piece):
    with serving(lambda target: flood(start, piece)) as server, pytest.raises(ApiFailure):
        asked(server)
    assert server.sent < 16 << 20, "the bound is 1 MiB; the rest is what lay in the sockets"


def test_another_protocol_is_no_answer():
    with serving(
        lambda target: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    ) as server:
        with pytest.raises(ApiFailure) as caught:
            asked(server)
        assert caught.value.status == 101


def test_what_is_packed_stays_packed():
    """Two hundred MiB in 200 KiB. Nothing packed is asked for, and what is sent so is no JSON."""
    bomb = gzip.compress(b"[" + b"[]," * 70_000_000 + b"0]", 1)
    with serving(lambda target: whole(bomb, head="Content-Encoding: gzip\r\n")) as server:
        answer = asked(server)
        assert answer.body == bomb
        with pytest.raises(ApiFailure, match="no JSON"):
            answer.document()


@pytest.mark.parametrize("unasked", [
    whole({"n": 2}), b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n",
], ids=["answer", "interim", "timeout"])  # fmt: skip
def test_an_idle_connection_takes_nothing_and_no_later_request_gets_it(unasked):
    """aiohttp keeps all of it, and takes the first for the answer to the next request."""
    idle = threading.Event()

    def answer(target):
        yield whole({"n": 1})
        if "second" not in target:
            idle.wait(10)
            yield from flood(b"", unasked * 2000)

    async def main():
        async with node_client(server.access) as client:
            await client.request("GET", "/first")
            idle.set()
            await asyncio.sleep(0.3)
            assert (await client.request("GET", "/second")).document() == {"n": 1}

    with serving(answer, requests=2) as server:
        asyncio.run(main())
        assert server.connections == [1, 2] and server.sent < 16 << 20


def test_a_line_of_a_watch_has_a_bound(kind, monkeypatch):
    with serving(one_list(flood(CHUNKED, chunk(b"x" * 65536)))) as server:
        rests_of(kind, server, monkeypatch, 1)
    assert server.sent < 32 << 20


def test_a_watch_that_never_ends_nor_says_anything_whole_is_left(kind, monkeypatch):
    def drips():
        yield CHUNKED
        for _ in range(500):
            yield chunk(b"x")
            threading.Event().wait(0.05)

    with serving(one_list(drips())) as server:
        rests_of(kind, server, monkeypatch, 1, watch_seconds=1, overtime=-0.5)


def page(documents, more=""):
    return {**LIST, "metadata": {"resourceVersion": "7", "continue": more}, "items": documents}


HEAD, ITEM = (
    b'{"metadata":{"resourceVersion":"8"},"items":[',
    b'{"metadata":{"name":"p","namespace":"n","uid":"u",',
)
COSTLY = {
    "lists": (b'"x":[', b"[]," * 20_000, b"0]"),
    "objects": (b'"annotations":{"a":[', b'{"a":{}},' * 7_000, b"0]}"),
}
PEAK = """
import asyncio, sys
from agent.apiserver import Access
from agent.apiserver.node_client import node_client
from agent.apiserver.node_pods import node_pods

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

async def main():
    async with node_client(Access("127.0.0.1", int(sys.argv[1]), tls=False)) as client:
        informer = node_pods(client, "node-a", lambda: None, pause=100)
        before = peak()
        running = asyncio.ensure_future(informer.run())
        while not (informer.failures or informer._version == (sys.argv[2] or None)):
            await asyncio.sleep(0.02)
            assert not running.done(), running
        pods = informer.values
        print(peak() - before, len(pods), sum(pod.readable for pod in pods))

asyncio.run(main())
"""


def costs(server, version=""):
    """The KiB that a watch takes until it has failed or seen VERSION; its pods, and how many could be read."""
    command = [sys.executable, "-c", PEAK, str(server.access.port), version]
    said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=200).stdout
    return [int(word) for word in said.splitlines()[-1].split()]


@pytest.mark.parametrize("of", ["list", "watch"])
@pytest.mark.parametrize("begin, piece, end", COSTLY.values(), ids=COSTLY)
def test_what_an_answer_costs_does_not_depend_on_what_is_in_it(of, begin, piece, end):
    """Decoders of whole lists and lines took up to 60 MiB for these 2.5 MiB, and 600 for the longest."""

    def parts():
        yield CHUNKED
        yield chunk((HEAD if of == "list" else b'{"type":"ADDED","object":') + ITEM + begin)
        for _ in range(40):
            yield chunk(piece)
        yield chunk(end + b',"resourceVersion":"8"},"spec":{}}' + (b"]}" if of == "list" else b"}\n")) + END

    with serving(one_list(parts()) if of == "watch" else lambda target: parts()) as server:
        kib, _, _ = costs(server, "8")
        assert server.sent > 1 << 20, "or nothing was tried"
    assert kib < 20 << 10


def annotated(number):
    """A pod: the first sixty take more than all may, and for the others there is no room."""
    document = pod_document(f"p{number}", uid=f"u-{number}")
    size = 60_000 if number < 60 else 60
    document["metadata"]["annotations"] = {f"gigaslice.io/x{one}": "y" * size for one in range(2)}
    document["metadata"]["resourceVersion"] = "8"
    return document


def test_pages_that_never_end_cost_no_more_than_a_bound():
    numbers = itertools.count()

    def answer(target):
        return whole(page([annotated(next(numbers)) for _ in range(250)], "more"))

    with serving(answer) as server:
        kib, pods, _ = costs(server)
        assert len(server.targets) > 2 and not pods
    assert kib < 32 << 10


def test_pods_that_never_end_cost_no_more_than_a_bound():
    def parts():
        yield CHUNKED
        for number in itertools.count():
            yield chunk(json.dumps({"type": "ADDED", "object": annotated(number)}).encode() + b"\n")

    with serving(one_list(parts())) as server:
        kib, pods, read = costs(server)
    assert 40 < read < 200 and pods > 500, "those for which there is no room are there, and cannot be read"
    assert kib < 32 << 10


def test_a_pod_for_which_there_is_no_room_is_there_and_an_earlier_one_stays(kind, monkeypatch, capsys):
    small = pod_document("p1", {GPU: 1}, uid="u-1")
    lines = [
        json.dumps({"type": event, "object": annotated(number)})
        for event, number in (("ADDED", 0), ("MODIFIED", 1))
    ]
    bound = Bound(bytes_of, 150_000, 200_000)
    with serving(one_list(CHUNKED + chunk("\n".join([*lines, ""]).encode()) + END, [small])) as server:
        _, informer = rests_of(kind, server, monkeypatch, 1, bound=bound)
    pods = informer.objects
    assert pods["default", "p0"].readable and pods["default", "p1"] == parse_pod(small)
    assert "there is no room for it" in "".join(capsys.readouterr())


def test_a_pod_that_is_too_large_to_be_read_whole_counts_as_unreadable():
    """What was passed over might have been the annotation that matters."""
    document = pod_document(
        "p", {GPU: 1}, annotations={f"gigaslice.io/x{key}": "y" * 60_000 for key in range(9)}
    )
    (pod,) = listed(json.dumps({**LIST, "items": [document]}).encode())
    assert (pod.name, pod.readable, pod.annotations) == ("p", False, {})


def test_the_last_value_of_a_pod_needs_room_too():
    informer = agent_pods(KubeClient.__new__(KubeClient), bound=Bound(bytes_of, 150_000, 200_000))
    informer._apply(Document({"type": "ADDED", "object": annotated(1)}, True))
    assert informer.objects["default", "p1"].readable
    entries = informer._no_entries()
    informer._add([Document(annotated(0), True), Document(annotated(1) | {"spec": 7}, True)], entries)
    assert [entry.value.readable for entry in entries.values()] == [True, False]


def test_a_list_comes_in_pages(kind, monkeypatch):
    def answer(target):
        if "watch=1" in target:
            return CHUNKED + END
        more = "second" if "continue" not in target else "third" if "continue=second" in target else ""
        return whole(page([pod_document(f"after-{more or 'all'}")], more))

    with serving(answer) as server:
        _, watch = rests_of(kind, server, monkeypatch, 1)
    assert {name for _, name in watch.objects} == {"after-second", "after-third", "after-all"}
    lists = [target for target in server.targets if "watch=1" not in target]
    assert all("limit=" in target for target in lists)
    first = [kind is agent_pods, False, False]
    assert [("resourceVersion=0" in target) for target in lists] == first, (
        "thousands of agents begin together"
    )


def test_pages_without_an_end_are_given_up(kind, monkeypatch):
    with serving(lambda target: whole(page([], "again"))) as server:
        _, watch = rests_of(kind, server, monkeypatch, 1, most_pages=4)
    assert len(server.targets) == 5 and not watch.synced.is_set()


# --- what is answered -----------------------------------------------------------------------------------------------

DEEP = b'{"a":' * 100_000
ODD = [
    b"", b"{}", b"[]", b"null", b"7", b"NaN", b'"x"', b"\xff\xfe\xfd", b"\xef\xbb\xbf{}", DEEP, b"[" * 100_000,
    b'{"type":"ERROR","object":[]}', b'{"type":"ERROR","object":null}', b'{"type":"ERROR","object":{"code":NaN}}',
    b'{"type":[],"object":{"metadata":{"resourceVersion":"1"}}}', b'{"type":"ADDED","object":[]}',
    b'{"type":"ADDED","object":{"metadata":null}}', b'{"type":"ADDED","object":{"metadata":{"resourceVersion":1}}}',
    b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"' + b"9" * 5000 + b'"}}}',
    b'{"type":"ADDED","object":' + DEEP + b"}" * 100_001,
]  # fmt: skip


@pytest.mark.parametrize("line", ODD, ids=lambda line: repr(line[:24]))
def test_no_answer_to_a_watch_ends_it(kind, line, monkeypatch):
    with serving(one_list(CHUNKED + chunk(line + b"\n") + END)) as server:
        rests_of(kind, server, monkeypatch, 2)


@pytest.mark.parametrize("body", [
    *ODD,
    b'{"metadata":{"resourceVersion":"1"},"items":{}}', b'{"metadata":{"resourceVersion":"1"},"items":[null,1,[]]}',
    b'{"metadata":{"resourceVersion":"1"},"items":[{"metadata":3,"spec":{}}]}',
    b'{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"uid":[]},"spec":[]}]}',
    b'{"metadata":{"resourceVersion":"1","continue":[]},"items":null}',
], ids=lambda body: repr(body[:24]))  # fmt: skip
def test_no_answer_to_a_list_ends_it(kind, body, monkeypatch):
    with serving(lambda target: CHUNKED + END if "watch=1" in target else whole(body)) as server:
        rests_of(kind, server, monkeypatch, 2)


@pytest.mark.parametrize("where, value", [
    ("uid", []), ("uid", ""), ("uid", None), ("uid", 7), ("uid", "a b"), ("uid", "\x1b[31m"),
    ("name", "../../nodes/x"), ("name", ".."), ("name", ""), ("name", "a/b"), ("name", {}), ("name", "A"),
    ("namespace", "a/b"), ("namespace", ["x"]), ("namespace", "a?b"), ("namespace", None),
])  # fmt: skip
def test_a_pod_of_the_wrong_types_is_left_out_and_the_others_are_not(where, value):
    bad, good = pod_document("bad", {GPU: 1}), pod_document("good", {GPU: 1})
    bad["metadata"][where] = value
    found = listed(json.dumps({**LIST, "items": [bad, None, good]}).encode())
    assert [pod.name for pod in found] == ["good"]


def test_annotations_that_are_no_text_are_left_out():
    document = pod_document("p", annotations={"a": "1"})
    document["metadata"]["annotations"] |= {"b": 2, "c": None, "d": ["x"]}
    (pod,) = listed(json.dumps({**LIST, "items": [document]}).encode())
    assert pod.annotations == {"a": "1"}


@pytest.mark.parametrize("where, value", [
    (("metadata", "uid"), [1]), (("metadata", "annotations"), []), (("spec",), 7), (("spec", "containers"), {}),
    (("status", "phase"), {}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("event", ["MODIFIED", "DELETED"])
def test_a_pod_that_is_understood_no_longer_stays_as_it_was_until_it_is_gone(
    kind, event, where, value, monkeypatch
):
    first = pod_document("p", {GPU: 1}, uid="u-1")
    second = json.loads(json.dumps(first))
    second["metadata"] |= {"resourceVersion": "8"}
    changed(second, where, value)
    line = json.dumps({"type": event, "object": second}).encode() + b"\n"
    with serving(one_list(CHUNKED + chunk(line) + END, [first])) as server:
        _, informer = rests_of(kind, server, monkeypatch, 1)
    assert informer.values == ([parse_pod(first)] if event == "MODIFIED" else [])


@pytest.mark.parametrize(
    "where, value", [("annotations", []), ("ownerReferences", [None]), ("ownerReferences", 1)]
)
def test_a_pod_that_is_listed_and_cannot_be_read_is_there(where, value):
    bad, good = pod_document("bad", {GPU: 1}), pod_document("good", {GPU: 1})
    bad["metadata"][where] = value
    found = listed(json.dumps({**LIST, "items": [bad, good]}).encode())
    assert [(pod.name, pod.readable, pod.asking(GPU) != ()) for pod in found] == [
        ("bad", False, False), ("good", True, True),
    ]  # fmt: skip


# --- anything at all ------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PLACES = [
    ("metadata",), ("spec",), ("status",), ("metadata", "uid"), ("metadata", "name"), ("metadata", "namespace"),
    ("metadata", "annotations"), ("metadata", "annotations", "gigaslice.io/gpus"), ("metadata", "ownerReferences"),
    ("metadata", "deletionTimestamp"), ("metadata", "resourceVersion"), ("spec", "containers"),
    ("spec", "initContainers"), ("spec", "containers", 0), ("spec", "containers", 0, "name"),
    ("spec", "containers", 0, "resources"), ("spec", "containers", 0, "resources", "limits"),
    ("spec", "containers", 0, "resources", "limits", GPU), ("spec", "initContainers", 0, "restartPolicy"),
    ("status", "phase"),
]  # fmt: skip


def changed(document, place, value):
    *way, last = place
    for step in way:
        document = document[step]
    document[last] = value


def check(pod):
    """What every reader of a pod may rely on."""
    assert all(isinstance(one, str) and one for one in (pod.namespace, pod.name, pod.uid, pod.phase))
    assert object_path(pod.namespace, pod.name) == f"/{pod.namespace}/{pod.name}"
    assert isinstance(pod.controlled, bool) and isinstance(pod.ending, bool)
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in pod.annotations.items())
    for one in pod.containers:
        assert isinstance(one.name, str) and isinstance(one.kind, ContainerKind)
        assert all(isinstance(count, int) and count >= 0 for count in one.requests.values())
    hash((pod.uid, pod.namespace, pod.name))
    pod.most_at_once(GPU)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3))
def test_any_pod_is_a_pod_or_none(changes):
    document = pod_document("p", {GPU: 1}, init=({GPU: 2},), annotations={"gigaslice.io/gpus": "1"})
    document["metadata"]["resourceVersion"] = "5"
    for place, value in changes:
        with contextlib.suppress(KeyError, IndexError, TypeError):
            changed(document, place, value)
    event = json.dumps({"type": "ADDED", "object": document}).encode()
    with contextlib.suppress(ApiFailure):
        for pod in after_events(event).values:
            check(pod)
    for pod in listed(json.dumps({**LIST, "items": [document]}).encode()):
        check(pod)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=64) | VALUES.map(lambda one: json.dumps(one).encode()))
def test_any_bytes_are_an_answer_or_no_answer(raw):
    for parse in (listed, after_events):
        with contextlib.suppress(ValueError, ApiFailure):
            parse(raw)


# --- names in paths -------------------------------------------------------------------------------------------------


def evicted(server, pod):
    async def main():
        async with node_client(server.access) as client:
            return await KubeCluster(client, "node-a").evict(pod)

    return asyncio.run(main())


@pytest.mark.parametrize("name, target", [
    ("../../nodes/n", "..%2F..%2Fnodes%2Fn"), ("a?dryRun=All", "a%3FdryRun%3DAll"),
    ("a b\r\nX: y", "a%20b%0D%0AX%3A%20y"),
    ("ü", "%C3%BC"),
])  # fmt: skip
def test_a_name_stays_one_segment(name, target):
    with serving(lambda _: whole({}, "201 Created")) as server:
        assert evicted(server, Pod("team", name, "u")).done
    assert server.targets == [f"/api/v1/namespaces/team/pods/{target}/eviction"]


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_what_cannot_be_a_segment_is_not_sent(name):
    with serving(lambda _: whole({}, "201 Created")) as server:
        assert "no name" in evicted(server, Pod(name, "p", "u")).problem
    assert not server.targets


def test_events_of_a_pod_without_a_proper_name_end_nothing():
    async def main(server):
        async with node_client(server.access) as client:
            recorder = EventRecorder(client, "node", "node-a", NODE_RATES, pause=100)
            task = asyncio.ensure_future(recorder.run())
            event = KubeCluster(client, "node-a", events=recorder).event
            event(Pod("..", "p", "u-1"), "Normal", "R", "x")
            event(Pod("team", "p\udcff", "u-2", containers=(PodContainer("c"),)), "Normal", "R", "x")
            event(Pod("team", "good", "u-3"), "Warning", "R", "a \x1b[31mred\x1b[0m\n\u202elie \udcff")
            await until(lambda: len(server.targets) == 2 or task.done())
            assert not task.done(), task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    with serving(lambda _: whole({}, "201 Created")) as server:
        asyncio.run(main(server))


# --- recorded shapes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotations", [{}, {"annotations": {"k8s.io/initial-events-end": "true"}}])
def test_a_bookmark_as_the_server_sends_it(annotations):
    empty = {
        "kind": "Pod",
        "metadata": {"resourceVersion": "476", **annotations},
        "spec": {"containers": None},
        "status": {},
    }
    informer = after_events(json.dumps({"type": "BOOKMARK", "object": empty}).encode())
    assert (informer._version, informer.values) == ("476", [])


def test_a_list_that_expires_between_two_pages_is_asked_for_anew(kind, monkeypatch):
    """The answer has a token to go on with; what it would give is not of one moment any more."""
    expired = {"kind": "Status", "code": 410, "reason": "Expired", "metadata": {"continue": "inconsistent"}}
    lists = []

    def answer(target):
        if "watch=1" in target:
            return CHUNKED + END
        lists.append(target)
        if len(lists) == 2:
            return whole(expired, "410 Gone")
        return whole(page([pod_document(f"p{len(lists)}")], "more" if len(lists) == 1 else ""))

    with serving(answer) as server:
        _, watch = rests_of(kind, server, monkeypatch, 2)
    assert {name for _, name in watch.objects} == {"p3"}
    assert "continue" in lists[1] and "continue" not in lists[2]
