"""Which event loop runs: uvloop where it is installed, else asyncio's own."""

import asyncio
import sys

import uvloop

from gigaslice.runtime.event_loop import run_quickly


async def loop():
    return asyncio.get_running_loop()


def test_uvloop_runs_where_it_is_installed():
    assert isinstance(run_quickly(loop()), uvloop.Loop)


def test_asyncio_runs_where_it_is_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert not isinstance(run_quickly(loop()), uvloop.Loop)
