# SPDX-License-Identifier: Apache-2.0
"""The program that places pods for the figures tries again what the scheduler cannot decide on yet."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from tests.bench.scheduler import talk
from tests.fakes.kubeapi import ApiServer

REASON = "this replica has just taken over and reads the pods"


class Service:
    """Answers as the scheduler does; the calls whose numbers are in REFUSED with 503."""

    def __init__(self, refused: range) -> None:
        self.refused = refused
        self.calls: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        self.calls.append(verb)
        body = await request.json()
        if len(self.calls) in self.refused:
            return web.Response(status=503, text=f"{REASON}\n")
        answers = {"filter": {"NodeNames": body.get("NodeNames", [])[-1:]}, "bind": {"Error": ""}}
        return web.json_response(answers[verb])


async def placed(service: Service, patience: float = 60.0) -> dict[str, list[float]]:
    application = web.Application()
    application.router.add_post("/{verb}", service.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with ApiServer() as api, aiohttp.ClientSession() as session:
            host, port = runner.addresses[0]
            return await talk(
                api, session, f"http://{host}:{port}", 3, range(2), patience=patience, pause=0.01
            )
    finally:
        await runner.cleanup()


def test_a_pod_that_is_put_off_is_tried_again_from_its_filter(capsys: pytest.CaptureFixture[str]) -> None:
    service = Service(refused=range(2, 5))
    taken = asyncio.run(placed(service))
    assert service.calls == ["filter", "bind", "filter", "filter", "filter", "bind", "filter", "bind"]
    assert [len(seconds) for seconds in taken.values()] == [3, 0, 2], "what was answered counts"
    assert f"tried again 3 times: {REASON}\n" in capsys.readouterr().err


def test_a_service_that_never_decides_ends_the_program_with_its_words() -> None:
    with pytest.raises(SystemExit, match=f"not placed after 0 s: {REASON}"):
        asyncio.run(placed(Service(refused=range(100)), patience=0.1))
