# SPDX-License-Identifier: Apache-2.0
import asyncio
import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from agent.accounting.presence import Presence
from agent.deviceplugin.poller import PATIENCE, Plan
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.deviceplugin.lifetime import Listed
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse
from gigaslice.core.errors import KubeletError
from tests.fakes.cluster import MemoryCluster
from tests.fakes.nodes import GIB, ListedKubelet, device_ids, uuid
from tests.fakes.pods import gpu_pod
from tests.fakes.served import poller_of
from vcuda import contract

REF = ContainerRef("default", "p", "main")
OTHER = ContainerRef("default", "q", "main")


@pytest.fixture
def kubelet():
    return ListedKubelet()


@pytest.fixture
def poller(store, allocator, kubelet):
    return poller_of(store, allocator, kubelet, 3600.0, lambda: 1.0)


def polls(poller, count, regular=True):
    async def main():
        for _ in range(count):
            await poller.poll(regular=regular)

    asyncio.run(main())


def test_names_reach_the_allocation_table_and_the_directory(store, allocator, kubelet, poller):
    (one,) = allocator.allocate([device_ids(0, 1, 2)])
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1, regular=False)
    assert plugin(store.table.allocations[0]).container == REF
    assert "default" in (store.dirs.path(one.id) / contract.OWNER_FILE).read_text()


def test_what_is_no_longer_listed_is_given_up_after_regular_polls(store, allocator, kubelet, poller):
    (one,) = allocator.allocate([device_ids(0, 1, 2)])
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    kubelet.listed = ()
    polls(poller, 20, regular=False)
    polls(poller, PATIENCE - 1)
    assert store.table.allocations
    polls(poller, 1)
    assert not store.table.allocations
    assert not store.dirs.path(one.id).exists()


def test_a_silent_kubelet_costs_nobody_anything(store, allocator, kubelet, poller):
    allocator.allocate([device_ids(0, 1, 2)])
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    kubelet.listed, kubelet.failure = (), KubeletError("gone")
    polls(poller, 20)
    assert store.table.allocations


def test_an_event_brings_a_poll_soon_and_many_events_do_not_bring_many(kubelet, poller):
    async def main():
        task = asyncio.create_task(poller.run())
        while kubelet.asked < 1:
            await asyncio.sleep(0.01)
        for _ in range(50):
            poller.wake()
            await asyncio.sleep(0.01)
        while kubelet.asked < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert kubelet.asked <= 4


def test_it_polls_however_often_it_is_woken(store, allocator, kubelet):
    """Containers whose starts wait wake it ten times a second each, and wait for what a poll finds out."""
    poller = poller_of(store, allocator, kubelet, 0.05, lambda: 1.0)

    async def ring():
        while True:
            poller.wake()
            await asyncio.sleep(0)

    async def main():
        tasks = [asyncio.create_task(poller.run()), asyncio.create_task(ring())]
        while kubelet.asked < 4:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_while_starts_are_held_no_two_polls_are_more_than_six_tenths_apart():
    """They ask ten times a second each. What a poll finds free they can start with, so its pause is theirs."""
    plan, now, polled = Plan(1e9, []), 0.0, [0.0]
    while now < 20.0:
        plan.ask(now)
        now += 0.1
        if plan.due() <= now:
            plan.done(now)
            polled.append(now)
    pauses = [after - before for before, after in itertools.pairwise(polled)]
    assert max(pauses) < 0.7 and len(polled) < 50, polled


def test_ledgers_are_read_only_of_what_may_be_given_up(store, allocator, kubelet, poller, monkeypatch):
    allocator.allocate([device_ids(0, 1, 2)])
    (two,) = allocator.allocate([device_ids(0, 3, 4)])
    read, real = [], store.reading
    monkeypatch.setattr(store, "reading", lambda key: read.append(key) or real(key))
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)), Listed(OTHER, device_ids(0, 3, 4)))
    polls(poller, 2 * PATIENCE)
    assert read == []
    kubelet.listed = kubelet.listed[:1]
    polls(poller, PATIENCE)
    assert read == [two.id]
    assert two.id not in {one.id for one in store.table.allocations}


def test_what_lives_is_not_given_up_however_long_it_is_not_listed(
    store, allocator, kubelet, poller, monkeypatch
):
    allocator.allocate([device_ids(0, 1, 2)])
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    kubelet.listed = ()
    alive = True
    monkeypatch.setattr(store, "reading", lambda _key: SimpleNamespace(alive=alive))
    polls(poller, 3 * PATIENCE)
    assert len(store.table.allocations) == 1
    alive = False
    polls(poller, 1)
    assert not store.table.allocations


# --- what is known besides the kubelet's list ------------------------------------------------------------------------


@pytest.fixture
def cluster():
    return MemoryCluster()


def known(name="p", uid="uid-p", **more):
    return replace(gpu_pod(name, 2, uid=uid, phase="Running"), **more)


def test_lists_of_a_kubelet_that_was_just_started_count_for_nothing(store, allocator, kubelet, poller):
    allocator.allocate([device_ids(0, 1, 2)])
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    kubelet.listed, kubelet.settled = (), False
    polls(poller, 3 * PATIENCE)
    assert store.table.allocations
    kubelet.settled = True
    polls(poller, PATIENCE)
    assert not store.table.allocations


def test_what_the_api_server_shows_alive_is_kept_whatever_the_kubelet_lists(
    store, allocator, kubelet, cluster
):
    poller = poller_of(store, allocator, kubelet, 3600.0, lambda: 1.0, cluster=cluster)
    pod = cluster.put(known())
    (one,) = allocator.allocate([device_ids(0, 1, 2)])
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    kubelet.listed = ()
    polls(poller, 3 * PATIENCE)
    assert store.dirs.path(one.id).exists()
    cluster.pods.clear()
    cluster.synced = False
    polls(poller, 1)
    assert store.table.allocations, "what the API server does not say now it does not say"
    cluster.synced = True
    polls(poller, 1, regular=False)
    assert not store.table.allocations, (
        f"{pod} is deleted and unlisted, and nothing of it runs: counted out at once"
    )


def test_a_process_that_has_it_mounted_keeps_it(store, allocator, kubelet, cluster):
    """Deleted and unlisted, but its container still runs, and has not used CUDA yet."""
    mounted = set()
    poller = poller_of(
        store, allocator, kubelet, 3600.0, lambda: 1.0, cluster=cluster,
        present=lambda asked: Presence(frozenset(mounted & set(asked)), others=True),
    )  # fmt: skip
    (one,) = allocator.allocate([device_ids(0, 1, 2)])
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    kubelet.listed = ()
    mounted.add(one.id)
    polls(poller, 3 * PATIENCE)
    assert store.table.find(one.id).promised
    mounted.clear()
    polls(poller, 1)
    assert not store.table.allocations


def test_what_has_outlived_its_pod_is_known_after_regular_polls_and_not_before(store, allocator, kubelet):
    mounted = set()
    poller = poller_of(
        store, allocator, kubelet, 3600.0, lambda: 1.0,
        present=lambda asked: Presence(frozenset(mounted & set(asked)), others=True),
    )  # fmt: skip
    (one,) = allocator.allocate([device_ids(0, 1, 2)])
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 2 * PATIENCE)
    assert poller.outlived() == frozenset()
    kubelet.listed = ()
    mounted.add(one.id)
    polls(poller, PATIENCE, regular=False)
    polls(poller, PATIENCE - 1)
    kubelet.settled = False
    polls(poller, PATIENCE)
    assert poller.outlived() == frozenset(), "a kubelet that has just started lists nothing"
    kubelet.settled = True
    polls(poller, 1)
    assert poller.outlived() == {one.id}
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    assert poller.outlived() == frozenset()


def test_a_running_container_that_the_kubelet_has_forgotten_counts_and_is_told_once(
    store, allocator, kubelet, cluster
):
    poller = poller_of(store, allocator, kubelet, 3600.0, lambda: 1.0, cluster=cluster)
    cluster.put(known())
    (one,) = allocator.allocate([device_ids(0, 1, 2)])
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    kubelet.listed, kubelet.pods = (), frozenset({"default/p"})
    polls(poller, 2 * PATIENCE)
    assert plugin(store.table.find(one.id)).forgotten
    assert store.table.find(one.id).promised
    assert len(cluster.said("AllocationForgotten")) == 1
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    assert not plugin(store.table.find(one.id)).forgotten, "a checkpoint that was put back"


def test_a_forgotten_container_is_told_when_its_pod_becomes_known(store, allocator, kubelet, cluster):
    poller = poller_of(store, allocator, kubelet, 3600.0, lambda: 1.0, cluster=cluster)
    allocator.allocate([device_ids(0, 1, 2)])
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    kubelet.listed, kubelet.pods = (), frozenset({"default/p"})
    polls(poller, 2 * PATIENCE)
    assert not cluster.said("AllocationForgotten")
    cluster.put(known())
    polls(poller, 2)
    assert len(cluster.said("AllocationForgotten")) == 1


def test_the_end_of_a_pod_brings_a_poll_soon(store, allocator, kubelet, cluster):
    poller = poller_of(store, allocator, kubelet, 3600.0, lambda: 1.0, cluster=cluster)
    cluster.put(known())
    allocator.allocate([device_ids(0, 1, 2)])
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)

    async def main():
        news = asyncio.Queue()
        cluster.news = lambda timeout: news.get()
        tasks = [asyncio.create_task(poller.run()), asyncio.create_task(poller.follow())]
        await asyncio.sleep(0.05)
        kubelet.listed, kubelet.pods = (), frozenset({"default/other"})
        cluster.pods.clear()
        news.put_nowait(True)
        while store.table.allocations:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_stranger_gets_the_id_and_the_gpus_of_the_answer_that_the_kubelet_keeps(store, allocator, kubelet):
    key = "0a" * 16
    kept = KeptAllocateResponse("u", "main", device_ids(0, 1, 2), key, str(store.dirs.path(key)), (uuid(1),))
    poller = poller_of(store, allocator, kubelet, 3600.0, lambda: 1.0, kept_responses=lambda: (kept,))
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    (one,) = store.table.allocations
    assert (one.id, one.quota(), plugin(one).foreign) == (key, {uuid(1): 2 * GIB}, False)
    assert store.dirs.problem(one) is None


@pytest.mark.parametrize("answers", [None, (), "elsewhere"])
def test_a_stranger_whose_files_cannot_be_known_counts_and_is_foreign(store, allocator, kubelet, answers):
    if answers == "elsewhere":
        answers = (
            KeptAllocateResponse("u", "main", device_ids(0, 1, 2), "0a" * 16, "/other/state", (uuid(0),)),
        )
    poller = poller_of(store, allocator, kubelet, 3600.0, lambda: 1.0, kept_responses=lambda: answers)
    kubelet.listed = (Listed(REF, device_ids(0, 1, 2)),)
    polls(poller, 1)
    (one,) = store.table.allocations
    assert (plugin(one).foreign, one.promised) == (True, {uuid(0): 2 * GIB})
