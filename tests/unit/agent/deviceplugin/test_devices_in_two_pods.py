# SPDX-License-Identifier: Apache-2.0
"""One device ID in two living pods, as a kubelet hands it out that has lost count: see docs/operations.md.

It reserves devices, calls Allocate without its lock, and records them after the answer. A list of its pods in between
has it count anew from what is recorded, so the next pod gets the same. Without an API server nothing but the kubelet's
list tells whose allocations they are.
"""

import asyncio
from dataclasses import replace

import pytest

from agent.accounting.presence import Presence
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.deviceplugin import origin
from gigaslice.core.deviceplugin.lifetime import Listed, ListedPod, PodListing
from gigaslice.core.deviceplugin.origin import held, plugin
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse
from gigaslice.core.errors import KubeletError
from tests.fakes.nodes import GIB, all_device_ids, device_ids, inventory, uuid
from tests.fakes.served import gpu_memory, poller_of

SAME = device_ids(0, 0, 1, 2, 3)
FIRST, SECOND, THIRD = (ContainerRef("default", name, "c0") for name in ("first", "second", "third"))


class Kubelet:
    """Lists what the test says, to polls and admissions."""

    def __init__(self):
        self.settled = self.informed = True
        self.holding, self.bare, self.failing = {}, [], False

    def listed(self):
        return tuple(Listed(ref, ids) for ref, ids in self.holding.items())

    async def list(self):
        names = (f"{ref.namespace}/{ref.pod}" for ref in (*self.holding, *self.bare))
        return PodListing(self.listed(), frozenset(names), self.settled)

    async def pods(self):
        if self.failing:
            raise KubeletError("rejected by rate limit")
        taken = (
            ListedPod(one.container.namespace, one.container.pod, frozenset({"c0"}), frozenset(), (one,))
            for one in self.listed()
        )
        bare = (ListedPod(ref.namespace, ref.pod, frozenset(), frozenset({"c0"})) for ref in self.bare)
        return (*taken, *bare)


@pytest.fixture
def kubelet():
    return Kubelet()


@pytest.fixture
def kept():
    """The allocations whose answers the kubelet keeps; [None] where that cannot be read."""
    return [None]


@pytest.fixture
def poller(store, allocator, kubelet, kept):
    def answers():
        return None if kept == [None] else [KeptAllocateResponse("", "c0", SAME, one, "", ()) for one in kept]

    return poller_of(
        store, allocator, kubelet, 3600.0, lambda: 1.0, present=lambda ids: Presence(), kept_responses=answers
    )


@pytest.fixture
def provider(store, allocator, gpus, kubelet):
    return gpu_memory(store, allocator, gpus, kubelet=kubelet).provider


@pytest.fixture
def world(store, kubelet, poller, provider):
    return store, kubelet, poller, provider


async def admit(provider, kubelet, ref, ids=SAME, *, preference=True):
    """Has the kubelet admit a container, with devices that it counts as free."""
    kubelet.bare.append(ref)
    if preference:
        await provider.prefer(sorted(all_device_ids(inventory())), [], len(ids))
    await provider.allocate([sorted(ids)])
    kubelet.bare.remove(ref)
    kubelet.holding[ref] = frozenset(ids)


async def polled(poller, times=5):
    for _ in range(times):
        await poller.poll(regular=True)


def by_container(store):
    return {plugin(one).container: one.number for one in store.table.allocations}


@pytest.mark.parametrize(
    ("preference", "between"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_each_keeps_its_own_allocation(world, preference, between):
    """Polled in between or not, and whether the kubelet asks for a preference or not."""
    store, kubelet, poller, provider = world

    async def story():
        await admit(provider, kubelet, FIRST)
        if between:
            await poller.poll(regular=False)
        await admit(provider, kubelet, SECOND, preference=preference)
        await polled(poller)
        assert by_container(store) == {FIRST: 1, SECOND: 2}
        promised = [one.promised for one in store.table.allocations]
        assert promised == [{uuid(0): 4 * GIB}, {uuid(0): 4 * GIB}], "each counts"
        taken = [device_id for one in store.table.allocations for device_id in held(one)]
        assert sorted(taken) == sorted(SAME), "and each device ID once"

    asyncio.run(story())


@pytest.mark.parametrize("ending", [FIRST, SECOND])
def test_the_end_of_one_leaves_the_other_what_it_has(store, kubelet, poller, provider, ending):
    async def story():
        await admit(provider, kubelet, FIRST)
        await admit(provider, kubelet, SECOND)
        await polled(poller, 1)
        del kubelet.holding[ending]
        await polled(poller)
        (left,) = store.table.allocations
        assert plugin(left).container in kubelet.holding
        assert left.number == {FIRST: 1, SECOND: 2}[plugin(left).container]
        assert held(left) == SAME and store.dirs.path(left.id).is_dir()

    asyncio.run(story())


def test_a_third_one_after_the_first_has_ended(store, kubelet, poller, provider):
    async def story():
        await admit(provider, kubelet, FIRST)
        await admit(provider, kubelet, SECOND)
        del kubelet.holding[FIRST]
        await admit(provider, kubelet, THIRD)
        await polled(poller)
        assert by_container(store) == {SECOND: 2, THIRD: 3}

    asyncio.run(story())


async def made_anew(store, kubelet, poller, provider):
    """A pod ends and another one of its name gets its devices, long after and between two polls."""
    await admit(provider, kubelet, FIRST)
    await polled(poller, 1)
    (first,) = store.table.allocations
    store.update(store.table.replaced([replace(first, created=first.created - 1000)]))
    del kubelet.holding[FIRST]
    await admit(provider, kubelet, FIRST)
    return first, store.table.allocations[1]


def test_a_pod_made_anew_under_its_name_keeps_its_allocation(store, kubelet, poller, provider, kept):
    async def story():
        first, second = await made_anew(store, kubelet, poller, provider)
        await polled(poller, 2)
        assert {one.id for one in store.table.allocations} == {first.id, second.id}, "nothing tells which"
        kept[:] = [second.id]
        await polled(poller, 1)
        (left,) = store.table.allocations
        assert (left.id, plugin(left).container, held(left)) == (second.id, FIRST, SAME)

    asyncio.run(story())


def test_a_pod_made_anew_is_not_released_where_the_kubelets_checkpoint_cannot_be_read(
    store, kubelet, poller, provider
):
    async def story():
        _, second = await made_anew(store, kubelet, poller, provider)
        await polled(poller, 9)
        assert store.table.find(second.id)
        kubelet.holding.clear()
        await polled(poller, 9)
        assert store.table.allocations == ()

    asyncio.run(story())


def test_what_the_kubelet_keeps_of_two_living_pods_ends_neither(store, kubelet, poller, provider, kept):
    async def story():
        await admit(provider, kubelet, FIRST)
        await admit(provider, kubelet, SECOND)
        kept[:] = [one.id for one in store.table.allocations]
        await polled(poller)
        assert by_container(store) == {FIRST: 1, SECOND: 2}
        del kubelet.holding[SECOND]
        await polled(poller)
        assert by_container(store) == {FIRST: 1}

    asyncio.run(story())


def test_two_that_nothing_tells_apart_are_both_kept_and_both_count(store, kubelet, poller, provider):
    """The kubelet gave no list during the second admission, and no poll came between."""

    async def story():
        await admit(provider, kubelet, FIRST)
        kubelet.failing = True
        await admit(provider, kubelet, SECOND)
        kubelet.failing = False
        await polled(poller)
        assert [plugin(one).container for one in store.table.allocations] == [None, None]
        assert [sum(one.promised.values()) for one in store.table.allocations] == [4 * GIB, 4 * GIB]
        kubelet.holding.clear()
        kubelet.bare.append(ContainerRef("default", "other", "c0"))
        await polled(poller)
        assert store.table.allocations == ()

    asyncio.run(story())


def test_an_init_container_still_lends(store, kubelet, poller, provider):
    """It is not listed, and the next container of its pod gets its devices."""

    async def story():
        kubelet.bare.append(FIRST)
        await provider.allocate([sorted(SAME)])
        await provider.allocate([sorted(SAME)])
        kubelet.bare.clear()
        kubelet.holding[FIRST] = SAME
        await polled(poller)
        assert by_container(store) == {None: 1, FIRST: 2}
        assert [sum(one.promised.values()) for one in store.table.allocations] == [0, 4 * GIB]

    asyncio.run(story())


def test_one_that_is_restored_counts_its_device_ids_only_where_no_other_does(
    store, allocator, kubelet, poller, provider
):
    async def story():
        await admit(provider, kubelet, FIRST)
        (lost,) = store.table.allocations
        store.update(store.table.without([lost.id]))
        await admit(provider, kubelet, SECOND)
        response = KeptAllocateResponse("", "c0", SAME, lost.id, str(store.dirs.path(lost.id)), (uuid(0),))
        assert allocator.restore(response, {})
        second, first = store.table.allocations
        assert (first.id, held(first), origin.kept(first)) == (lost.id, frozenset(), SAME)
        assert held(second) == SAME

    asyncio.run(story())
