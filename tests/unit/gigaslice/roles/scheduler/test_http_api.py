# SPDX-License-Identifier: Apache-2.0
"""What is answered to whom, beside what the placer decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gigaslice.roles.scheduler.http_api import HttpApi


@pytest.mark.parametrize("reason", [None, "the nodes have not all been seen yet"])
def test_a_service_that_cannot_decide_lives_and_is_not_ready(reason: str | None):
    nothing: Any = None
    api = HttpApi(nothing, nothing, nothing, lambda: reason)

    handlers = {(route.method, route.path): route.handler for route in api.routes()}

    async def ask(path: str) -> Any:
        return await handlers["GET", path](nothing)

    assert asyncio.run(ask("/healthz")).status == 200
    ready = asyncio.run(ask("/readyz"))
    assert ready.status == (503 if reason else 200)
    assert (reason or "ok").encode() in bytes(ready.body)
