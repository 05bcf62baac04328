# SPDX-License-Identifier: Apache-2.0
"""Which of the kubelet's APIs are served, and what happens where one cannot be."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from agent.config import Config
from agent.roles import serving
from gigaslice.core.errors import SocketError


class Registration:
    """The driver of claims, which fails FAILURES times before it is served."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.served = asyncio.Event()

    async def run(self, stop):
        if self.failures:
            self.failures -= 1
            raise SocketError("another program has the socket")
        self.served.set()
        await stop.wait()


@pytest.mark.parametrize("failures", [0, 2])
def test_claims_that_are_left_are_served_again_after_a_failure(tmp_path, monkeypatch, failures):
    """Their pods wait for the end of their claims, and the other API is what the agent is for."""

    async def lead(servicer, kubelet_dir, name, stop, link):
        await stop.wait()

    async def story():
        stop, registration = asyncio.Event(), Registration(failures)
        provider = SimpleNamespace(resource="gigaslice.io/vgpu-memory")
        parts = SimpleNamespace(
            providers=(),
            types=(),
            whole_gpus=(),
            servicer=SimpleNamespace(provider=provider),
            claims=SimpleNamespace(registration=registration),
        )
        config = Config(state_dir=tmp_path, api="device-plugin")
        running = asyncio.create_task(serving.serve(config, parts, None, stop, None))
        await asyncio.wait_for(registration.served.wait(), 20.0)
        stop.set()
        await asyncio.wait_for(running, 20.0)

    monkeypatch.setattr(serving, "serve_one", lead)
    monkeypatch.setattr(serving, "_any", lambda store, belongs: lambda: True)
    monkeypatch.setattr(serving, "_FIRST_PAUSE", 0.01, raising=False)
    asyncio.run(story())


def test_claims_are_served_for_a_while_after_the_last_has_ended(tmp_path, monkeypatch):
    """The agent before may have ended before it told the kubelet so."""

    async def lead(servicer, kubelet_dir, name, stop, link):
        await stop.wait()

    async def story():
        stop, registration = asyncio.Event(), Registration(0)
        ended = asyncio.Event()

        async def run(stop):
            registration.served.set()
            try:
                await stop.wait()
            finally:
                ended.set()

        registration.run = run
        parts = SimpleNamespace(
            providers=(),
            types=(),
            whole_gpus=(),
            servicer=SimpleNamespace(provider=SimpleNamespace(resource="gigaslice.io/vgpu-memory")),
            claims=SimpleNamespace(registration=registration),
        )
        config = Config(state_dir=tmp_path, api="device-plugin")
        running = asyncio.create_task(serving.serve(config, parts, None, stop, None))
        await asyncio.wait_for(registration.served.wait(), 20.0)
        await asyncio.wait_for(ended.wait(), 20.0)
        stop.set()
        await asyncio.wait_for(running, 20.0)

    monkeypatch.setattr(serving, "serve_one", lead)
    monkeypatch.setattr(serving, "_any", lambda store, belongs: lambda: False)
    monkeypatch.setattr(serving, "_REPEATED_SECONDS", 1.5)
    asyncio.run(story())
