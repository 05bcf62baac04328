# SPDX-License-Identifier: Apache-2.0
"""The agents are asked what pods use: only while somebody looks, only so many, and none of them can hold it up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gigaslice.core.views.usage import USAGE_METRICS
from gigaslice.kubeapi.client import KubeClient
from gigaslice.roles.controller import agent_usage
from gigaslice.roles.controller.agent_usage import AgentUsage, metrics_address
from tests.fakes.eventually import until
from tests.fakes.kubeapi import ApiServer
from tests.unit.decoding.seeds import AGENT_POD

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
KEY = ("GPU-1", "team", "p")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def text(size: int) -> str:
    return (
        f'{USAGE_METRICS[0]}{{node="n",gpu_uuid="GPU-1",namespace="team",pod="p",container="c"}} {size}.0\n'
    )


def agent_pod(name: str, port: int, node: str = "", phase: str = "Running", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "gigaslice",
            "labels": {"app.kubernetes.io/component": "node"},
            **more,
        },
        "spec": {
            "nodeName": node or name,
            "containers": [{"name": "node", "ports": [{"name": "metrics", "containerPort": port}]}],
        },
        "status": {"phase": phase, "podIP": "127.0.0.1"},
    }


@contextlib.asynccontextmanager
async def agent(handler: Handler) -> AsyncIterator[int]:
    """The port of an agent that answers by HANDLER."""
    application = web.Application()
    application.add_routes([web.get("/metrics", handler)])
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def asking(
    api: ApiServer, token_file: Path | None = None, clock: Clock | None = None
) -> AsyncIterator[AgentUsage]:
    async with KubeClient(api.access, "test") as client:
        usage = AgentUsage(client, "gigaslice", token_file, clock=clock or Clock(), pass_seconds=0.01)
        task = asyncio.create_task(usage.run())
        try:
            yield usage
        finally:
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def used(usage: AgentUsage) -> dict[str, dict[tuple[str, str, str], int]]:
    return {node: dict(one.used) for node, one in usage.nodes().items()}


async def answers(body: str, status: int = 200) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(text=body, status=status)

    return handle


def test_agents_are_asked_only_while_somebody_looks() -> None:
    async def main() -> None:
        clock, asked = Clock(), 0

        async def handle(_: web.Request) -> web.StreamResponse:
            nonlocal asked
            asked += 1
            if asked == 5:
                clock.now += 61  # in the middle of a pass, which is the last one
            return web.Response(text=text(7))

        async with ApiServer() as api, agent(handle) as port, asking(api, clock=clock) as usage:
            api.put("pods", agent_pod("n1", port))
            await asyncio.sleep(0.1)
            assert (asked, api.asked("GET", "/pods")) == (0, 0)
            usage.want()
            await until(lambda: used(usage) == {"n1": {KEY: 7}})
            await until(lambda: asked == 5)
            await asyncio.sleep(0.2)
            assert asked == 5
            assert used(usage) == {"n1": {KEY: 7}}
            clock.now += 301
            assert used(usage) == {}, "too old"
            usage.want()
            await until(lambda: used(usage) == {"n1": {KEY: 7}})

    asyncio.run(main())


def test_the_token_is_sent_to_running_agents_of_the_own_namespace_alone(tmp_path: Path) -> None:
    async def main() -> None:
        tokens = []

        async def handle(request: web.Request) -> web.StreamResponse:
            tokens.append(request.headers.get("Authorization"))
            return web.Response(text=text(7))

        async def trap(request: web.Request) -> web.StreamResponse:
            tokens.append("another one")
            return web.Response(text=text(9))

        (tmp_path / "token").write_text("secret\n")
        async with ApiServer() as api, agent(handle) as port, agent(trap) as other:
            api.put("pods", agent_pod("n1", port))
            foreign = agent_pod("n2", other)
            foreign["metadata"]["namespace"] = "tenant"
            api.put("pods", foreign)
            api.put("pods", agent_pod("n3", other, phase="Pending"))
            api.put("pods", agent_pod("n4", other, deletionTimestamp="2026-11-22T00:00:00Z"))
            api.put("pods", agent_pod("n5", other, labels={"app.kubernetes.io/component": "dataset"}))
            async with asking(api, tmp_path / "token") as usage:
                usage.want()
                await until(lambda: usage.revision > 2)
                assert used(usage) == {"n1": {KEY: 7}}
        assert set(tokens) == {"Bearer secret"}

    asyncio.run(main())


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        while True:
            await response.write(b"x" * 65536)
    return response


async def _silent(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def _elsewhere(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound(f"http://127.0.0.1:{request.query.get('port', '1')}/metrics")


async def _refused(request: web.Request) -> web.StreamResponse:
    return web.Response(text=text(9), status=401)


@pytest.mark.parametrize("handler", [_endless, _silent, _elsewhere, _refused])
def test_an_agent_that_does_not_answer_well_is_not_measured_and_holds_up_no_other(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_usage, "_ANSWER", agent_usage.ClientTimeout(total=0.5))

    async def main() -> None:
        async with ApiServer() as api, agent(await answers(text(7))) as port, agent(handler) as bad:
            for number in range(20):
                api.put("pods", agent_pod(f"bad{number:02}", bad))
            api.put("pods", agent_pod("good", port))
            async with asking(api) as usage:
                usage.want()
                await until(lambda: usage.revision > 0)
                await until(lambda: used(usage))  # at once, but where the good one is late itself
                assert used(usage) == {"good": {KEY: 7}}

    asyncio.run(main())


def test_an_answer_that_ends_takes_the_old_numbers_with_it() -> None:
    async def main() -> None:
        status = [200]

        async def handle(_: web.Request) -> web.StreamResponse:
            return web.Response(text=text(7), status=status[0])

        async with ApiServer() as api, agent(handle) as port, asking(api) as usage:
            api.put("pods", agent_pod("n1", port))
            usage.want()
            await until(lambda: used(usage) == {"n1": {KEY: 7}})
            status[0] = 503
            await until(lambda: used(usage) == {})

    asyncio.run(main())


def test_beside_a_standby_the_agent_that_serves_is_heard() -> None:
    async def main() -> None:
        standby = await answers(f'gigaslice_standby{{node="n1"}} 1.0\n{text(0)}')
        async with ApiServer() as api, agent(standby) as waits, agent(await answers(text(7))) as port:
            api.put("pods", agent_pod("a", waits, node="n1"))
            api.put("pods", agent_pod("b", port, node="n1"))
            async with asking(api) as usage:
                usage.want()
                await until(lambda: usage.revision > 0)
                assert used(usage) == {"n1": {KEY: 7}}

    asyncio.run(main())


def test_of_many_agents_a_pass_asks_a_part_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_usage, "_PER_PASS", 3)

    async def main() -> None:
        async with ApiServer() as api, agent(await answers(text(7))) as port:
            for number in range(7):
                api.put("pods", agent_pod(f"n{number}", port))
            async with asking(api) as usage:
                usage._pass_seconds = 60
                usage.want()
                await until(lambda: usage.revision == 1)
                assert sorted(used(usage)) == ["n0", "n1", "n2"]
                assert [node for node, _ in usage._turn()] == ["n3", "n4", "n5"]
                assert [node for node, _ in usage._turn()] == ["n6", "n0", "n1"]

    asyncio.run(main())


def test_an_api_server_or_token_that_cannot_be_read_is_survived(tmp_path: Path) -> None:
    async def main() -> None:
        async with ApiServer() as api, agent(await answers(text(7))) as port:
            api.put("pods", agent_pod("n1", port))
            api.denial = 403
            async with asking(api, tmp_path / "token") as usage:
                usage.want()
                await until(lambda: api.asked("GET", "/pods") > 2)
                assert used(usage) == {}
                api.denial = 0
                await asyncio.sleep(0.1)
                assert used(usage) == {}
                (tmp_path / "token").write_text("x")
                await until(lambda: used(usage) == {"n1": {KEY: 7}})

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "url"),
    [
        ({}, "http://10.0.0.7:9445/metrics"),
        ({"status": {"phase": "Running", "podIP": "fd00::7"}}, "http://[fd00::7]:9445/metrics"),
        ({"status": {"phase": "Running", "podIP": "x@evil/"}}, ""),
        ({"status": {"phase": "Running"}}, ""),
        ({"status": {"phase": "Pending", "podIP": "10.0.0.7"}}, ""),
        ({"spec": {"nodeName": "n", "containers": [{"ports": [{"name": "x", "containerPort": 1}]}]}}, ""),
        (
            {
                "spec": {
                    "nodeName": "n",
                    "containers": [{"ports": [{"name": "metrics", "containerPort": "1"}]}],
                }
            },
            "",
        ),
        ({"spec": 7}, ""),
    ],
)
def test_the_address_of_an_agent_is_that_of_its_pod(change: dict[str, Any], url: str) -> None:
    assert metrics_address({**AGENT_POD, **change}) == url
