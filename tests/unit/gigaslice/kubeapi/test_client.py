# SPDX-License-Identifier: Apache-2.0
import asyncio
import json

import pytest

from gigaslice.kubeapi.access import Access
from gigaslice.kubeapi.client import ApiFailure, KubeAnswer, KubeClient, object_path
from tests.fakes.kubeapi.replay import Replay, transcript
from tests.fakes.ports import free_port

BUSY = {"kind": "Status", "message": "too many requests", "reason": "TooManyRequests", "code": 429}


def line(status, reply, method="GET", path="/x", **more):
    return {"method": method, "path": path, "status": status, "reply": reply, **more}


def run(lines, story, **options):
    async def main():
        async with (
            Replay(lines) as server,
            KubeClient(server.access, "gigaslice-test/1", **options) as client,
        ):
            await story(client, server)
            return server

    return asyncio.run(main())


def test_requests_share_a_connection():
    async def story(client, server):
        for _ in range(5):
            assert await client.get("/x", {"a": "b c"}) == {"n": 1}

    server = run([line(200, {"n": 1})] * 5, story)
    assert server.connections == 1
    assert server.requests[0][:2] == ("GET", "/x?a=b+c")


def test_a_refusal_has_status_reason_and_the_servers_words():
    recorded = [one for one in transcript("api-lease") if one["status"] in (404, 409, 422, 400)]

    async def story(client, server):
        for one in recorded:
            with pytest.raises(ApiFailure) as caught:
                await client.request(one["method"], one["path"], body=one.get("body"))
            assert caught.value.status == one["status"]
            assert caught.value.reason == one["reply"]["reason"]
            assert one["reply"]["message"][:100] in str(caught.value)

    run(recorded, story)


def test_too_many_requests_is_waited_for_as_long_as_the_server_asks():
    async def story(client, server):
        assert await client.post("/x", {"a": 1}) == {"done": True}

    lines = [line(429, BUSY, "POST", reply_retry_after="1"), line(201, {"done": True}, "POST")]
    assert [body for _, _, body in run(lines, story).requests] == [{"a": 1}] * 2


def test_a_wait_that_is_too_long_or_not_wanted_is_an_error():
    async def story(client, server):
        for options in ({"seconds": 5.0}, {"patient": False}):
            with pytest.raises(ApiFailure) as caught:
                await client.request("GET", "/x", **options)
            assert (caught.value.status, caught.value.retry_after) == (429, 7)

    run([line(429, BUSY, reply_retry_after="7")] * 2, story)


def test_a_token_that_is_refused_is_not_tried_twice():
    async def story(client, server):
        with pytest.raises(ApiFailure) as caught:
            await client.get("/x")
        assert caught.value.status == 401
        assert len(server.requests) == 1

    run([line(401, {"message": "Unauthorized"})] * 2, story)


def test_no_server_is_an_error_and_nothing_was_sent():
    port = free_port()

    async def main():
        async with KubeClient(Access("127.0.0.1", port, tls=False), "t") as client:
            with pytest.raises(ApiFailure) as caught:
                await client.get("/x")
            assert caught.value.status == 0
            assert not caught.value.sent

    asyncio.run(main())


@pytest.mark.parametrize("silent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"])
def test_a_server_that_falls_silent_is_an_error_and_the_request_may_have_had_its_effect(silent):
    async def main():
        gone = asyncio.Event()

        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(silent)
            await writer.drain()
            await reader.read()
            writer.transport.abort()
            gone.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        access = Access("127.0.0.1", server.sockets[0].getsockname()[1], tls=False)
        async with server, KubeClient(access, "t") as client:
            with pytest.raises(ApiFailure) as caught:
                await client.request("GET", "/x", seconds=0.2)
            assert (caught.value.status, caught.value.sent) == (0, True)
            await asyncio.wait_for(gone.wait(), 10)

    asyncio.run(main())


def test_an_answer_that_is_too_large_is_not_kept():
    async def story(client, server):
        with pytest.raises(ApiFailure, match="more than 100 bytes"):
            await client.request("GET", "/x", most=100)

    run([line(200, {"x": "y" * 1000})], story)


def test_a_refusal_that_is_too_long_to_be_one_is_not_decoded():
    """As values it would take thirty times its length."""
    short, long = ({"message": "no", "x": "y" * length} for length in (1000, 100_000))
    assert str(KubeAnswer(403, json.dumps(short).encode()).failure("GET /x")) == "GET /x: 403 no"
    assert str(KubeAnswer(403, json.dumps(long).encode()).failure("GET /x")).startswith(
        'GET /x: 403 {"message": "no"'
    )


def test_a_redirect_is_not_followed_and_takes_no_token_along():
    async def story(client, server):
        with pytest.raises(ApiFailure) as caught:
            await client.get("/x")
        assert caught.value.status == 302

    run([line(302, {})], story)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_never_becomes_another_path(name):
    with pytest.raises(ApiFailure):
        object_path("api", name)
    assert object_path("a/b", "c?d") == "/a%2Fb/c%3Fd"
