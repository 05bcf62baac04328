# SPDX-License-Identifier: Apache-2.0
"""When the service answers nothing, and what it waits for at its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.names import INVENTORY
from gigaslice.core.cluster.refusal import RefusalReason
from gigaslice.kubeapi.client import KubeClient
from gigaslice.roles.scheduler.service import SchedulerService
from gigaslice.roles.scheduler.settings import SchedulerSettings
from tests.fakes.clusters import container, facts, pod
from tests.fakes.eventually import until
from tests.fakes.kubeapi import ApiServer


@pytest.fixture
def service() -> Iterator[SchedulerService]:
    """One that has seen everything, and whose watches run."""

    async def made() -> SchedulerService:
        found = SchedulerService(
            SchedulerSettings(listen_address=("127.0.0.1", 0)),
            None,  # type: ignore[arg-type]
            wake_seconds=0.01,
            wake_patience=0.0,
        )
        for one in (found.nodes, found.pods, found.classes):
            one.synced.set()
            one._watching = True
        return found

    yield asyncio.run(made())


@pytest.mark.parametrize("what", ["nodes", "pods"])
def test_without_a_watch_it_answers_for_a_minute(service: SchedulerService, what: str):
    assert service.unready() is None
    informer: Any = getattr(service, what)
    informer._watching = False
    for silent, refusal in ((55.0, None), (65.0, f"the API server has not shown the {what} for 60 s")):
        informer._lost = time.monotonic() - silent
        assert service.unready() == refusal


@pytest.mark.parametrize("refusal", ["", "the API server refuses: no permission to list nodes"])
def test_what_the_api_server_refuses_is_the_reason(service: SchedulerService, refusal: str):
    informer: Any = service.nodes
    informer.synced.clear()
    informer.refusal = refusal
    assert service.unready() == (refusal or "the nodes have not all been seen yet")


@pytest.mark.parametrize("ready", [True, False])
def test_pods_are_handed_back_only_while_it_can_answer(
    service: SchedulerService, ready: bool, monkeypatch: pytest.MonkeyPatch
):
    woken: list[str] = []
    waits = pod("p", container(slices=1))
    monkeypatch.setattr(service, "unready", lambda: None if ready else "not yet")
    monkeypatch.setattr(service.placer, "to_be_woken", lambda now, most: [waits])
    service.placer.filter(waits, ["nowhere"], 0.0)

    async def wake_one(one: Any) -> None:
        woken.append(one.uid)

    monkeypatch.setattr(service, "_wake_one", wake_one)

    async def story() -> None:
        work = asyncio.create_task(service._wake())
        await (until(lambda: woken) if ready else asyncio.sleep(0.1))
        work.cancel()

    asyncio.run(story())
    assert bool(woken) is ready


def test_at_its_end_it_waits_for_bindings_that_are_being_written(
    service: SchedulerService, monkeypatch: pytest.MonkeyPatch
):
    waited: list[float] = []

    async def settle(seconds: float) -> None:
        assert service.listener is not None and service.connected is False
        waited.append(seconds)

    monkeypatch.setattr(service.binder, "settle", settle)

    async def story() -> None:
        stop = asyncio.Event()
        work = asyncio.create_task(service._serve(stop))
        await asyncio.sleep(0.05)
        assert not waited
        stop.set()
        await work

    asyncio.run(story())
    assert waited == [5.0]


INVENTORIES = [
    '{"schema":1,"gpus":["x"],"levels":[]}',
    '{"schema":1,"gpus":[],"levels":[],"held":"x"}',
    "\ud800",
    "7",
]


def test_no_object_of_anybody_ends_it():
    """Whatever objects say: it goes on, and the others are served."""
    datasets = {
        "option": {"source": "s3://bucket", "options": {"endpoin": "http://minio"}},
        "empty": {"source": "s3://"},
        "good": {"source": "s3://bucket"},
    }

    async def story(api: ApiServer) -> None:
        async with KubeClient(api.access, "t") as client:
            found = SchedulerService(SchedulerSettings(listen_address=("127.0.0.1", 0)), client)
            stop = asyncio.Event()
            work = asyncio.create_task(found.run(stop))
            informers = (found.nodes, found.pods, found.classes, found.datasets, found.dataset_nodes)
            while not work.done() and not all(one.synced.is_set() for one in informers):
                await asyncio.sleep(0.01)
            api.create("datasets", {"metadata": {"name": "late"}, "spec": {"source": "ftp"}}, "team")
            api.create("datasets", {"metadata": {"name": "later"}, "spec": datasets["good"]}, "team")
            while not work.done() and found.datasets.get("team", "later") is None:
                await asyncio.sleep(0.01)
            assert not work.done() and found.unready() is None
            assert sorted(str(one) for one in found.datasets.values) == ["team/good", "team/later"]
            state = found.placer.state
            demand = state.demand_of(pod("new", container(slices=1)))
            assert isinstance(demand, PodDemand)
            fitting, refused = state.filter(demand, state.nodes)
            assert fitting == ["good"]
            assert refused["held"].reason is RefusalReason.UNREADABLE_POD
            stop.set()
            await work

    with ApiServer() as api:
        for number, text in enumerate(INVENTORIES):
            node = {"name": f"odd-{number}", "annotations": {INVENTORY: text}}
            api.create("nodes", {"metadata": node, "spec": [], "status": 7})
        for name in ("good", "held"):
            text = facts(name).inventory_text
            api.create("nodes", {"metadata": {"name": name, "annotations": {INVENTORY: text}}})
        api.create("pods", {"metadata": {"name": "p"}, "spec": {"nodeName": "held", "containers": 7}}, "team")
        api.create("pods", {"metadata": {"name": "asks"}, "spec": {"containers": 7}}, "team")
        api.create("resourceclasses", {"metadata": {"name": "c"}, "spec": {"share": {"memory": "much"}}})
        api.create("datasetnodes", {"metadata": {"name": "good"}, "status": {"datasets": [7, {"key": 7}]}})
        for name, spec in datasets.items():
            api.create("datasets", {"metadata": {"name": name}, "spec": spec}, "team")
        asyncio.run(asyncio.wait_for(story(api), 60))
