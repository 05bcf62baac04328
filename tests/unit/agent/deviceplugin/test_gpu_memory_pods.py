# SPDX-License-Identifier: Apache-2.0
"""The calls with an API server: which container they are for, what events say, and what starts wait for."""

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

import vcuda
from agent.allocation.service import AllocationService
from agent.allocation.start_wait import StartTimes
from agent.apiserver import Eviction
from agent.deviceplugin import settlement
from gigaslice.core.deviceplugin.origin import plugin, with_origin
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse
from tests.fakes.nodes import device_ids, uuid
from tests.fakes.plugin_calls import allocate, pre_start, prefer, refusal
from tests.fakes.pods import gpu_pod

GPU = "gigaslice.io/vgpu-memory"


def test_a_pods_annotations_reach_preference_and_allocation_and_it_is_told(call, cluster, store):
    cluster.put(gpu_pod("a", 8, gpus="2"))

    async def story(stub):
        chosen = await prefer(stub, 8)
        assert {device_id.rpartition("/")[0] for device_id in chosen} == {uuid(0), uuid(1)}
        (answer,) = (await stub.Allocate(allocate(chosen))).container_responses
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == f"{uuid(0)},{uuid(1)}"
        await stub.PreStartContainer(pre_start(chosen))

    call(story)
    (text,) = cluster.said("GPUAllocated")
    assert f"4 GiB of {uuid(0)}, 4 GiB of {uuid(1)}" in text
    assert plugin(store.table.allocations[0]).owner.uid == "uid-a"


def test_a_request_that_can_never_fit_is_said_on_the_pod_too(call, cluster):
    cluster.put(gpu_pod("a", 2, gpu_type="H100"))

    async def story(stub):
        assert "no GPU of type H100" in await refusal(stub.Allocate(allocate(device_ids(0, 1, 2))))

    call(story)
    assert "no GPU of type H100" in cluster.said("GPURequestInfeasible")[0]


def test_a_mistake_is_said_at_once_and_the_start_waits_for_its_correction(call, cluster):
    cluster.put(gpu_pod("a", 2, cores="lots"))

    async def story(stub):
        chosen = await prefer(stub, 2)
        await stub.Allocate(allocate(chosen))
        (text,) = cluster.said("InvalidAnnotation")
        assert 'gigaslice.io/cores: "lots" must be a whole number from 0 to 100' in text
        assert text == await refusal(stub.PreStartContainer(pre_start(chosen)))
        assert cluster.said("WaitingForGPU") == [text]
        cluster.put(gpu_pod("a", 2, cores="20"))
        await stub.PreStartContainer(pre_start(chosen))

    call(story, StartTimes(patience=0.2))


def test_an_annotation_that_is_nearly_one_is_mentioned(call, cluster):
    cluster.put(gpu_pod("a", 2, exklusive="true"))

    async def story(stub):
        chosen = await prefer(stub, 2)
        await stub.Allocate(allocate(chosen))
        await stub.PreStartContainer(pre_start(chosen))

    call(story)
    assert 'did you mean "gigaslice.io/exclusive"?' in cluster.said("InvalidAnnotation")[0]


def test_a_pod_that_the_watch_shows_too_late_starts_with_what_it_wanted(call, cluster, kubelet, store):
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        chosen = await prefer(stub, 2)
        await stub.Allocate(allocate(chosen))
        assert plugin(store.table.allocations[0]).undecided
        starting = asyncio.ensure_future(stub.PreStartContainer(pre_start(chosen)))
        await asyncio.sleep(0.3)
        assert not starting.done()
        cluster.put(gpu_pod("late", 2, exclusive="true", cores="30"))
        await starting

    call(story)
    allocation = store.table.allocations[0]
    assert (allocation.policy.exclusive, allocation.policy.cores, plugin(allocation).owner.pod) == (
        True,
        30,
        "late",
    )


def test_one_that_must_be_made_anew_is_evicted_if_something_makes_it_anew(call, cluster, kubelet):
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        chosen = await prefer(stub, 2)
        await stub.Allocate(allocate(chosen))
        cluster.put(gpu_pod("late", 2, gpus="2"))
        assert "delete the pod" in await refusal(stub.PreStartContainer(pre_start(chosen)))
        assert cluster.evicted == [], "nothing would bring a bare pod back"
        cluster.put(gpu_pod("late", 2, gpus="2", controlled=True))
        for _ in range(2):
            assert "delete the pod" in await refusal(stub.PreStartContainer(pre_start(chosen)))
        assert len(cluster.evicted) == 1
        assert cluster.said("EvictionPending")

    call(story, StartTimes(patience=0.3))


def test_what_a_start_decides_is_on_the_disk_before_the_container_starts(
    call, cluster, kubelet, store, monkeypatch
):
    """A power failure must not make a decision undone that a container was started by."""
    kubelet.hidden, synced, sync = [("default", "late")], [], store.sync
    monkeypatch.setattr(store, "sync", lambda: (synced.append(store.table), sync()))

    async def story(stub):
        chosen = await prefer(stub, 2)
        await stub.Allocate(allocate(chosen))
        cluster.put(gpu_pod("late", 2, cores="30"))
        await stub.PreStartContainer(pre_start(chosen))

    call(story)
    assert not plugin(store.table.allocations[0]).undecided and store.table.allocations[0].policy.cores == 30
    assert synced[-1] == store.table


def test_a_container_that_waited_for_room_starts_after_that_is_on_the_disk(
    call, cluster, kubelet, store, monkeypatch
):
    synced, sync = [], store.sync
    monkeypatch.setattr(store, "sync", lambda: (synced.append(store.table), sync()))

    async def story(stub):
        for name, size, chosen in (
            ("a", 18, device_ids(0, *range(18))),
            ("b", 18, device_ids(1, *range(18))),
            ("late", 8, device_ids(0, 18, 19, 20, 21) | device_ids(1, 18, 19, 20, 21)),
        ):
            cluster.put(gpu_pod(name, size))
            await stub.Allocate(allocate(chosen))
            kubelet.holding["default", name] = frozenset({"c0"})
        assert "waiting for" in await refusal(stub.PreStartContainer(pre_start(chosen)))
        assert not synced, "nothing is decided that a disk would have to keep"
        store.update(store.table.without([store.table.allocations[0].id]))
        await stub.PreStartContainer(pre_start(chosen))

    call(story, StartTimes(patience=0.2))
    assert not any(allocation.waiting for allocation in store.table.allocations)
    assert synced[-1] == store.table


def test_a_container_whose_devices_go_to_another_while_the_disk_is_slow_does_not_start(
    call, cluster, kubelet, store, monkeypatch
):
    sync = store.sync

    def slow():
        store.remember(store.table.without([allocation.id for allocation in store.table.allocations]))
        sync()

    async def story(stub):
        chosen = await prefer(stub, 2)
        await stub.Allocate(allocate(chosen))
        monkeypatch.setattr(store, "sync", slow)
        assert "to another one" in await refusal(stub.PreStartContainer(pre_start(chosen)))

    cluster.expected = False
    call(story)


def test_an_eviction_that_is_refused_is_asked_for_again(call, cluster, kubelet, monkeypatch):
    """By a disruption budget, say: the start of the pod would wait for ever."""
    kubelet.hidden = [("default", "late")]
    refusals = [Eviction("a PodDisruptionBudget does not allow it now")]
    asked = []

    async def evict(found, *, dry_run=False):
        asked.append(dry_run)
        if refusals:
            return refusals.pop()
        if not dry_run:
            cluster.put(replace(found, ending=True))
        return Eviction()

    cluster.evict = evict

    async def story(stub):
        chosen = await prefer(stub, 2)
        await stub.Allocate(allocate(chosen))
        cluster.put(gpu_pod("late", 2, gpus="2", controlled=True))
        assert "delete the pod" in await refusal(stub.PreStartContainer(pre_start(chosen)))
        assert asked == [True], "not ten times a second"
        assert not cluster.said("EvictionPending"), "no event announces what does not come"
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 61.0, thread_time=time.thread_time)
        monkeypatch.setattr(settlement, "time", later)
        for _ in range(2):
            assert "delete the pod" in await refusal(stub.PreStartContainer(pre_start(chosen)))
        assert asked == [True, True, False], "again, and not for one that is ending"
        assert cluster.said("EvictionPending")

    call(story, StartTimes(patience=0.3))


def test_annotations_that_stay_unknown_are_waited_for_a_while_only(
    call, cluster, kubelet, store, monkeypatch
):
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        chosen = await prefer(stub, 2)
        await stub.Allocate(allocate(chosen))
        assert "annotations" in await refusal(stub.PreStartContainer(pre_start(chosen)))
        monkeypatch.setattr(AllocationService, "age", lambda self, allocation: 61.0)
        await stub.PreStartContainer(pre_start(chosen))

    call(story, StartTimes(patience=0.2))
    assert not plugin(store.table.allocations[0]).undecided


def test_an_api_server_that_refuses_us_holds_nobody_back(call, cluster, kubelet, store):
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        chosen = await prefer(stub, 2)
        await stub.Allocate(allocate(chosen))
        cluster.expected = False
        await stub.PreStartContainer(pre_start(chosen))
        await stub.Allocate(allocate(device_ids(1, 5)))
        assert not plugin(store.table.allocations[-1]).undecided

    call(story)


def test_an_event_says_what_the_start_of_a_pod_waits_for(call, cluster, kubelet):

    async def story(stub):
        for name, size, chosen in (
            ("a", 18, device_ids(0, *range(18))),
            ("b", 18, device_ids(1, *range(18))),
            ("late", 8, device_ids(0, 18, 19, 20, 21) | device_ids(1, 18, 19, 20, 21)),
        ):
            cluster.put(gpu_pod(name, size))
            await stub.Allocate(allocate(chosen))
            kubelet.holding["default", name] = frozenset({"c0"})
        text = await refusal(stub.PreStartContainer(pre_start(chosen)))
        assert text.startswith("waiting for 2 GiB of GPU-") and "default/a/c0 (18 GiB)" in text
        assert cluster.said("WaitingForGPU") == [text]

    call(story, StartTimes(patience=0.2))


async def fill_and_ask(stub, cluster, kubelet):
    """Two pods leave 6 GiB on each of two GPUs, and the third one asks for 8; its devices."""
    for name, size, chosen in (
        ("a", 18, device_ids(0, *range(18))),
        ("b", 18, device_ids(1, *range(18))),
        ("late", 8, device_ids(0, 18, 19, 20, 21) | device_ids(1, 18, 19, 20, 21)),
    ):
        cluster.put(gpu_pod(name, size))
        await stub.Allocate(allocate(chosen))
        kubelet.holding["default", name] = frozenset({"c0"})
    return chosen


def test_a_start_is_held_while_its_pod_is_seen_and_told_meanwhile_for_what(call, cluster, kubelet, store):
    """A kubelet whose call was refused soon comes back after ten seconds or more, for which free memory would idle."""

    async def story(stub):
        starting = asyncio.ensure_future(
            stub.PreStartContainer(pre_start(await fill_and_ask(stub, cluster, kubelet)), timeout=30)
        )
        while not cluster.said("WaitingForGPU"):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert not starting.done()
        store.update(store.table.with_ended([one.id for one in store.table.allocations[:2]]))
        await starting
        assert len(cluster.said("WaitingForGPU")) == 1, "once in a call"

    call(story, StartTimes(unwatched_patience=0.1, report_after=0.2))


def test_held_starts_that_are_paced_slowly_go_on_at_once_when_memory_becomes_free(
    call, cluster, kubelet, store
):
    """With many that wait, and decisions that take long, each has its turn every few seconds only."""

    async def story(stub):
        starting = asyncio.ensure_future(
            stub.PreStartContainer(pre_start(await fill_and_ask(stub, cluster, kubelet)))
        )
        await asyncio.sleep(0.5)
        assert not starting.done()
        store.update(store.table.with_ended([one.id for one in store.table.allocations[:2]]))
        await asyncio.wait_for(starting, 30)

    call(story, StartTimes(thread_part=1e-9, patience=3600.0))


def ending(cluster):
    cluster.put(replace(gpu_pod("late", 8), ending=True))


def gone(cluster):
    del cluster.pods["default", "late"]


def remade(cluster):
    cluster.put(replace(gpu_pod("late", 8), uid="another"))


def unseen(cluster):
    cluster.synced = False


@pytest.mark.parametrize("change", [ending, gone, remade, unseen], ids=lambda one: one.__name__)
def test_a_held_start_ends_with_its_pod_and_soon_where_that_cannot_be_seen(call, cluster, kubelet, change):
    """The kubelet ends a pod only when the call has returned."""

    async def story(stub):
        starting = asyncio.ensure_future(
            stub.PreStartContainer(pre_start(await fill_and_ask(stub, cluster, kubelet)))
        )
        await asyncio.sleep(0.7)
        assert not starting.done()
        change(cluster)
        assert (await refusal(starting)).startswith("waiting for 2 GiB of GPU-")

    call(story, StartTimes(patience=3600.0, unwatched_patience=0.5 if change is not ending else 3600.0))


# --- who lives, and whose files they are ------------------------------------------------------------------------------


def test_devices_of_a_living_pod_that_the_kubelet_hands_out_again_leave_it_what_it_has(
    call, cluster, kubelet, store
):
    """It has lost its checkpoint: 18 of 24 GiB stay the first pod's, and the second one is placed beside it."""
    cluster.put(replace(gpu_pod("a", 18), phase="Running"))

    async def story(stub):
        await stub.Allocate(allocate(await prefer(stub, 18)))
        (first,) = store.table.allocations
        store.update(store.table.replaced([with_origin(first, container=plugin(first).ref)]))
        cluster.put(gpu_pod("b", 24))
        (answer,) = (await stub.Allocate(allocate(await prefer(stub, 24)))).container_responses
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] not in first.quota()
        first, second = store.table.allocations
        assert (plugin(first).forgotten, first.ended, sum(first.promised.values())) == (True, False, 18 << 30)
        assert not second.waiting
        cluster.put(gpu_pod("c", 10))
        chosen = await prefer(stub, 10)
        await stub.Allocate(allocate(chosen))
        assert store.table.allocations[-1].waiting
        assert "GiB of" in await refusal(stub.PreStartContainer(pre_start(chosen)))

    call(story, StartTimes(patience=0.1))


def test_a_deleted_pod_on_another_gpu_than_its_devices_say_counts_no_more(call, cluster, store):
    """The kubelet does not ask for a preference when it needs all that is aligned, so it does not show what is free."""
    cluster.put(replace(gpu_pod("a", 8, gpu_uuid=uuid(0)), phase="Running"))

    async def story(stub):
        await stub.Allocate(allocate(device_ids(1, *range(8))))
        (first,) = store.table.allocations
        assert list(first.quota()) == [uuid(0)]
        store.update(store.table.replaced([with_origin(first, container=plugin(first).ref)]))
        cluster.pods.clear()
        cluster.put(gpu_pod("b", 24))
        (answer,) = (await stub.Allocate(allocate(device_ids(0, *range(24))))).container_responses
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == uuid(0), "aligned, as the kubelet chose"

    call(story)
    (text,) = cluster.said("GPUNotAligned")
    assert f"{uuid(0)} is on NUMA node 0, and the kubelet chose devices of node 1" in text


def kept_of(allocation, store, **changes):
    return replace(
        KeptAllocateResponse(
            "uid-a",
            "c0",
            plugin(allocation).device_ids,
            allocation.id,
            str(store.dirs.path(allocation.id)),
            tuple(allocation.quota()),
        ),
        **changes,
    )


def test_the_kubelets_checkpoint_says_which_of_two_is_meant(call, cluster, kept, store):
    """The same devices for two living pods: each start is for the one whose mounts are replayed."""
    cluster.put(replace(gpu_pod("a", 24), phase="Running"))

    async def story(stub):
        await stub.Allocate(allocate(device_ids(0, *range(24))))
        (first,) = store.table.allocations
        store.update(store.table.replaced([with_origin(first, container=plugin(first).ref)]))
        cluster.put(gpu_pod("b", 24))
        await stub.Allocate(allocate(device_ids(0, *range(24))))
        second = store.table.allocations[1]
        assert list(first.quota()) != list(second.quota())
        for one in (first, second):
            kept[:] = [kept_of(one, store)]
            (store.dirs.path(one.id) / "limits").unlink()
            await stub.PreStartContainer(pre_start(device_ids(0, *range(24))))
            assert store.dirs.problem(one) is None

    call(story)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"directory": "/srv/old/allocations/x"}, "the mounts of this container point to /srv/old"),
        ({"gpus": (uuid(0), uuid(1))}, "which GPU has how many of them cannot be told"),
        ({"gpus": ("GPU-of-another-node",)}, "cannot be told"),
    ],
)
def test_an_allocation_that_cannot_be_restored_where_its_mounts_point_does_not_start(
    call, kept, store, change, text
):
    async def story(stub):
        await stub.Allocate(allocate(device_ids(0, 1, 2)))
        (lost,) = store.table.allocations
        kept[:] = [kept_of(lost, store, **change)]
        store.update(store.table.without([lost.id]))
        store.dirs.remove(lost.id)
        said = await refusal(stub.PreStartContainer(pre_start(device_ids(0, 1, 2))))
        assert text in said and "delete the pod" in said

    call(story)


def test_a_lost_allocation_is_restored_with_what_its_pod_asked_for(call, cluster, kept, store):
    """Its share of compute is on the pod: with the memory alone it would have all of it."""
    cluster.put(gpu_pod("a", 2, cores="30"))

    async def story(stub):
        await stub.Allocate(allocate(device_ids(0, 1, 2)))
        (lost,) = store.table.allocations
        assert lost.policy.cores == 30
        kept[:] = [kept_of(lost, store)]
        store.update(store.table.without([lost.id]))
        store.dirs.remove(lost.id)
        await stub.PreStartContainer(pre_start(device_ids(0, 1, 2)))
        (again,) = store.table.allocations
        assert (again.id, again.quota(), again.policy.cores) == (lost.id, lost.quota(), 30)
        assert not plugin(again).undecided
        (page,) = vcuda.read_limits(store.dirs.path(again.id) / "limits").gpus
        assert (page.memory_bytes, page.cores_percent) == (2 << 30, 30)

    call(story)
