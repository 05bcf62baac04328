# SPDX-License-Identifier: Apache-2.0
"""Files of an HTTP server that lies, cuts, hangs and redirects."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from urllib.parse import unquote, urlsplit

import pytest

from gigaslice.core.dataset.errors import ListingError, SourceError
from gigaslice.roles.dataset_node.fetching import engine
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.sources.http_client import HttpClient
from gigaslice.roles.dataset_node.sources.protocol import SourceBusyError
from gigaslice.roles.dataset_node.sources.web_files import WebSource
from tests.fakes.dataset_layout import FlatLayout, PartFiles
from tests.fakes.hostile_files import HostileFiles


@pytest.fixture
def server():
    found = HostileFiles()
    found.files = {f"/data/{i % 3}/file {i}.bin": bytes([i]) * (1000 + i) for i in range(20)}
    found.files["/data/large"] = bytes(range(256)) * 2000
    found.index()
    yield found
    found.close()


def source_of(server, *, seconds=20.0, local=True, headers=None, path="/data", **bounds):
    client = HttpClient(
        urlsplit(f"http://127.0.0.1:{server.port}"), headers or {}, local=local, seconds=seconds
    )
    return WebSource(client, path, **bounds)


def using(server, work, **options):
    async def run():
        source = source_of(server, **options)
        try:
            return await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(work(source)))
        finally:
            await source.close()

    return asyncio.run(run())


def listed(server, **options):
    async def work(source):
        return await source.list()

    return using(server, work, **options)


def read(server, name=b"large", span=None, **options):
    """What `read_into` gives of a listed file, with the server's trick from then on."""
    trick, server.trick = server.trick, lambda *_: False

    async def work(source):
        listing = await source.list()
        server.trick = trick
        entry = next(one for one in listing.entries if one.path == name)
        found = bytearray()
        offset, size = span or (0, entry.size)
        source.read_into(entry, offset, size, lambda at, data: found.extend(data))
        return bytes(found)

    return using(server, work, **options)


def test_an_index_is_a_listing_and_files_are_read(server):
    listing = listed(server)
    assert listing.files == 21
    assert read(server, b"1/file 4.bin") == bytes([4]) * 1004
    assert read(server, b"large", (300, 1000)) == server.files["/data/large"][300:1300]


def test_versions_are_etags_and_a_changed_file_is_another_listing(server):
    before = listed(server).digest
    assert listed(server).digest == before
    server.files["/data/1/file 4.bin"] = b"\xff" * 1004
    assert listed(server).digest != before


def test_an_address_of_one_file_is_a_dataset_of_one_file(server):
    listing = listed(server, path="/data/large")
    assert [(one.path, one.size) for one in listing.entries] == [(b"large", 512_000)]

    async def work(source):
        entry = (await source.list()).entries[0]
        found = []
        source.read_into(entry, 5, 10, lambda at, data: found.append(bytes(data)))
        return b"".join(found)

    assert using(server, work, path="/data/large") == server.files["/data/large"][5:15]


def test_connections_are_kept(server):
    ports = set()
    server.trick = lambda path, handler: ports.add(handler.client_address[1])

    async def work(source):
        listing = await source.list()
        ports.clear()
        for entry in [one for one in listing.entries if one.size][:10]:
            source.read_into(entry, 0, entry.size, lambda *_: None)

    using(server, work)
    assert len(ports) == 1


NO_INDEX = [
    b"{}",
    b"[]",
    b'{"files": [1]}',
    b'{"files": [{"path": "a"}]}',
    b'{"files": [{"path": 1, "size": 1}]}',
    b'{"files": [{"path": "a", "size": true}]}',
    b"\xff",
    b"[" * 100_000,
]


@pytest.mark.parametrize("text", NO_INDEX, ids=range(len(NO_INDEX)))
def test_what_is_no_index_is_refused(server, text):
    server.files["/data/index.json"] = text
    with pytest.raises(ListingError, match="no index"):
        listed(server)


@pytest.mark.parametrize("path", ["../up", "/abs", "a//b", "", "a/\u0000"])
def test_paths_that_lead_elsewhere_are_refused(server, path):
    server.files["/data/index.json"] = (
        b'{"files": [{"path": "%s", "size": 1, "version": "1"}]}' % path.replace("\0", "\\u0000").encode()
    )
    with pytest.raises(ListingError):
        listed(server)


def test_an_index_that_lies_about_a_size_is_refused(server):
    server.files["/data/index.json"] = b'{"files": [{"path": "large", "size": 5}]}'
    with pytest.raises(SourceError, match=r"has 512000 bytes, and index\.json says 5"):
        listed(server)


def file_only(trick):
    return lambda path, handler: (
        trick(handler) if path == "/data/large" and handler.command == "GET" else False
    )


CHANGES = {
    "shorter": lambda server: file_only(lambda h: server.plain(h, 200, b"x" * 511_999)),
    "longer": lambda server: file_only(lambda h: server.plain(h, 200, b"x" * 512_001)),
    "another etag": lambda server: file_only(lambda h: server.plain(h, 200, b"x" * 512_000, ETag='"new"')),
    "condition fails": lambda server: file_only(lambda h: server.plain(h, 412)),
    "removed": lambda server: file_only(lambda h: server.plain(h, 404)),
    "gone": lambda server: file_only(lambda h: server.plain(h, 410)),
    "out of range": lambda server: file_only(lambda h: server.plain(h, 416)),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_file_is_noticed(server, how):
    server.trick = CHANGES[how](server)
    with pytest.raises(SourceError) as failure:
        read(server)
    assert failure.value.changed, str(failure.value)
    assert '"large"' in str(failure.value)


def _chunked_more(server):
    def trick(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for _ in range(6):
            handler.wfile.write(b"%x\r\n" % 100_000 + b"x" * 100_000 + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")
        return True

    return file_only(trick)


def test_more_bytes_than_listed_are_noticed_without_a_length(server):
    server.trick = _chunked_more(server)
    with pytest.raises(SourceError, match="became longer"):
        read(server)


FAULTS = {
    "cut": lambda server: file_only(lambda h: cut(server, h)),
    "hangs in the body": lambda server: file_only(lambda h: hang(server, h)),
    "hangs before the head": lambda server: file_only(server.hang),
    "error": lambda server: file_only(lambda h: server.plain(h, 500)),
    "garbage": lambda server: file_only(garbage),
    "another range": lambda server: file_only(
        lambda h: server.plain(h, 206, b"x" * 100, Content_Range="bytes 7-106/512000")
    ),
}


def cut(server, handler):
    server.plain(handler, 200, b"x" * 500, Content_Length=str(len(server.files[unquote(handler.path)])))
    handler.close_connection = True
    return True


def hang(server, handler):
    server.plain(handler, 200, b"x" * 1000, Content_Length="512000")
    return server.hang(handler)


def garbage(handler):
    handler.wfile.write(b"\x00\x01garbage\r\n\r\n")
    handler.close_connection = True
    return True


@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_is_one_to_try_again(server, how):
    server.trick = FAULTS[how](server)
    with pytest.raises(SourceError) as failure:
        read(
            server,
            span=(0, 100) if how == "another range" else None,
            seconds=1.0 if how.startswith("hangs") else 20.0,
        )
    assert failure.value.retry, str(failure.value)
    assert not failure.value.changed
    assert "\n" not in str(failure.value)


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(server, monkeypatch):
    monkeypatch.setattr("gigaslice.roles.dataset_node.sources.http_client._SLOWEST", 1 << 20)

    def trickle(handler):
        server.plain(handler, 200, Content_Length="512000")
        while not server.stop.wait(0.1):
            handler.wfile.write(b"x")
            handler.wfile.flush()
        return True

    server.trick = file_only(trickle)
    begun = time.monotonic()
    with pytest.raises(SourceError, match="too slowly"):
        read(server, seconds=0.5)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    ("status", "header", "seconds"), [(503, "7", 7), (429, "0", 0), (503, "soon", 0), (503, "99999", 300)]
)
def test_a_busy_server_says_when(server, status, header, seconds):
    server.trick = file_only(lambda h: server.plain(h, status, Retry_After=header))
    with pytest.raises(SourceBusyError) as failure:
        read(server)
    assert failure.value.retry_after == seconds
    assert failure.value.retry


def test_a_date_is_a_time_to_retry_too(server):
    from email.utils import formatdate

    server.trick = file_only(
        lambda h: server.plain(h, 503, Retry_After=formatdate(time.time() + 60, usegmt=True))
    )
    with pytest.raises(SourceBusyError) as failure:
        read(server)
    assert 55 < failure.value.retry_after <= 60


def test_a_server_without_ranges_is_refused_for_pieces(server):
    server.trick = file_only(lambda h: server.plain(h, 200, server.files["/data/large"]))
    with pytest.raises(SourceError, match="no ranges"):
        read(server, span=(0, 100))


def test_a_compressed_answer_is_refused(server):
    server.trick = file_only(lambda h: server.plain(h, 200, b"x" * 512_000, Content_Encoding="gzip"))
    with pytest.raises(SourceError, match="compresses"):
        read(server)


SECRET = "Bearer hunter2-correct-horse"


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_said_and_not_shown(server, status):
    server.trick = file_only(lambda h: server.plain(h, status, SECRET.encode(), X=SECRET))
    with pytest.raises(SourceError, match="credentials") as failure:
        read(server, headers={"Authorization": SECRET})
    assert "hunter2" not in str(failure.value) + repr(failure.value)
    assert not failure.value.retry


def test_credentials_go_to_the_server_and_not_where_it_redirects(server):
    other = HostileFiles()
    other.files["/moved"] = server.files["/data/large"]
    other.etags["/moved"] = f'"{hash(server.files["/data/large"])}"'
    server.trick = file_only(lambda h: server.plain(h, 302, Location=f"http://localhost:{other.port}/moved"))
    try:
        assert read(server, headers={"Authorization": SECRET}) == server.files["/data/large"]
        assert any(one.get("Authorization") == SECRET for one in server.headers)
        assert other.headers
        assert all("Authorization" not in one for one in other.headers)
    finally:
        other.close()


@pytest.mark.parametrize("where", [
    "ftp://x/", "file:///etc/passwd", "//:0", "gopher:x", "http://127.0.0.1:{}\\@x/data/large",
    "http://u:p@127.0.0.1:{}/data/large", "http://127.1:{}/data/large", "http://2130706433:{}/data/large",
    "http://local%68ost:{}/data/large", "//127.0.0.1:{}\\x/../data/large", "\\\\127.0.0.1:{}/data/large",
    "http://127.0.0.1:{}\t/data/large",
])  # fmt: skip
def test_a_redirection_to_no_http_address_is_refused(server, where):
    server.trick = file_only(lambda h: server.plain(h, 302, Location=where.format(server.port)))
    with pytest.raises(SourceError, match="redirects to what is no HTTP address"):
        read(server)


def test_a_failure_that_is_no_sources_leaves_no_file_without_a_version(server, monkeypatch):
    server.index(versions=False)

    def fails(*_):
        raise RuntimeError("a mistake")

    monkeypatch.setattr(WebSource, "_with_version", fails)
    with pytest.raises(RuntimeError, match="a mistake"):
        listed(server)


def test_redirections_in_a_circle_end(server):
    server.trick = file_only(lambda h: server.plain(h, 307, Location="/data/large"))
    with pytest.raises(SourceError, match="circle"):
        read(server)


def test_addresses_of_the_node_are_refused(server):
    with pytest.raises(SourceError, match="address of the node"):
        listed(server, local=False)
    assert not server.asked


def test_a_hostile_server_costs_tries_and_no_wrong_byte(server, tmp_path, monkeypatch):
    """The first answer to every question is one of the faults; the image is right all the same.

    By question: of faults by turns one unit of four that are read at once may get all.
    """
    monkeypatch.setattr(engine, "backoff", lambda *_: 0.001)
    answers = Counter()

    def trick(path, handler):
        if handler.command == "HEAD" or path.endswith("json"):
            return False
        span = handler.headers.get("Range")
        answers[path, span] += 1
        if answers[path, span] > 1:
            return False
        return cut(server, handler) if span is None and len(answers) % 2 else server.plain(handler, 503)

    server.trick = trick

    async def work(source):
        listing = await source.list()
        plan = FlatLayout(listing)
        part = PartFiles.begin(tmp_path, plan.size)
        await fetch(plan, listing, source, part, bounds=FetchLimits(reads=4), unit_bytes=65536)
        image = part.image.read_bytes()
        for entry, (offset, size) in zip(
            (one for one in listing.entries if one.version), plan.extents(), strict=True
        ):
            assert image[offset : offset + size] == server.files["/data/" + entry.path.decode()]
        return True

    assert using(server, work)
    assert answers.total() == 2 * len(answers) > 50


def test_versions_that_an_index_has_are_weak_unless_they_are_etags(server):
    async def weak(source):
        await source.list()
        return source.weak

    assert not using(server, weak), "each file was asked for its ETag"
    server.index(versions=True)
    assert using(server, weak), "its author's word: the index is read again at the end"
    tag = b'"version": "\\"e\\""'
    server.files["/data/index.json"] = server.files["/data/index.json"].replace(b'"version": "1"', tag)
    assert not using(server, weak), "every answer is compared with it"


def test_ranges_of_one_file_are_of_one_version_though_an_index_says_another(server):
    server.index(versions=True)

    async def work(source):
        entry = next(one for one in (await source.list()).entries if one.path == b"large")
        source.read_into(entry, 0, 1000, lambda *_: None)
        source.read_into(entry, 1000, 1000, lambda *_: None)
        server.files["/data/large"] = bytes(512_000)
        with pytest.raises(SourceError, match="was changed") as caught:
            source.read_into(entry, 2000, 1000, lambda *_: None)
        assert caught.value.changed

    using(server, work)


@pytest.mark.parametrize("said", [True, False])
def test_an_index_that_is_too_long_is_refused_whether_its_length_is_said_or_not(server, said):
    body = server.files["/data/index.json"]

    def chunked(path, handler):
        if said or not path.endswith("index.json"):
            return False
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = True
        return True

    server.trick = chunked
    with pytest.raises(ListingError, match="100"):
        listed(server, index_bytes=100)
