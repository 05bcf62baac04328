# SPDX-License-Identifier: Apache-2.0
"""The server of /metrics, asked over real sockets on a free port."""

import asyncio
import json
import socket
import threading

import pytest

from gigaslice.runtime import logs
from gigaslice.runtime.http_server import Server
from tests.fakes.eventually import until
from tests.fakes.ports import free_port


def ask(*requests, metrics=lambda: lambda: b"x 1\n", ready=lambda: None, token=None):
    """The answers to raw REQUESTS, one connection each."""

    async def run():
        port = free_port()
        task = asyncio.create_task(Server(("127.0.0.1", port), metrics, ready, token).run())
        answers = []
        for request in requests:
            for _ in range(500):
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    break
                except OSError:
                    await asyncio.sleep(0.01)
            writer.write(request)
            answers.append((await reader.read()).decode())
            writer.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return answers

    return asyncio.run(run())


def get(path):
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def test_metrics_and_health():
    metrics, health, ready, other = ask(
        get("/metrics"), get("/healthz?x=1"), get("/readyz"), get("/etc/passwd")
    )
    assert metrics.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
    assert metrics.endswith("\r\n\r\nx 1\n")
    assert health.startswith("HTTP/1.1 200") and ready.startswith("HTTP/1.1 200")
    assert other.startswith("HTTP/1.1 404")


def test_not_ready_says_why():
    (answer,) = ask(get("/readyz"), ready=lambda: "not registered")
    assert answer.startswith("HTTP/1.1 503")
    assert answer.endswith("not registered\n")


@pytest.mark.parametrize(
    "request_", [b"\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"\xff\xfe\r\n\r\n", b"GET\r\n\r\n"]
)
def test_nonsense_is_answered_and_the_next_one_served(request_):
    first, second = ask(request_, get("/healthz"))
    assert first.startswith("HTTP/1.1 4")
    assert second.startswith("HTTP/1.1 200")


def test_a_request_without_end_is_cut_off():
    first, second = ask(b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 100_000, get("/healthz"))
    assert "200 OK" not in first
    assert second.startswith("HTTP/1.1 200")


def test_head_has_no_body():
    head, plain = ask(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n", get("/healthz"))
    assert head.startswith("HTTP/1.1 200 OK\r\n") and head.endswith("\r\n\r\n")
    assert "Content-Length: 3\r\n" in head and plain == head + "ok\n"


def test_only_get_is_served():
    posted, old = ask(
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi", b"GET /healthz HTTP/1.0\r\n\r\n"
    )
    assert posted.startswith("HTTP/1.1 405") and old.startswith("HTTP/1.1 200")


def test_a_mistake_in_a_metric_ends_nothing():
    def broken():
        raise RuntimeError("x")

    first, second = ask(get("/metrics"), get("/healthz"), metrics=broken)
    assert first.startswith("HTTP/1.1 500")
    assert second.startswith("HTTP/1.1 200")


@pytest.fixture
def log():
    """A log on standard error."""
    logs.set_up("info", "json")


@pytest.mark.usefixtures("log")
def test_an_address_that_is_taken_is_said_once_and_tried_again(capsys):

    async def run(port):
        server = Server(("127.0.0.1", port), lambda: lambda: b"", lambda: None, retry_seconds=0.01)
        task = asyncio.create_task(server.run())
        await until(lambda: "metrics cannot be served" in text_so_far())
        await asyncio.sleep(0.1)  # in which it tries again
        assert not task.done()
        taken.close()
        await until(lambda: "metrics served" in text_so_far())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return text_so_far()

    said = []

    def text_so_far():
        said.append(capsys.readouterr().err)
        return "".join(said)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        text = asyncio.run(run(taken.getsockname()[1]))
    events = [json.loads(line)["event"] for line in text.splitlines()]
    assert events == ["metrics cannot be served", "metrics served"]


def test_switched_off_it_waits():
    async def run():
        task = asyncio.create_task(Server(None, lambda: lambda: b"", lambda: None).run())
        await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_a_client_that_reads_nothing_is_let_go():
    """Closing waits until everything was taken: connections would stay, and under Python 3.12 the agent with them."""

    async def run():
        address = ("127.0.0.1", free_port())
        much = b"x" * (32 << 20)  # more than kernels take on both sides
        server = Server(address, lambda: lambda: much, lambda: None, client_seconds=0.2)
        task = asyncio.create_task(server.run())
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            client.setblocking(False)
            for _ in range(500):
                try:
                    await asyncio.get_running_loop().sock_connect(client, address)
                    break
                except OSError:
                    await asyncio.sleep(0.01)
            client.send(get("/metrics"))
            for _ in range(500):
                if len(asyncio.all_tasks()) == 3:
                    break
                await asyncio.sleep(0.01)
            for _ in range(500):
                if len(asyncio.all_tasks()) == 2:
                    break
                await asyncio.sleep(0.01)
            left = asyncio.all_tasks() - {task, asyncio.current_task()}
        task.cancel()
        await asyncio.gather(task, *left, return_exceptions=True)
        return left

    assert not asyncio.run(run())


def test_clients_that_say_nothing_do_not_keep_a_probe_out():
    """The kubelet ends an agent whose probes are not answered; any pod can open connections."""

    async def run():
        address = ("127.0.0.1", free_port())
        server = Server(address, lambda: lambda: b"", lambda: None)
        task = asyncio.create_task(server.run())
        silent, answers = [], []
        for _ in range(500):
            try:
                silent.append(await asyncio.open_connection(*address))
                break
            except OSError:
                await asyncio.sleep(0.01)
        for _ in range(40):
            silent.append(await asyncio.open_connection(*address))
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(get("/healthz"))
            answers.append(await reader.read())
            writer.close()
        served = len(server._talks)
        for _, writer in silent:
            writer.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return answers, served

    answers, served = asyncio.run(run())
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert served <= 16


def test_clients_that_say_nothing_do_not_end_an_answer_that_takes_long():
    """A scrape of many pods takes longer than sixteen connections do."""
    begun, go = threading.Event(), threading.Event()

    def text():
        begun.set()
        assert go.wait(30)
        return b"x 1\n"

    async def run():
        address = ("127.0.0.1", free_port())
        task = asyncio.create_task(Server(address, lambda: text, lambda: None).run())
        for _ in range(500):
            try:
                reader, scrape = await asyncio.open_connection(*address)
                break
            except OSError:
                await asyncio.sleep(0.01)
        scrape.write(get("/metrics"))
        await asyncio.to_thread(begun.wait, 30)
        silent = [await asyncio.open_connection(*address) for _ in range(40)]
        other, probe = await asyncio.open_connection(*address)
        probe.write(get("/healthz"))
        answers = [await other.read()]
        go.set()
        answers.append(await reader.read())
        for writer in (scrape, probe, *(writer for _, writer in silent)):
            writer.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return answers

    assert all(answer.startswith(b"HTTP/1.1 200") for answer in asyncio.run(run()))


# --- who may read the metrics -----------------------------------------------------------------------------------------


def with_token(value, path="/metrics"):
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{value}\r\n\r\n".encode("latin-1")


def test_with_a_token_only_who_knows_it_reads_the_metrics(tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    right = [with_token("Authorization: Bearer s3cret"), with_token("authorization:  bearer  s3cret ")]
    wrong = [
        get("/metrics"), with_token("Authorization: Bearer s3cre"), with_token("Authorization: Bearer "),
        with_token("Authorization: Basic s3cret"), with_token("Authorization: s3cret"),
        with_token("Authorization: Bearer \xff"), with_token("X: Bearer s3cret"),
        with_token("Authorization: Bearer s3cret\r\nAuthorization: Bearer s3cret"),
    ]  # fmt: skip
    answers = ask(*right, *wrong, get("/healthz"), get("/readyz"), token=tmp_path / "token")
    assert [one.split(" ")[1] for one in answers] == ["200"] * 2 + ["401"] * len(wrong) + ["200"] * 2
    assert "WWW-Authenticate: Bearer" in answers[2] and "x 1" not in "".join(answers[2:10])
    assert "s3cret" not in "".join(answers)


def test_a_renewed_token_counts_at_once(tmp_path):
    (tmp_path / "token").write_text("new")
    answers = ask(
        with_token("Authorization: Bearer old"),
        with_token("Authorization: Bearer new"),
        token=tmp_path / "token",
    )
    assert [one.split(" ")[1] for one in answers] == ["401", "200"]


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_without_a_token_to_compare_nobody_reads_them(tmp_path, content):
    if content is not None:
        (tmp_path / "token").write_text(content)
    asked = [get("/metrics"), with_token("Authorization: Bearer "), with_token("Authorization: Bearer x")]
    answers = ask(*asked, get("/healthz"), token=tmp_path / "token")
    assert [one.split(" ")[1] for one in answers] == ["503"] * 3 + ["200"]
