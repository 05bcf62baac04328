# SPDX-License-Identifier: Apache-2.0
"""Assignments: the scheduler's GPUs are the container's, whatever device IDs the kubelet hands over."""

import asyncio
from dataclasses import replace

import pytest

import vcuda
from agent.allocation.start_wait import StartTimes
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse
from gigaslice.core.model import Share
from tests.fakes.nodes import GIB, all_device_ids, device_ids, inventory, uuid
from tests.fakes.plugin_calls import allocate, pre_start, prefer, refusal
from tests.fakes.pods import gpu_pod
from vcuda import contract

GPU, CLASS = "gigaslice.io/vgpu-memory", "gpuclass.gigaslice.io/nvidia.l4"


@pytest.fixture
def times():
    return StartTimes(patience=0.2)


def pages(store):
    """Per allocation the slices and the share of compute of each GPU, as its limits page says them."""
    return [
        {
            gpu.uuid: (gpu.memory_bytes // GIB, gpu.cores_percent)
            for gpu in vcuda.read_limits(store.dirs.path(one.id) / contract.LIMITS_FILE).gpus
        }
        for one in store.table.allocations
    ]


async def visible(stub, chosen):
    (answer,) = (await stub.Allocate(allocate(chosen))).container_responses
    return answer.envs["NVIDIA_VISIBLE_DEVICES"].split(",")


def test_the_assigned_gpus_are_preferred_given_and_limited(call, cluster, store):
    cluster.put(gpu_pod("a", 8, assigned={"c0": (Share(uuid(0), 3, 20), Share(uuid(1), 5))}))

    async def story(stub):
        chosen = await prefer(stub, 8)
        assert [sum(one.startswith(uuid(n)) for one in chosen) for n in (0, 1)] == [3, 5]
        assert await visible(stub, chosen) == [uuid(0), uuid(1)]
        await stub.PreStartContainer(pre_start(chosen))

    call(story)
    assert pages(store) == [{uuid(0): (3, 20), uuid(1): (5, 0)}]
    assert store.table.allocations[0].assigned


@pytest.mark.parametrize(
    "chosen", [device_ids(0, *range(8)), device_ids(1, *range(4)) | device_ids(0, 0, 1, 2, 3)]
)
def test_device_ids_of_any_name_get_the_assigned_gpu(call, cluster, store, chosen):
    cluster.put(gpu_pod("a", 8, assigned={"c0": (Share(uuid(1), 8),)}))

    async def story(stub):
        assert await visible(stub, chosen) == [uuid(1)]
        await stub.PreStartContainer(pre_start(chosen))

    call(story)
    assert pages(store) == [{uuid(1): (8, 0)}]


def test_annotations_go_on_meaning_what_they_mean_and_choose_nothing(call, cluster, store):
    cluster.put(
        gpu_pod("a", 8, assigned={"c0": (Share(uuid(1), 8, 30),)}, cores="30", elastic="true",
            **{"gpu-type": "H100"})
    )  # fmt: skip

    async def story(stub):
        assert await visible(stub, device_ids(0, *range(8))) == [uuid(1)]

    call(story)
    (one,) = store.table.allocations
    assert (one.policy.cores, one.policy.elastic, one.given_cores) == (30, True, {})


@pytest.mark.parametrize("cores", [
    ({}, 0, 0), ({"cores": "30"}, 30, 30), ({}, 40, 40),  # the last from a class
    ({}, 100, 0), ({"cores": "30"}, 100, 30),
])  # fmt: skip
def test_a_container_with_gpus_of_its_own_has_the_compute_that_was_asked_for(call, cluster, store, cores):
    asked, assigned, limit = cores
    cluster.put(gpu_pod("a", 8, assigned={"c0": (Share(uuid(0), 8, assigned),)}, exclusive="true", **asked))

    async def story(stub):
        await visible(stub, device_ids(0, *range(8)))

    call(story)
    assert pages(store) == [{uuid(0): (8, limit)}]


@pytest.mark.parametrize(
    ("assigned", "says"),
    [
        ({"c0": (Share("GPU-elsewhere", 8),)}, "which this node does not have"),
        ({"c0": (Share(uuid(0), 9),)}, "9 slices, and it asks for 8 slices"),
        ({"other": (Share(uuid(0), 8),)}, "is for other"),
        ("{", "is not JSON"),
    ],
)
def test_what_cannot_be_executed_is_refused_with_an_event_and_no_other_gpu_is_given(
    call, cluster, store, assigned, says
):
    cluster.put(gpu_pod("a", 8, assigned=assigned))

    async def story(stub):
        assert await prefer(stub, 8) == []
        assert says in await refusal(stub.Allocate(allocate(device_ids(0, *range(8)))))

    call(story)
    assert store.table.allocations == ()
    (text,) = cluster.said("AssignmentNotExecutable")
    assert says in text
    assert not cluster.said("GPURequestInfeasible")


def test_a_class_that_no_scheduler_of_ours_has_seen_is_refused(call, cluster, store):
    cluster.put(gpu_pod("a", 8, also={CLASS: 1}))

    async def story(stub):
        said = await refusal(stub.Allocate(allocate(device_ids(0, *range(8)))))
        assert "no scheduler of gigaslice chose the GPUs of this pod" in said
        assert "schedulerName: gigaslice-scheduler" in said

    call(story)
    assert cluster.said("AssignmentNotExecutable")
    assert store.table.allocations == ()


def test_pods_without_an_assignment_are_placed_around_those_with_one(call, cluster, kubelet, store):
    cluster.put(gpu_pod("sent", 20, assigned={"c0": (Share(uuid(0), 20),)}))

    async def story(stub):
        await visible(stub, device_ids(1, *range(20)))
        kubelet.holding["default", "sent"] = frozenset({"c0"})
        cluster.put(gpu_pod("plain", 8))
        assert await visible(stub, device_ids(0, *range(8))) == [uuid(1)]
        await stub.PreStartContainer(pre_start(device_ids(0, *range(8))))

    call(story)
    assert [one.assigned for one in store.table.allocations] == [True, False]


def test_an_assignment_onto_what_another_pod_holds_waits_and_says_so(call, cluster, kubelet, store):
    cluster.put(gpu_pod("plain", 20))

    async def story(stub):
        on = (await visible(stub, device_ids(0, *range(20))))[0]
        kubelet.holding["default", "plain"] = frozenset({"c0"})
        cluster.put(gpu_pod("sent", 8, assigned={"c0": (Share(on, 8),)}))
        chosen = device_ids(1, *range(8))
        assert await visible(stub, chosen) == [on]
        assert "waiting for 4 GiB of " + on in await refusal(stub.PreStartContainer(pre_start(chosen)))
        store.update(store.table.without([store.table.allocations[0].id]))
        await stub.PreStartContainer(pre_start(chosen))

    call(story)
    assert "held by default/plain/c0" in cluster.said("WaitingForGPU")[0]


@pytest.mark.parametrize("there, sent", [
    ((20, {}), (8, 0, {})),  # too little memory is left
    ((4, {}), (8, 0, {"exclusive": "true"})),  # the GPU is not its alone
    ((4, {"cores": "80"}), (8, 40, {"cores": "40"})),  # too little compute is left
])  # fmt: skip
def test_who_is_on_a_gpu_may_start_again_while_an_assignment_waits_for_it(
    call, cluster, kubelet, there, sent
):
    """The later one waits for the earlier one, and never the other way round."""
    (held, asked), (slices, cores, annotations) = there, sent
    cluster.put(gpu_pod("first", held, **asked))

    async def story(stub):
        first, later = device_ids(0, *range(held)), device_ids(1, *range(slices))
        (on,) = await visible(stub, first)
        kubelet.holding["default", "first"] = frozenset({"c0"})
        await stub.PreStartContainer(pre_start(first))
        cluster.put(gpu_pod("sent", slices, assigned={"c0": (Share(on, slices, cores),)}, **annotations))
        assert await visible(stub, later) == [on]
        await stub.PreStartContainer(pre_start(first))
        assert "waiting for" in await refusal(stub.PreStartContainer(pre_start(later)))

    call(story)


def test_a_cordoned_gpu_is_waited_for_by_an_assignment(call, cluster, gpus, store):
    gpus.replace(replace(inventory(unhealthy=(0,)), cordoned=frozenset({uuid(0)})))
    cluster.put(gpu_pod("sent", 8, assigned={"c0": (Share(uuid(0), 8),)}))

    async def story(stub):
        chosen = device_ids(1, *range(8))
        assert await visible(stub, chosen) == [uuid(0)]
        assert "is not healthy" in await refusal(stub.PreStartContainer(pre_start(chosen)))
        gpus.replace(inventory())
        await stub.PreStartContainer(pre_start(chosen))
        gpus.replace(replace(inventory(unhealthy=(0,)), cordoned=frozenset({uuid(0)})))
        await stub.PreStartContainer(pre_start(chosen))  # again, since it has started before

    call(story)


def test_an_unhealthy_gpu_is_waited_for_and_not_replaced(call, cluster, gpus, store):
    gpus.replace(inventory(unhealthy=(0,)))
    cluster.put(gpu_pod("sent", 8, assigned={"c0": (Share(uuid(0), 8),)}))

    async def story(stub):
        chosen = device_ids(1, *range(8))
        assert await visible(stub, chosen) == [uuid(0)]
        assert "is not healthy" in await refusal(stub.PreStartContainer(pre_start(chosen)))
        gpus.replace(inventory())
        await stub.PreStartContainer(pre_start(chosen))

    call(story)


def test_an_init_container_lends_what_the_scheduler_counted(call, cluster, kubelet, store):
    """Two GPUs are full but for what the init container has of them: its pod must not wait for itself."""
    cluster.put(gpu_pod("full", 44, assigned={"c0": (Share(uuid(0), 22), Share(uuid(1), 22))}))
    one, other = device_ids(0, 22, 23), device_ids(1, 22, 23)

    async def story(stub):
        await visible(stub, frozenset(all_device_ids(inventory())) - one - other)
        kubelet.holding["default", "full"] = frozenset({"c0"})
        both = (Share(uuid(0), 2), Share(uuid(1), 2))
        cluster.put(gpu_pod("p", 2, init=(4,), assigned={"i0": both, "c0": (Share(uuid(0), 2),)}))
        assert await visible(stub, one | other) == [uuid(0), uuid(1)]
        assert await visible(stub, other) == [uuid(0)]
        await stub.PreStartContainer(pre_start(one | other))
        await stub.PreStartContainer(pre_start(other))

    call(story)


def test_a_lost_allocation_is_restored_with_what_was_assigned(call, cluster, kept, store):
    """The names of its device IDs say nothing of its GPUs; its pod does."""
    cluster.put(gpu_pod("a", 8, assigned={"c0": (Share(uuid(0), 3, 20), Share(uuid(1), 5))}))
    chosen = device_ids(0, *range(8))

    async def story(stub):
        await visible(stub, chosen)
        (lost,) = store.table.allocations
        place = str(store.dirs.path(lost.id))
        kept[:] = [
            KeptAllocateResponse("uid-a", "c0", plugin(lost).device_ids, lost.id, place, (uuid(0), uuid(1)))
        ]
        store.update(store.table.without([lost.id]))
        store.dirs.remove(lost.id)
        await stub.PreStartContainer(pre_start(chosen))

    call(story)
    assert pages(store) == [{uuid(0): (3, 20), uuid(1): (5, 0)}]
    assert store.table.allocations[0].assigned


# --- the watch is late -----------------------------------------------------------------------------------------------


def test_a_pod_that_the_watch_shows_while_the_agent_waits_gets_its_gpus(call, cluster, kubelet, store):
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        calling = asyncio.ensure_future(stub.Allocate(allocate(device_ids(0, *range(8)))))
        await asyncio.sleep(0.1)
        kubelet.hidden = []
        cluster.put(gpu_pod("late", 8, assigned={"c0": (Share(uuid(1), 8),)}))
        (answer,) = (await calling).container_responses
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == uuid(1)

    call(story)
    assert not plugin(store.table.allocations[0]).undecided


def test_a_wrong_guess_never_starts_and_the_pod_is_made_anew(call, cluster, kubelet, store):
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        chosen = device_ids(0, *range(8))
        assert await visible(stub, chosen) == [uuid(0)]
        cluster.put(gpu_pod("late", 8, assigned={"c0": (Share(uuid(1), 8),)}, controlled=True))
        for _ in range(2):
            said = await refusal(stub.PreStartContainer(pre_start(chosen)))
            assert f"it was assigned 8 slices of {uuid(1)}; delete the pod" in said
        assert len(cluster.evicted) == 1

    call(story)
    assert cluster.said("AssignmentNotExecutable")
    (one,) = store.table.allocations
    assert plugin(one).undecided
    assert not one.assigned


def test_a_right_guess_of_the_gpus_is_given_the_assigned_parts_of_them(call, cluster, kubelet, store):
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        chosen = device_ids(0, *range(24)) | device_ids(1, *range(8))
        assert await visible(stub, chosen) == [uuid(0), uuid(1)]
        cluster.put(gpu_pod("late", 32, assigned={"c0": (Share(uuid(0), 20, 50), Share(uuid(1), 12, 50))}))
        await stub.PreStartContainer(pre_start(chosen))

    call(story)
    assert pages(store) == [{uuid(0): (20, 50), uuid(1): (12, 50)}]
    assert store.table.allocations[0].assigned


def test_a_guess_that_was_assigned_more_than_there_is_waits_behind_who_is_there(
    call, cluster, kubelet, store
):
    """It was guessed to fit, and what it was assigned does not: the container before it may start again."""
    cluster.put(gpu_pod("first", 8))

    async def story(stub):
        first = device_ids(1, *range(16, 24))
        (on,) = await visible(stub, first)
        kubelet.holding["default", "first"] = frozenset({"c0"})
        await stub.PreStartContainer(pre_start(first))
        kubelet.hidden = [("default", "late")]
        late = device_ids(0, *range(24)) | device_ids(1, *range(8))
        assert await visible(stub, late) == [uuid(0), uuid(1)]
        parts = {uuid(0): 12, uuid(1): 12, on: 20}
        cluster.put(gpu_pod("late", 32, assigned={"c0": tuple(Share(gpu, parts[gpu]) for gpu in parts)}))
        assert f"waiting for 4 GiB of {on}" in await refusal(stub.PreStartContainer(pre_start(late)))
        await stub.PreStartContainer(pre_start(first))

    call(story)


def test_a_late_pod_with_a_class_and_no_assignment_never_starts(call, cluster, kubelet, store):
    kubelet.hidden = [("default", "late")]

    async def story(stub):
        chosen = device_ids(0, *range(8))
        await visible(stub, chosen)
        cluster.put(gpu_pod("late", 8, also={CLASS: 1}))
        assert "no scheduler of gigaslice" in await refusal(stub.PreStartContainer(pre_start(chosen)))

    call(story)
    assert cluster.said("AssignmentNotExecutable")


def test_the_assignment_of_the_pod_that_had_the_name_before_is_not_executed(call, cluster, kubelet, store):
    cluster.put(gpu_pod("web-0", 8, assigned={"c0": (Share(uuid(0), 8),)}, uid="old"))

    async def story(stub):
        await visible(stub, device_ids(0, *range(8)))
        later = device_ids(0, *range(8, 16))
        await stub.Allocate(
            allocate(later)
        )  # the kubelet lists the new pod, the watch still shows the old one
        assert plugin(store.table.allocations[-1]).undecided
        assert "waiting for the pod's annotations" in await refusal(stub.PreStartContainer(pre_start(later)))
        on = next(iter(store.table.allocations[-1].quota()))
        cluster.put(gpu_pod("web-0", 8, assigned={"c0": (Share(on, 8),)}, uid="new"))
        await stub.PreStartContainer(pre_start(later))

    call(story)
    assert plugin(store.table.allocations[-1]).owner.uid == "new"


def test_on_a_node_with_assigned_pods_an_unknown_one_never_starts_with_defaults(
    call, cluster, kubelet, store
):
    cluster.put(gpu_pod("sent", 8, assigned={"c0": (Share(uuid(0), 8),)}))

    async def story(stub):
        await visible(stub, device_ids(0, *range(8)))
        kubelet.holding["default", "sent"] = frozenset({"c0"})
        cluster.expected = False  # the API server refuses us from now on
        later = device_ids(1, *range(8))
        await stub.Allocate(allocate(later))
        assert "waiting for the pod's annotations" in await refusal(stub.PreStartContainer(pre_start(later)))

    call(story)
