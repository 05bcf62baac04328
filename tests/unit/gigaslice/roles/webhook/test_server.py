# SPDX-License-Identifier: Apache-2.0
"""The webhook's endpoints over HTTP."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import zlib

import aiohttp
import pytest

from gigaslice.roles.webhook.server import routes
from gigaslice.runtime import web_servers
from tests.unit.gigaslice.roles.webhook.pods import facts, h100, pod
from tests.unit.gigaslice.roles.webhook.test_decisions import question


def posted(known, *bodies):
    """Status and answer of each body posted to /mutate and then to /validate, and what was counted."""
    counted = []

    async def run():
        found = []
        served_routes = routes(lambda: known, lambda path, allowed: counted.append((path, allowed)))
        async with web_servers.served(served_routes) as listener, aiohttp.ClientSession() as session:
            ((_, port), *_) = await listener.start("127.0.0.1", 0)
            for path in ("mutate", "validate"):
                for body in bodies:
                    content = body if isinstance(body, bytes) else json.dumps(body).encode()
                    async with session.post(
                        f"http://127.0.0.1:{port}/{path}", data=io.BytesIO(content)
                    ) as reply:
                        document = await reply.json() if reply.status == 200 else await reply.text()
                        found.append((reply.status, document))
        return found

    return asyncio.run(run()), counted


def test_pods_are_completed_and_checked():
    found, counted = posted(facts(), question(pod(h100())), question(pod(h100(0)), "u-2"))
    allowed = [(document["response"]["uid"], document["response"]["allowed"]) for _, document in found]
    assert allowed == [("u-1", True), ("u-2", False), ("u-1", False), ("u-2", False)]
    assert "patch" in found[0][1]["response"] and "patch" not in found[2][1]["response"]
    assert counted == [("/mutate", True), ("/mutate", False), ("/validate", False), ("/validate", False)]


def test_nothing_is_decided_before_the_cluster_is_known():
    found, counted = posted(facts(synced=False), question(pod(h100())))
    assert [status for status, _ in found] == [503, 503] and not counted


def test_nonsense_is_refused_whatever_its_size():
    found, _ = posted(facts(), b"{", b"[]", b"[" * 100_000, b" " * (9 << 20))
    assert {status for status, _ in found} == {400}


def served(send, known=None):
    """What SEND gets of a server, for which it is given the port."""

    async def run():
        async with web_servers.served(routes(lambda: known or facts())) as listener:
            ((_, port), *_) = await listener.start("127.0.0.1", 0)
            return await send(port)

    return asyncio.run(run())


async def replied(port, request):
    """The status line and the body of the reply to a request as it goes over the wire."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    reply = await reader.read()
    writer.close()
    head, _, body = reply.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], body


def lines(capsys):
    """What was logged."""
    return "".join(capsys.readouterr())


REVIEW = json.dumps(question(pod(h100()))).encode()
_HEAD = b"POST /mutate HTTP/1.1\r\nHost: webhook\r\nConnection: close\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("encoding, body", [
    (b"gzip", gzip.compress(REVIEW)), (b"gzip", REVIEW), (b"gzip", b""), (b"deflate", zlib.compress(REVIEW)),
    (b"br", REVIEW), (b"identity, gzip", REVIEW), (b"\x1b[31m", REVIEW),
])  # fmt: skip
def test_a_packed_body_is_refused_with_a_sentence(encoding, body, capsys):
    length = b"Content-Encoding: %s\r\nContent-Length: %d\r\n\r\n" % (encoding, len(body))
    status, text = served(lambda port: replied(port, _HEAD + length + body))
    assert b" 400 " in status and b"\x1b" not in text
    assert b"is not read; send the JSON as it is" in text or encoding == b"\x1b[31m"
    assert not lines(capsys)


@pytest.mark.parametrize("request_", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"POST /mutate\r\n\r\n", b"G\x00T / HTTP/1.1\r\n\r\n",
    _HEAD + b"Content-Length: many\r\n\r\n", _HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n{}{}",
    _HEAD + b"X: " + b"y" * 70000 + b"\r\n\r\n", _CHUNKED + b"\r\nzz\r\n{}\r\n0\r\n\r\n",
    _CHUNKED + b"\r\n2\r\n{}oops\r\n0\r\n\r\n",
])  # fmt: skip
def test_what_is_no_http_is_refused_and_no_line_of_the_log(request_, capsys, caplog):
    status, _ = served(lambda port: replied(port, request_))
    assert b" 400 " in status and not lines(capsys) and not caplog.records


def test_a_client_that_goes_in_the_middle_of_its_body_is_no_line_of_the_log(capsys, caplog):
    async def leave(port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_HEAD + b"Content-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        return await replied(port, _HEAD + b"Content-Length: %d\r\n\r\n" % len(REVIEW) + REVIEW)

    status, _ = served(leave)
    assert status == b"HTTP/1.1 200 OK" and not lines(capsys) and not caplog.records


def test_a_failure_of_ours_is_logged_and_answered(capsys):
    class Broken:
        @property
        def synced(self):
            raise RuntimeError("broken")

    body = _HEAD + b"Content-Length: %d\r\n\r\n" % len(REVIEW) + REVIEW
    status, text = served(lambda port: replied(port, body), Broken())
    assert status.startswith(b"HTTP/1.1 500") and b"broken" not in text
    assert "request failed" in lines(capsys)
