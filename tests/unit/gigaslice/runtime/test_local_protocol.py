# SPDX-License-Identifier: Apache-2.0
"""Lines between programs of one node: what is answered, what is refused, and what another version makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import stat
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from gigaslice.core.errors import ConfigError, ControlError, MissingError
from gigaslice.runtime import local_protocol
from gigaslice.runtime.local_protocol import MOST_LINE_BYTES, NOT_A_MESSAGE, ask, conversation
from gigaslice.runtime.local_sockets import Answer, LineConnection, LineServer
from tests.fakes.eventually import until

RESIZE = "/gigaslice.control.v1.Control/Resize"
"""The call of `gigaslice resize` up to 0.1."""


async def echo(request: dict[str, Any], answer: Answer) -> None:
    """Answers a request with what it says, and refuses what it is told to refuse."""
    match request:
        case {"refuse": sentence}:
            raise ControlError(sentence)
        case {"mistake": sentence}:
            raise ConfigError([sentence])
        case {"twice": _}:
            await answer({"part": 1})
    await answer(request)


@contextlib.contextmanager
def served(path: Path) -> Iterator[None]:
    """A server on PATH, in a thread with a loop of its own."""
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        task = asyncio.create_task(LineServer(path, echo).run())
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(task.cancel) and None)
        await until(path.exists)
        ready.set()
        await asyncio.gather(task, return_exceptions=True)

    ready = threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield
    finally:
        stop[0]()
        thread.join(20)
        assert not path.exists()


@pytest.fixture
def path(short_dir: Path) -> Path:
    return short_dir / "a.sock"


def exchange(path: Path, sent: bytes) -> bytes:
    """Everything that comes back for what is SENT, until the server hangs up or has answered a line."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(path))
        with contextlib.suppress(BrokenPipeError):
            client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as answer, contextlib.suppress(ConnectionResetError):
            return answer.read()
    return b""


def test_an_answer_comes_back_and_only_the_owner_may_ask(path: Path) -> None:
    with served(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert ask(path, "server", {"x": 1}) == {"version": local_protocol.VERSION, "x": 1}
        answers = conversation(path, "server", {"twice": 1})
        assert [next(answers), next(answers)["twice"]] == [{"part": 1}, 1]


def test_a_refusal_is_an_error_of_its_kind(path: Path) -> None:
    with served(path):
        with pytest.raises(ControlError, match=r"^no room$"):
            ask(path, "server", {"refuse": "no\nroom"})
        with pytest.raises(ConfigError, match=r"^wrong$"):
            ask(path, "server", {"mistake": "wrong"})


def test_who_does_not_listen_is_named(path: Path) -> None:
    with pytest.raises(MissingError, match=r"no node agent listens on .*a\.sock"):
        ask(path, "node agent", {})
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with pytest.raises(MissingError, match="no node agent answers on"):
        ask(path, "node agent", {})


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\n",
        b"[]\n",
        b"{}\n",
        b"\xff\n",
        b'{"a": 1',
        b'{"a": "' + b"x" * (2 * MOST_LINE_BYTES) + b'"}\n',
    ],
    ids=["text", "list", "empty", "bytes", "cut short", "too long"],
)
def test_what_is_no_request_is_told_so_and_served_to_nobody(path: Path, sent: bytes) -> None:
    with served(path):
        answer = exchange(path, sent)
        if (
            len(sent) < MOST_LINE_BYTES or answer
        ):  # who sends too much may be cut off before the answer is read
            assert json.loads(answer) == {"error": NOT_A_MESSAGE}
        assert ask(path, "server", {"x": 1})["x"] == 1


# --- other versions ---------------------------------------------------------------------------------------------------


def test_a_request_without_a_version_is_of_the_first_and_a_newer_one_is_refused(path: Path) -> None:
    with served(path):
        assert json.loads(exchange(path, b'{"id": 3, "new field": []}\n')) == {"id": 3, "new field": []}
        for version in (b"2", b"0", b'"1"', b"[]", b"null"):
            answer = json.loads(exchange(path, b'{"id": 3, "version": ' + version + b"}\n"))
            assert answer["id"] == 3
            assert "use the same version of both" in answer["error"]


def test_the_older_command_is_hung_up_on_at_once(path: Path) -> None:
    with served(path), grpc.insecure_channel(f"unix:{path}") as channel:
        with pytest.raises(grpc.RpcError) as failure:
            channel.unary_unary(RESIZE)(b"", timeout=20)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert ask(path, "server", {"x": 1})["x"] == 1


def test_the_newer_command_says_that_the_agent_is_older(path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        with pytest.raises(ControlError, match="use the command of the node agent's own version"):
            ask(path, "node agent", {"resize": {}})
    finally:
        server.stop(None).wait()


# --- a connection that is kept ----------------------------------------------------------------------------------------


def kept(path: Path, story: Callable[[LineConnection], Awaitable[None]], serve: Any = echo) -> None:
    """Plays STORY with a connection to a server of SERVE."""

    async def main() -> None:
        connection = LineConnection(path, asyncio.Event().wait, most=65536, pause=0.02)
        works = [asyncio.create_task(one) for one in (LineServer(path, serve).run(), connection.run())]
        try:
            await until(lambda: connection.connected)
            await asyncio.wait_for(story(connection), 20)
        finally:
            for one in works:
                one.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    asyncio.run(main())


def test_answers_find_their_requests_in_any_order(path: Path) -> None:
    waiting: list[tuple[dict[str, Any], Answer]] = []

    async def backwards(request: dict[str, Any], answer: Answer) -> None:
        waiting.append((request, answer))
        if len(waiting) == 3:
            for one, way in reversed(waiting):
                await way(one)

    async def story(connection: LineConnection) -> None:
        answers = await asyncio.gather(*(connection.ask({"number": number}, 10) for number in range(3)))
        assert [one["number"] for one in answers] == [0, 1, 2]

    kept(path, story, backwards)


@pytest.mark.parametrize("sent", [{"id": []}, {"id": {}}, {"id": 99}, {"id": None}, {"x": "x" * 200_000}, {}])
def test_an_answer_that_is_none_ends_no_connection(path: Path, sent: dict[str, Any]) -> None:
    async def first(request: dict[str, Any], answer: Answer) -> None:
        await answer(sent)
        await answer(request)

    async def story(connection: LineConnection) -> None:
        assert (await connection.ask({"x": 1}, 10))["x"] == 1

    kept(path, story, first)


def test_without_a_server_asking_fails_at_once(path: Path) -> None:
    async def main() -> None:
        connection = LineConnection(path, asyncio.Event().wait)
        with pytest.raises(ConnectionResetError):
            await connection.ask({"x": 1}, 10)

    asyncio.run(main())
