"""The webhook's endpoints over HTTP."""

from __future__ import annotations

import asyncio
import io
import json

import aiohttp
from aiohttp import web

from gigaslice.webhook.server import routes
from tests.unit.gigaslice.webhook.pods import facts, h100, pod
from tests.unit.gigaslice.webhook.test_decisions import question


def posted(known, *bodies):
    """Status and answer of each body posted to /mutate and then to /validate, and what was counted."""
    counted = []

    async def run():
        app = web.Application()
        app.add_routes(routes(lambda: known, lambda path, allowed: counted.append((path, allowed))))
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        found = []
        async with aiohttp.ClientSession() as session:
            for path in ("mutate", "validate"):
                for body in bodies:
                    content = body if isinstance(body, bytes) else json.dumps(body).encode()
                    async with session.post(
                        f"http://127.0.0.1:{port}/{path}", data=io.BytesIO(content)
                    ) as reply:
                        document = await reply.json() if reply.status == 200 else await reply.text()
                        found.append((reply.status, document))
        await runner.cleanup()
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
