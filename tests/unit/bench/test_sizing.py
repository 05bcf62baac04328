# SPDX-License-Identifier: Apache-2.0
"""What the sizing page's figures are counted by."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter

import aiohttp
import psutil

from tests.bench.sizing import CountingApiServer, Role, per_minute
from tests.fakes.kubeapi.server import TOKEN


async def ask(url: str, method: str, path: str, client: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "User-Agent": f"{client}/1"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(
            method, url + path, json={"metadata": {"name": "x"}} if method != "GET" else None
        ) as reply,
    ):
        await reply.read()


def test_requests_are_counted_by_client_and_kind() -> None:
    async def story() -> None:
        async with CountingApiServer("n") as api:
            await ask(api.url, "GET", "/api/v1/nodes", "one")
            before = Counter(api.counts)
            await ask(api.url, "GET", "/api/v1/nodes", "one")
            await ask(api.url, "GET", "/api/v1/pods?watch=1&timeoutSeconds=1", "one")
            await ask(api.url, "PATCH", "/api/v1/nodes/n", "one")
            await ask(api.url, "GET", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", "one")
            await ask(api.url, "POST", "/api/v1/namespaces/default/events", "two")
            assert api.since(before, "one") == {"read": 1, "watch": 1, "write": 1, "lease": 1}
            assert api.since(before, "two") == {"event": 1}

    asyncio.run(story())


def test_rates_are_of_a_minute() -> None:
    assert per_minute({"read": 3, "write": 1}, 30) == "read 6.0, write 2.0"
    assert per_minute({}, 30) == "none"


def test_a_role_is_its_process_with_those_that_it_has_started() -> None:
    own = Role("own", psutil.Process(os.getpid()))
    alone = own.memory()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        both = max(own.memory() for _ in range(3))
        child.communicate(b"\n")
    assert both > alone / 2 and own.peak() >= alone * 0.9 and own.cpu() > 0
