# SPDX-License-Identifier: Apache-2.0
"""A cluster in one event loop: the stand-ins of API server and kube-scheduler around the real service over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.inventory import NodeInventory
from gigaslice.core.cluster.names import ASSIGNMENT, GPU_RESOURCE, INVENTORY, MEMORY_RESOURCE
from gigaslice.kubeapi.client import KubeClient
from gigaslice.roles.scheduler.election import ElectionTimes
from gigaslice.roles.scheduler.service import SchedulerService
from gigaslice.roles.scheduler.settings import SchedulerSettings
from tests.fakes.clusters import inventory_gpu, node_inventory
from tests.fakes.eventually import until
from tests.fakes.kubeapi import ApiServer, new_pod, node_document
from tests.fakes.kubeapi.store import Document
from tests.fakes.scheduler import SchedulerStandIn

GIB = 1 << 30
SCHEDULER = "gigaslice-scheduler"


def inventory(name: str, gpus: int = 2, slices: int = 16, **fields: Any) -> str:
    """The annotation of a node; fields of each GPU."""
    return node_inventory(inventory_gpu(name, index, slices, **fields) for index in range(gpus)).encode()


def node(name: str, gpus: int = 2, slices: int = 16, **fields: Any) -> Document:
    allocatable = {MEMORY_RESOURCE: str(gpus * slices), GPU_RESOURCE: str(gpus)}
    return node_document(name, inventory(name, gpus, slices, **fields), allocatable=allocatable)


def pod(name: str, slices: int = 0, *, priority: int = 0, **limits: int) -> Document:
    """A pod that waits for its scheduler; of LIMITS, __ stands for a slash."""
    document = new_pod(name, asked(slices, **limits), schedulerName=SCHEDULER, priority=priority)
    return {**document, "status": {"phase": "Pending"}}


def asked(slices: int = 0, **limits: int) -> dict[str, int]:
    """What a container asks for; of LIMITS, __ stands for a slash."""
    memory = {MEMORY_RESOURCE: slices} if slices else {}
    return memory | {key.replace("__", "/"): count for key, count in limits.items()}


@contextlib.asynccontextmanager
async def serving(
    api: ApiServer,
    election_times: ElectionTimes = ElectionTimes(),  # noqa: B008  (frozen)
    **settings: Any,
) -> AsyncIterator[SchedulerService]:
    """The service, ready, on a free port."""
    found = SchedulerSettings(listen_address=("127.0.0.1", 0), **settings)
    stop = asyncio.Event()
    async with KubeClient(api.access, "gigaslice-scheduler/test") as client:
        service = SchedulerService(found, client, election_times=election_times)
        work = asyncio.create_task(service.run(stop))
        try:
            await until(lambda: (service.port and service.unready() is None) or work.done())
            if work.done():
                work.result()
            yield service
        finally:
            stop.set()
            await asyncio.wait({work}, timeout=20)
            if not work.done():
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def url(service: SchedulerService) -> str:
    return f"http://127.0.0.1:{service.port}"


def bound(api: ApiServer) -> dict[str, str]:
    """The node of each pod that has one."""
    found = {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in api.all("pods")}
    return {name: node for name, node in found.items() if node}


def held(api: ApiServer) -> Counter[str]:
    """Slices of each GPU by the assignments of bound pods."""
    found: Counter[str] = Counter()
    for one in api.all("pods"):
        text = one["metadata"].get("annotations", {}).get(ASSIGNMENT)
        if text and one["spec"].get("nodeName"):
            for shares in Assignment.decode(text).containers.values():
                for share in shares:
                    found[share.gpu] += share.slices
    return found


def check(api: ApiServer) -> None:
    """No GPU is promised twice, no pod is bound twice, every pod that is bound has its GPUs on its node."""
    sizes = {}
    for one in api.all("nodes"):
        text = one["metadata"]["annotations"].get(INVENTORY)
        for gpu in NodeInventory.decode(text).gpus if text else ():
            sizes[gpu.gpu.uuid] = gpu.gpu.slices
    for gpu, slices in held(api).items():
        assert slices <= sizes.get(gpu, slices), f"{gpu} is promised {slices} times"
    taken: Counter[str] = Counter(
        body["metadata"]["uid"] for _, path, body, status in api.writes if "binding" in path and status == 201
    )
    assert all(count == 1 for count in taken.values())


def bindings(api: ApiServer) -> list[int]:
    """The answers to bindings, in order."""
    return [status for _, path, _, status in api.writes if path.endswith("/binding")]


@contextlib.asynccontextmanager
async def world(
    *nodes: Document, standin: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[ApiServer, SchedulerService, SchedulerStandIn]]:
    """An API server with nodes, the service, a scheduler that calls it."""
    async with ApiServer() as api:
        for one in nodes:
            api.create("nodes", one)
        async with (
            serving(api, **settings) as service,
            SchedulerStandIn(api, url(service), **(standin or {})) as scheduler,
        ):
            yield api, service, scheduler
        check(api)


def play(story: Callable[..., Coroutine[Any, Any, None]], *nodes: Document, **more: Any) -> None:
    """Plays STORY, which takes API server, service and scheduler, in a world with NODES."""

    async def main() -> None:
        async with world(*nodes, **more) as (api, service, scheduler):
            await story(api, service, scheduler)

    asyncio.run(main())
