# SPDX-License-Identifier: Apache-2.0
"""Puts the cluster up and takes it down: control plane, scheduler and controller, three nodes."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout

from gigaslice.kubeapi.access import find_access
from gigaslice.kubeapi.client import KubeClient
from tests.cluster.control_plane import find_binaries
from tests.demo import clients
from tests.demo.clients import DemoError
from tests.demo.cluster.control_plane import ControlPlane, Ports
from tests.demo.cluster.nodes import SimulatedNode
from tests.demo.cluster.objects import Objects
from tests.demo.cluster.pods import Pods
from tests.demo.cluster.processes import ClusterProcesses
from tests.demo.cluster.real import RealControlPlane
from tests.demo.cluster.stand_ins import StandIns
from tests.demo.cluster.waiting import wait
from tests.demo.report import Report
from tests.demo.supervise import PARENT
from tests.steps import each

MACHINES = {"node-h200": "dgx-h200", "node-l4": "two-24g", "node-l40s": "pcie-8"}
SPACES = ("research", "team-a", "serving")
CHOICES = ("auto", "real", "stand-ins")
"""Which control plane may be asked for: auto takes a real one where its binaries are at hand."""


@dataclass
class Stage:
    """A cluster that is up."""

    directory: Path
    objects: Objects
    plane: ControlPlane
    processes: ClusterProcesses
    nodes: dict[str, SimulatedNode]
    pods: Pods
    session: ClientSession


def missing(wanted: str) -> str:
    """Why WANTED, one of CHOICES, cannot be had; empty where it can."""
    binaries = find_binaries()
    return binaries if wanted == "real" and isinstance(binaries, str) else ""


def chosen(wanted: str, directory: Path, ports: Ports) -> ControlPlane:
    """The control plane that WANTED, one of CHOICES, stands for on this machine. Raises DemoError."""
    binaries = find_binaries()
    if reason := missing(wanted):
        raise DemoError(reason)
    if wanted == "stand-ins":
        return StandIns(
            directory, ports, "asked for; without CONTROL_PLANE=stand-ins, real ones where they are"
        )
    if isinstance(binaries, str):
        return StandIns(directory, ports, binaries)
    return RealControlPlane(directory, ports, binaries, "CONTROL_PLANE=stand-ins runs it without them")


@contextlib.asynccontextmanager
async def stage(report: Report, prefix: str, wanted: str) -> AsyncIterator[Stage]:
    """The cluster; whatever happens inside, nothing of it is left behind. WANTED: one of CHOICES."""
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=PARENT))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        ports = Ports()
        plane = chosen(wanted, directory, ports)
        report.step(f"control plane: {plane.description}")
        report.step("compiling the program that pods run")
        program = await asyncio.to_thread(clients.build, directory)
        report.step("starting the control plane, and installing the chart in it")
        await stack.enter_async_context(plane.running())
        await plane.install()
        objects = await stack.enter_async_context(_followed(plane))
        for name in SPACES:
            await objects.create(
                "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            )
        report.step("starting scheduler, controller and webhook")
        processes = ClusterProcesses(directory, plane, ports)
        await stack.enter_async_context(processes.running())
        nodes = {
            name: SimulatedNode(directory / name, name, machine, objects)
            for name, machine in MACHINES.items()
        }
        report.step(f"starting the agents and dataset services of {', '.join(nodes)}")
        for node in each(nodes.values(), lambda node: f"starting {node.name}"):
            await stack.enter_async_context(node.running(plane))
        session = await stack.enter_async_context(ClientSession(timeout=ClientTimeout(total=10)))
        pods = Pods(objects, nodes, plane, program)
        stack.push_async_callback(pods.close)
        for node in nodes.values():
            await node.join()
        await wait(lambda: len(objects.inventories()) == len(nodes), "every node says what it has")
        await processes.ready(session)
        await wait(lambda: len(objects.class_names()) == len(nodes), "there is a class for each model")
        await stack.enter_async_context(plane.scheduling())
        await wait(
            lambda: pods.refusal("research/huge", gigaslice_io__vgpu_memory=4096),
            "the webhook is asked, and refuses more than any node has",
        )
        yield Stage(directory, objects, plane, processes, nodes, pods, session)


@contextlib.asynccontextmanager
async def _followed(plane: ControlPlane) -> AsyncIterator[Objects]:
    access, _ = find_access(plane.kubeconfig, "")
    assert access is not None
    async with KubeClient(access, "gigaslice-demo") as client, Objects(client).followed() as objects:
        yield objects
