"""A plugin behind a front in this process, as a kubelet meets it, without a kubelet."""

from __future__ import annotations

import asyncio
import contextlib

import grpc

from agent.deviceplugin.link import Link
from agent.deviceplugin.registration import Registration


@contextlib.asynccontextmanager
async def served(plugin, directory, name="p.sock", resource="gigaslice.io/vgpu-memory"):
    """A channel to PLUGIN at DIRECTORY/NAME."""
    link, stop = Link.open(), asyncio.Event()
    link.hello("error", "json")
    try:
        async with link.attached():
            work = asyncio.create_task(Registration(plugin, directory, name, resource, link).run(stop))
            while not (directory / name).exists():
                if work.done():
                    work.result()
                await asyncio.sleep(0.005)
            try:
                async with grpc.aio.insecure_channel(f"unix:{directory / name}") as channel:
                    yield channel
            finally:
                stop.set()
                await work
    finally:
        await asyncio.to_thread(link.close)
