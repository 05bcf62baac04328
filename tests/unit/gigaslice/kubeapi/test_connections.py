# SPDX-License-Identifier: Apache-2.0
"""Connections that are kept: lost without a word, and with credentials that change meanwhile."""

import asyncio
import contextlib
import datetime
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gigaslice.kubeapi.access import Access
from gigaslice.kubeapi.client import ApiFailure, KubeClient
from gigaslice.roles.webhook.certificates import issue_certificates
from tests.fakes.connections import Connections
from tests.fakes.kubeapi import wire
from tests.fakes.kubeapi.raw import CHUNKED, chunk, serving, whole

ROOT = Path(__file__).resolve().parents[4]


def story_at(server, story, **options):
    async def main():
        async with KubeClient(server.access, "t", **options) as client:
            return await story(client)

    return asyncio.run(main())


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "PUT", "DELETE"])
def test_a_kept_connection_that_ends_before_an_answer_fails_no_request(method):
    """As of a load balancer that has forgotten it: the request goes out, and the connection ends."""

    def answer(target):
        return b"" if target == "/lost" and server.connections[-1] == 1 else whole({})

    async def story(client):
        await client.request("GET", "/first")
        await client.request(method, "/lost", body={"a": 1})

    with serving(answer, requests=2) as server:
        story_at(server, story)
        assert list(zip(server.targets, server.connections, strict=True)) == [
            ("/first", 1), ("/lost", 1), ("/lost", 2),
        ]  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_new_connection_that_ends_before_an_answer_is_a_failure_at_once(method):
    async def story(client):
        with pytest.raises(ApiFailure) as caught:
            await client.request(method, "/x")
        assert (caught.value.status, caught.value.sent) == (0, True)

    with serving(lambda target: b"") as server:
        story_at(server, story)
        assert len(server.targets) == 1


def test_a_request_is_repeated_once():
    answers = iter([whole({}), b"", b""])

    async def story(client):
        await client.request("GET", "/first")
        with pytest.raises(ApiFailure):
            await client.request("GET", "/lost")

    with serving(lambda target: next(answers), requests=2) as server:
        story_at(server, story)
        assert len(server.targets) == 3


def test_a_lost_connection_leaves_no_other_of_its_age():
    """A load balancer that restarts has lost all of them, and each would cost a request."""

    def answer(target):
        if target == "/together":
            time.sleep(0.3)
        return whole({}) if target == "/together" or server.connections[-1] > 4 else b""

    async def story(client):
        await asyncio.gather(*(client.request("GET", "/together") for _ in range(4)))
        for _ in range(3):
            await client.request("POST", "/later")

    with serving(answer, requests=5) as server:
        story_at(server, story)
        numbers = server.connections[4:]
    assert numbers[0] <= 4 and numbers[1:] == [5, 5, 5]


def test_what_is_sent_once_is_not_repeated():
    """A binding: another one on its way would be one more that may come later."""
    answers = iter([whole({}), b"", whole({})])

    async def story(client):
        await client.request("GET", "/first")
        with pytest.raises(ApiFailure) as caught:
            await client.request("POST", "/once", once=True)
        assert (caught.value.status, caught.value.sent) == (0, True)

    with serving(lambda target: next(answers), requests=2) as server:
        story_at(server, story)
        assert server.targets == ["/first", "/once"]


def test_an_answer_that_is_cut_is_not_asked_for_again():
    answers = iter([whole({}), CHUNKED + chunk(b"{")])

    async def story(client):
        await client.request("GET", "/first")
        with pytest.raises(ApiFailure):
            await client.request("GET", "/cut")

    with serving(lambda target: next(answers), requests=2) as server:
        story_at(server, story)
        assert server.targets == ["/first", "/cut"]


def test_a_stream_has_to_begin_as_soon_as_an_answer():
    """Else a server that hangs would be taken for one whose objects do not change."""

    over = threading.Event()

    def hangs(target):
        over.wait(60)
        return b""

    async def story(client):
        try:
            with pytest.raises(ApiFailure, match="no answer in time"):
                async with client.stream("GET", "/x", idle=300, longest=300):
                    pass
        finally:
            over.set()

    with serving(hangs) as server:
        story_at(server, story, answer=0.2)


def test_a_stream_may_be_silent_longer_than_an_answer():
    def slowly(target):
        yield CHUNKED + chunk(b"a")
        time.sleep(1.0)
        yield chunk(b"b") + b"0\r\n\r\n"

    async def story(client):
        async with client.stream("GET", "/x", idle=30, longest=30) as stream:
            return b"".join([part async for part in stream.chunks()])

    with serving(slowly) as server:
        assert story_at(server, story, answer=0.2) == b"ab"


def test_a_client_opens_itself_and_may_be_used_again_after_its_end():
    async def main():
        client = KubeClient(server.access, "t")
        await client.request("GET", "/x")
        async with client:
            await client.request("GET", "/x")
        await client.request("GET", "/x")
        await client.__aexit__(None, None, None)

    with serving(lambda target: whole({}), requests=9) as server:
        asyncio.run(main())
        assert server.connections == [1, 1, 2]


def test_what_half_a_surrogate_stands_in_is_sent():
    """A tenant's text may have one, and an event or a patch that quotes it must not end its sender."""
    bodies = []

    async def main():
        async def serve(reader, writer):
            bodies.append((await wire.read_request(reader)).body)
            await wire.send(writer, 200, {})

        connections = Connections(serve)
        access = Access("127.0.0.1", connections.listen(), tls=False)
        async with KubeClient(access, "t") as client:
            await client.patch("/x", {"message": "a \ud800 b", "count": 1 << 70})
        await connections.end()

    asyncio.run(main())
    assert bodies == [{"message": "a \ud800 b", "count": 1 << 70}]


@pytest.mark.parametrize("token", ["a token\n", "s3cr3t\r\nX: y", "s3cr3t\x00"])
def test_a_token_that_no_header_can_carry_is_a_failure_that_does_not_show_it(token):
    """A kubeconfig with such a token is refused; this is for whatever comes another way."""

    async def story(client):
        with pytest.raises(ApiFailure) as caught:
            await client.request("GET", "/x")
        error: BaseException | None = caught.value
        while error is not None:
            assert "s3cr3t" not in str(error) and "a token" not in str(error)
            error = error.__cause__ or error.__context__

    with serving(lambda target: whole({})) as server:
        access = Access("127.0.0.1", server.access.port, tls=False, token=token)

        async def main():
            async with KubeClient(access, "t") as client:
                await story(client)

        asyncio.run(main())
        assert not server.targets


def test_the_library_is_loaded_with_the_first_request():
    """It is a fifth of a second of a node agent's start, and eight MiB of one without an API server."""
    code = "import agent.roles.node, sys; print([name for name in sys.modules if name.startswith('aiohttp')])"
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert printed.stdout.strip() == "[]"


# --- credentials that change ------------------------------------------------------------------------------------


class TlsServer:
    """Answers {} to whoever trusts its certificate, which is made anew by `renew`. Notes what it was sent."""

    def __init__(self, folder):
        self.folder = folder
        self.tokens = []
        self.connections = 0
        self._server = None

    async def renew(self):
        if self._server is not None:
            self._server.close()
        certificates = issue_certificates("localhost", datetime.datetime.now(datetime.timezone.utc))
        (self.folder / "chain").write_bytes(certificates.chain)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.folder / "chain")
        self.authorities = certificates.bundle
        port = 0 if self._server is None else self.port
        self._server = await asyncio.start_server(self._serve, "localhost", port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader, writer):
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await wire.read_request(reader)
                self.tokens.append(request.headers["authorization"])
                await wire.send(writer, 200, {})
        writer.transport.abort()

    def close(self):
        self._server.close()


def test_renewed_files_are_used_for_the_next_request(tmp_path):
    async def main():
        server = TlsServer(tmp_path)
        await server.renew()
        authorities, token = tmp_path / "ca.crt", tmp_path / "token"

        def replace(path, content):  # as the kubelet and kubectl do
            (tmp_path / "new").write_bytes(content)
            (tmp_path / "new").replace(path)

        replace(authorities, server.authorities)
        replace(token, b"old")
        access = Access("localhost", server.port, ca_file=authorities, token_file=token)
        async with KubeClient(access, "t") as client:
            await client.get("/x")
            replace(token, b"new")
            await client.get("/x")
            assert (server.tokens, server.connections) == (["Bearer old", "Bearer new"], 1)
            await server.renew()
            replace(authorities, server.authorities)
            await client.get("/x")  # the connection of before trusts whom nobody trusts any more
            assert server.connections == 2
            await server.renew()
            (tmp_path / "ca.crt").write_bytes(b"half a certifi")
            with pytest.raises(ApiFailure):
                await client.get("/x")
            replace(authorities, server.authorities)
            await client.get("/x")
            assert server.connections == 3
        server.close()

    asyncio.run(main())


def test_a_certificate_that_is_not_trusted_is_said(tmp_path):
    async def main():
        server = TlsServer(tmp_path)
        await server.renew()
        async with KubeClient(Access("localhost", server.port), "t") as client:
            with pytest.raises(ApiFailure, match="not trusted") as caught:
                await client.get("/x")
            assert not caught.value.sent
        server.close()

    asyncio.run(main())
