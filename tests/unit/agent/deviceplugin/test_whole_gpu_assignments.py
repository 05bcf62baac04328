# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs under an assignment: the provider as the node agent joins it, without a kubelet's messages."""

import asyncio
import itertools

import pytest

from agent.allocation.start_wait import StartTimes
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.gpu_resource import ResourceParts
from agent.deviceplugin.pod_events import PodEvents
from agent.deviceplugin.whole_gpus import WholeGpus
from agent.inventory.holder import InventoryHolder
from agent.providers.resource import NotYetError, RefusedError
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.model import Share
from tests.fakes.nodes import allocation, device_allocator, inventory, uuid
from tests.fakes.pods import gpu_pod
from tests.fakes.served import start_decider

WHOLE, CLASS = "gigaslice.io/gpu", "gpuclass.gigaslice.io/nvidia.l4"


@pytest.fixture
def gpus():
    return InventoryHolder(inventory(4))


@pytest.fixture
def withheld():
    """The slices that were withheld, one time after the other."""
    return []


@pytest.fixture
def times():
    return StartTimes(patience=0.2)


@pytest.fixture
def whole(store, gpus, cluster, kubelet, withheld, *, times):
    numbers = itertools.count(1)

    def new_id():
        return f"{next(numbers):032x}"

    allocator = device_allocator(store, gpus, new_id=new_id, whole_resource=WHOLE, whole=True)
    events = PodEvents(allocator, cluster)
    parts = ResourceParts(
        store, allocator, "env", allocated=lambda: None, events=events,
        starts=start_decider(store, allocator, cluster, events, times=times),
        admissions=AdmissionResolver(store, kubelet, cluster, WHOLE, whole=True),
    )  # fmt: skip
    return WholeGpus(parts, gpus, withheld.append)


def pod(name, count, *gpus, slices=24, init_gpus=(), **more):
    """A pod that asks for COUNT whole GPUs; GPUS and INIT_GPUS are those that it was assigned."""
    named = {"c0": gpus, "i0": init_gpus}
    assigned = {
        container: tuple(Share(uuid(gpu), slices, 100) for gpu in chosen)
        for container, chosen in named.items()
        if chosen
    }
    return gpu_pod(name, count, resource=WHOLE, assigned=assigned or None, **more)


def names(*numbers):
    return [uuid(number) for number in numbers]


async def given(provider, *numbers):
    (answer,) = await provider.allocate([names(*numbers)])
    return answer.env["NVIDIA_VISIBLE_DEVICES"].split(",")


def test_the_assigned_gpus_are_preferred_and_given_for_devices_of_any_name(whole, cluster, store):
    cluster.put(pod("a", 2, 1, 3))

    async def story():
        assert set(await whole.prefer(names(0, 1, 2, 3), [], 2)) == set(names(1, 3))
        assert await given(whole, 0, 1) == names(1, 3)
        await whole.start(names(0, 1), None)

    asyncio.run(story())
    (one,) = store.table.allocations
    assert one.assigned
    assert (plugin(one).owner.uid, plugin(one).undecided) == ("uid-a", False)


def test_a_pod_without_an_assignment_is_placed_as_before(whole, cluster, store):
    cluster.put(pod("a", 1))

    async def story():
        assert await given(whole, 2) == names(2)
        await whole.start(names(2), None)

    asyncio.run(story())
    assert not store.table.allocations[0].assigned


def test_a_call_that_is_repeated_gets_what_was_recorded_for_it(whole, cluster, store):
    """The agent ended between its record and its answer."""
    cluster.put(pod("a", 2, 1, 3))

    async def story():
        first = await whole.allocate([names(0, 1)])
        assert await whole.allocate_again([names(0, 1)], age=0.5) == first
        assert len(store.table.allocations) == 1
        assert await whole.allocate_again([names(2, 3)], age=0.5) != first

    asyncio.run(story())


@pytest.mark.parametrize("times", [StartTimes(patience=60.0)], ids=["patient"])
def test_no_start_is_waited_for_when_the_agent_ends(whole, cluster):
    cluster.put(pod("a", 1, 1))

    async def story():
        await whole.allocate([names(1)])
        cluster.put(pod("b", 1, 1))
        await whole.allocate([names(2)])
        start = asyncio.create_task(whole.start(names(2), None))
        await asyncio.sleep(0.05)
        assert not start.done()
        whole.close()
        with pytest.raises(NotYetError):
            await asyncio.wait_for(start, 10)

    asyncio.run(story())


def test_what_cannot_be_executed_is_refused_with_an_event(whole, cluster, store):
    async def refused(one):
        cluster.put(one)
        assert await whole.prefer(names(0, 1, 2, 3), [], 2) == ()
        with pytest.raises(RefusedError) as caught:
            await whole.allocate([names(0, 1)])
        cluster.pods.clear()
        return str(caught.value)

    async def story():
        assert "names " + uuid(7) in await refused(pod("unknown", 2, 1, 7))
        assert "1 whole GPU, and it asks for 2 whole GPUs" in await refused(pod("few", 2, 1))
        assert "and it asks for 2 whole GPUs" in await refused(pod("parts", 2, 1, 2, slices=12))
        assert "no scheduler of gigaslice" in await refused(pod("class", 2, also={CLASS: 2}))

    asyncio.run(story())
    assert len(set(cluster.said("AssignmentNotExecutable"))) == 4  # the sender counts repetitions
    assert store.table.allocations == ()


def test_a_gpu_that_another_pod_has_is_waited_for(whole, cluster, kubelet, store):
    cluster.put(pod("plain", 1))

    async def story():
        on = await given(whole, 0)
        kubelet.holding["default", "plain"] = frozenset({"c0"})
        cluster.put(pod("sent", 1, 0))
        assert await given(whole, 1) == on == names(0)
        with pytest.raises(NotYetError, match="waiting for"):
            await whole.start(names(1), None)
        store.update(store.table.without([store.table.allocations[0].id]))
        await whole.start(names(1), None)

    asyncio.run(story())


def test_a_wrong_guess_never_starts_and_a_right_one_does(whole, cluster, kubelet, store):
    kubelet.hidden = [("default", "late")]

    async def story():
        (on,) = await given(whole, 0)
        cluster.put(pod("late", 1, 3))
        with pytest.raises(NotYetError, match="it was assigned " + uuid(3)):
            await whole.start(names(0), None)
        assert cluster.said("AssignmentNotExecutable")
        cluster.put(pod("late", 1, names(0, 1, 2, 3).index(on)))
        await whole.start(names(0), None)

    asyncio.run(story())
    assert store.table.allocations[0].assigned


def test_an_init_container_lends_the_gpu_that_the_later_one_has(whole, cluster, store):
    cluster.put(pod("p", 1, 0, init=(2,), init_gpus=(0, 1)))

    async def story():
        assert await given(whole, 0, 1) == names(0, 1)
        assert await given(whole, 1) == names(0)
        await whole.start(names(0, 1), None)
        await whole.start(names(1), None)

    asyncio.run(story())
    held = [gpu for one in store.table.allocations for gpu in one.promised]
    assert sorted(held) == names(0, 1)


def test_both_lists_follow_the_table_and_the_gpus(whole, cluster, store, gpus, withheld):
    cluster.put(pod("a", 1))
    lists = []

    async def settled():
        for _ in range(10):
            await asyncio.sleep(0)

    async def story():
        watchers = list(store.watchers)
        task = asyncio.create_task(whole.watch(lambda: lists.append(whole.devices())))
        await settled()
        await given(whole, 2)
        await settled()
        slices = allocation(7, (1, range(2)))
        store.commit(store.table.with_allocation(slices), [slices])
        await settled()
        gpus.replace(inventory(3))
        await settled()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert store.watchers == watchers, "none is left behind"

    asyncio.run(story())
    healthy = [[device.id for device in devices if device.healthy] for devices in lists]
    assert healthy == [names(0, 1, 2, 3), names(0, 2, 3), names(0, 2)], "one is told of when it differs"
    of_gpu_2 = frozenset(f"{uuid(2)}/{number}" for number in range(24))
    assert [withheld[0], *map(len, withheld[1:])] == [frozenset(), 24, 24, 24]
    assert withheld[1] == of_gpu_2
