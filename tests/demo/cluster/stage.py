"""Puts the cluster up and takes it down: three nodes, the API server, the scheduler, the controller."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout

from gigaslice.core.cluster.names import INVENTORY
from tests.demo import clients
from tests.demo.cluster.control import ControlPlane
from tests.demo.cluster.nodes import SimulatedNode
from tests.demo.cluster.pods import Pods
from tests.demo.cluster.waiting import wait
from tests.demo.report import Report
from tests.demo.supervise import PARENT
from tests.fakes.kubeapi import ApiServer
from tests.fakes.scheduler import SchedulerStandIn

MACHINES = {"node-h200": "dgx-h200", "node-l4": "two-24g", "node-l40s": "pcie-8"}


@dataclass
class Stage:
    """A cluster that is up."""

    directory: Path
    api: ApiServer
    plane: ControlPlane
    nodes: dict[str, SimulatedNode]
    pods: Pods
    session: ClientSession


@contextlib.asynccontextmanager
async def stage(report: Report, prefix: str) -> AsyncIterator[Stage]:
    """The cluster; whatever happens inside, nothing of it is left behind."""
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=PARENT))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        report.step("compiling the program that pods run")
        program = await asyncio.to_thread(clients.build, directory)
        api = await stack.enter_async_context(ApiServer())
        kubeconfig = api.kubeconfig(directory)
        report.step("starting scheduler, controller and webhook")
        plane = ControlPlane(directory, api, kubeconfig)
        stack.enter_context(plane.running())
        nodes = {
            name: SimulatedNode(directory / name, name, machine, kubeconfig)
            for name, machine in MACHINES.items()
        }
        report.step(f"starting the agents and dataset services of {', '.join(nodes)}")
        for node in nodes.values():
            await stack.enter_async_context(node.running(api))
        session = await stack.enter_async_context(ClientSession(timeout=ClientTimeout(total=10)))
        pods = Pods(api, nodes, plane, program)
        stack.push_async_callback(pods.close)
        for node in nodes.values():
            await node.join(api)
        await wait(
            lambda: all(INVENTORY in one["metadata"]["annotations"] for one in api.all("nodes")),
            "every node says what it has",
        )
        await plane.ready(session)
        await wait(lambda: len(api.all("resourceclasses")) == len(nodes), "there is a class for each model")
        await stack.enter_async_context(SchedulerStandIn(api, f"http://127.0.0.1:{plane.scheduler_port}"))
        yield Stage(directory, api, plane, nodes, pods, session)
