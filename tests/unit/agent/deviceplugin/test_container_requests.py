# SPDX-License-Identifier: Apache-2.0
"""Allocations for pods whose annotations are known: where they go, what is recorded, and what waits for a person."""

from dataclasses import replace

import pytest

import vcuda
from agent.allocation.request import ImpossibleError
from agent.deviceplugin.pod_events import remarks
from agent.deviceplugin.requester import ContainerMatch, Requester
from agent.deviceplugin.settlement import Settler
from agent.inventory.source import Inventory
from agent.roles.records import CODEC
from gigaslice.core.allocation.table import AllocationOptions, LiveLimit
from gigaslice.core.deviceplugin.origin import held, plugin
from gigaslice.core.model import Topology
from tests.fakes.nodes import all_device_ids, device_ids, inventory, uuid
from tests.fakes.pods import gpu_pod
from tests.unit.agent.conftest import make_allocator
from vcuda import contract

GPU = "gigaslice.io/vgpu-memory"
GPUS = 4


@pytest.fixture
def node(store):
    """Four GPUs of eight slices."""
    return Node(store)


class Node:
    """A kubelet that takes what is preferred, for pods of this test's making."""

    def __init__(self, store):
        self.store = store
        self.found = inventory(GPUS, 8)
        self.allocator = make_allocator(store, self.found)
        self.free = set(all_device_ids(self.found))

    def admit(self, pod, prefer=True, lent=frozenset()):
        """Allocations of all its containers, one after the other."""
        allocations = []
        for container in pod.asking(GPU):
            requester = Requester(pod, container)
            size = container.requests[GPU]
            must = set(sorted(lent)[:size])
            chosen = (
                self.allocator.prefer(sorted(self.free | must), sorted(must), size, requester)
                if prefer
                else ()
            )
            wanted = set(chosen) or set(sorted(self.free)[:size])
            assert len(wanted) == size
            allocations += self.allocator.allocate([sorted(wanted)], ContainerMatch(requester))
            self.free -= wanted
            lent = wanted if container.name.startswith("i") else lent - wanted
        return allocations

    def one(self, name, size, **annotations):
        (allocation,) = self.admit(gpu_pod(name, size, **annotations))
        return allocation

    def parts(self, allocation):
        return {hold.gpu: hold.memory_bytes // hold.slice_bytes for hold in allocation.holds}


def named(allocation):
    return {device_id.rpartition("/")[0] for device_id in plugin(allocation).device_ids}


def test_so_many_gpus_with_equal_parts(node):
    allocation = node.one("a", 8, gpus="4")
    assert set(node.parts(allocation).values()) == {2} and len(node.parts(allocation)) == 4
    assert named(allocation) == set(node.parts(allocation)), "the preference says the same"
    assert (
        plugin(allocation).owner.ref == plugin(allocation).ref
        and str(plugin(allocation).ref) == "default/a/c0"
    )


def test_different_sizes_per_gpu(node):
    allocation = node.one("a", 8, memory="2GiB,6GiB")
    assert sorted(node.parts(allocation).values()) == [2, 6]
    assert named(allocation) == set(node.parts(allocation))
    page = vcuda.read_limits(node.store.dirs.path(allocation.id) / contract.LIMITS_FILE)
    assert sorted(gpu.memory_bytes >> 30 for gpu in page.gpus) == [2, 6]


def test_uuids_and_types(node):
    assert set(node.parts(node.one("a", 2, gpu_uuid=uuid(3)))) == {uuid(3)}
    assert set(node.parts(node.one("b", 2, exclude_gpu_uuid=f"{uuid(3)},{uuid(0)},{uuid(1)}"))) == {uuid(2)}
    with pytest.raises(ImpossibleError, match="no GPU of type A100 on this node; it has NVIDIA L4"):
        node.one("c", 2, gpu_type="A100")
    assert len(node.store.table.allocations) == 2


def test_a_gpu_for_one_container_and_no_other_on_it(node):
    first = node.one("a", 1)
    alone = node.one("b", 3, exclusive="true")
    assert set(node.parts(alone)).isdisjoint(node.parts(first))
    others = [node.one(f"p{n}", 2) for n in range(11)]
    assert not any(set(node.parts(one)) & set(node.parts(alone)) for one in others)
    assert not any(one.waiting for one in others)
    late = node.one("late", 4)
    assert late.waiting
    assert node.allocator.service.start_blocker(late) is not None


def test_a_container_that_must_share_an_exclusive_gpu_waits_until_it_is_free(node):
    alone = node.one("alone", 2, exclusive="true", gpu_uuid=uuid(1))
    late = node.one("late", 2, gpu_uuid=uuid(1))
    reason = node.allocator.service.start_blocker(late)
    assert f"2 GiB of {uuid(1)}" in reason and "default/alone/c0 (2 GiB, exclusively)" in reason
    node.store.update(node.store.table.with_ended([alone.id]))
    assert node.allocator.service.start_blocker(node.store.table.find(late.id)) is None


def test_exclusive_waits_for_all_others_to_go(node):
    first = node.one("first", 2, gpu_uuid=uuid(1))
    alone = node.one("alone", 2, exclusive="true", gpu_uuid=uuid(1))
    reason = node.allocator.service.start_blocker(alone)
    assert "which is to be its alone" in reason and "default/first/c0" in reason
    node.store.update(node.store.table.with_ended([first.id]))
    assert node.allocator.service.start_blocker(node.store.table.find(alone.id)) is None


def test_the_containers_of_an_exclusive_pod_are_no_strangers_to_each_other(node):
    one, two, three = node.admit(gpu_pod("a", 2, 3, 8, exclusive="true"))
    assert node.parts(one).keys() == node.parts(two).keys() != node.parts(three).keys()
    assert [node.allocator.service.start_blocker(allocation) for allocation in (one, two, three)] == [
        None
    ] * 3
    init, app = node.admit(gpu_pod("b", 4, init=(4,), exclusive="true"))
    assert node.parts(init).keys() == node.parts(app).keys()
    assert [node.allocator.service.start_blocker(allocation) for allocation in (init, app)] == [None] * 2


def test_an_exclusive_container_has_the_compute_that_it_asks_for_and_its_pod_the_rest(node):
    alone, beside, last = node.admit(
        gpu_pod("a", 2, 2, 2, exclusive="true", gpu_uuid=uuid(0), **{"cores.c0": "30", "cores.c1": "70"})
    )
    assert [one.cores_of(uuid(0)) for one in (alone, beside, last)] == [30, 70, 0]
    assert [node.allocator.service.start_blocker(one) for one in (alone, beside, last)] == [None] * 3
    with pytest.raises(ImpossibleError, match="and 60% of its compute to other containers of the pod"):
        node.admit(gpu_pod("b", 2, 2, exclusive="true", cores="60", gpu_uuid=uuid(1)))


@pytest.mark.parametrize("size, others, annotations", [
    ((2, 2), 3, {"cores.c0": "80", "cores.c1": "40", "exclusive.c1": "true"}),
    ((7, 2), 7, {"exclusive.c1": "true"}),
    ((7, 4), 7, {"exclusive.c1": "true", "gpus.c1": "2"}),
    ((7, 4), 7, {"exclusive.c1": "true", "memory.c1": "2,2"}),
])  # fmt: skip
def test_an_exclusive_container_waits_for_others_and_never_for_its_own_pod(node, size, others, annotations):
    """Beside the first container of its pod is no room for it, and there never will be."""
    strangers = [node.one(f"f{number}", others, gpu_uuid=uuid(number)) for number in range(1, GPUS)]
    first, alone = node.admit(gpu_pod("a", *size, **annotations, **{"gpu_uuid.c0": uuid(0)}))
    on = set(node.parts(alone))
    assert uuid(0) not in on and "default/f" in node.allocator.service.start_blocker(alone)
    node.store.update(node.store.table.with_ended([one.id for one in strangers]))
    assert node.allocator.service.start_blocker(node.store.table.find(alone.id)) is None
    assert node.allocator.service.start_blocker(first) is None


def test_an_exclusive_container_is_not_beside_others_because_its_pod_is(node):
    node.one("other", 2, gpu_uuid=uuid(1))
    first, alone = node.admit(gpu_pod("a", 2, 2, **{"gpu_uuid.c0": uuid(1), "exclusive.c1": "true"}))
    assert set(node.parts(first)) == {uuid(1)} and set(node.parts(alone)).isdisjoint({uuid(1)})
    assert node.allocator.service.start_blocker(alone) is None


def test_what_an_init_container_has_is_waited_for(node):
    """It ends before the other container starts."""
    for number in range(1, GPUS):
        node.one(f"f{number}", 8, gpu_uuid=uuid(number))
    said = {"cores.i0": "80", "cores.c0": "40", "exclusive.c0": "true", "exclusive.i0": "true"}
    init, app = node.admit(gpu_pod("a", 4, init=(8,), **said))
    assert set(node.parts(init)) == set(node.parts(app)) == {uuid(0)}
    assert [node.allocator.service.start_blocker(one) for one in (init, app)] == [None, None]


def test_all_containers_on_one_gpu(node):
    for number in range(GPUS):
        node.one(f"f{number}", 4 if number else 3, gpu_uuid=uuid(number))
    node.one("more", 3, gpu_uuid=uuid(2))  # a fragment that the first container would fill
    allocations = node.admit(gpu_pod("a", 1, 2, 2, same_gpu="true"))
    assert {frozenset(node.parts(allocation)) for allocation in allocations} == {frozenset({uuid(0)})}
    assert not any(allocation.waiting for allocation in allocations)
    apart = node.admit(gpu_pod("b", 1, 4))
    assert len({frozenset(node.parts(allocation)) for allocation in apart}) == 2


def test_more_on_one_gpu_than_it_has_can_never_be(node):
    with pytest.raises(ImpossibleError, match="8"):
        node.admit(gpu_pod("a", 9, same_gpu="true"))


@pytest.mark.parametrize("requests, init, annotations, says", [
    ((5, 4), (), {"same_gpu": "true"}, "ask for 9 slices in all"),
    ((4, 2, 3), (), {"same_gpu": "true"}, "ask for 9 slices in all"),
    ((9, 9), (), {"same_gpu": "true", "gpus": "2"}, "ask for 18 slices in all"),
    ((5, 4), (), {"same_gpu.c1": "true"}, "never fit beside them"),
    ((2, 2), (), {"same_gpu": "true", "cores": "60"}, "never fit beside them"),
    ((2, 2), (), {"same_gpu": "true", "gpu_uuid.c0": uuid(0), "gpu_uuid.c1": uuid(1)}, "other annotations refuse"),
    ((2, 4), (), {"same_gpu": "true", "gpus.c0": "1", "gpus.c1": "2"}, "never fit beside them"),
    ((2, 9), (8,), {"same_gpu": "true"}, "ask for 11 slices in all"),
])  # fmt: skip
def test_containers_that_never_fit_one_gpu_together_are_told_at_once(node, requests, init, annotations, says):
    """The last of them would wait for the first to end, which ends with it."""
    for number in range(GPUS):
        node.one(f"f{number}", 1, gpu_uuid=uuid(number))
    with pytest.raises(ImpossibleError, match=says) as caught:
        node.admit(gpu_pod("a", *requests, init=init, **annotations))
    assert "gigaslice.io/same-gpu" in str(caught.value)


@pytest.mark.parametrize("requests, init, annotations", [
    ((5, 3), (), {"same_gpu": "true"}), ((4,), (8,), {"same_gpu": "true"}),
    ((8, 8), (), {"same_gpu": "true", "gpus": "2"}),
    ((2, 2), (), {"same_gpu": "true", "cores": "50"}), ((5, 3), (), {"same_gpu.c1": "true"}),
    ((4, 4), (), {"same_gpu": "true", "exclusive": "true"}), ((4, 4), (), {"same_gpu": "true", "memory": "2,2"}),
])  # fmt: skip
def test_containers_that_fit_one_gpu_together_are_placed_or_wait_for_others(
    node, requests, init, annotations
):
    allocations = node.admit(gpu_pod("a", *requests, init=init, **annotations))
    assert len({frozenset(node.parts(allocation)) for allocation in allocations}) == 1
    assert not any(allocation.waiting for allocation in allocations)
    late = node.admit(gpu_pod("b", 3, 3, same_gpu="true", gpu_uuid=next(iter(node.parts(allocations[0])))))
    assert len({frozenset(node.parts(allocation)) for allocation in late}) == 1


@pytest.mark.parametrize("annotations", [
    {"gpu_uuid": uuid(1), "exclude_gpu_uuid": uuid(1)},
    {"gpu_uuid": uuid(1), "exclude_gpu_uuid": "GPU-" + uuid(1)[4:].upper()},
    {"gpu_type": "L4", "exclude_gpu_type": "L4"}, {"gpus": "2", "memory": "1,1,2"}, {"gpus": "2", "gpu_uuid": uuid(1)},
    {"memory": "2,2", "gpu_uuid": uuid(1)}, {"gpus": "5"}, {"memory": "1,1"}, {"gpus": "2", "elastic": "1"},
    {"memory": "1,3", "elastic": "2"},
    {"gpus": "2", "memory": "1,1,2", "gpu_uuid": uuid(1), "exclude_gpu_uuid": uuid(1)},
])  # fmt: skip
def test_contradictions_hold_a_pod_back_and_do_not_fail_it(node, annotations):
    pod = gpu_pod("a", 4, **annotations)
    (allocation,) = node.admit(pod)
    (remark,) = remarks(node.allocator, Requester(pod, pod.containers[0]), allocation)
    assert plugin(allocation).undecided and "annotations to be corrected: gigaslice.io/" in remark
    assert (
        Settler(node.store, node.allocator).settle(allocation, Requester(pod, pod.containers[0])).reason
        == remark
    )
    better = gpu_pod("a", 4)
    assert (
        Settler(node.store, node.allocator).settle(allocation, Requester(better, better.containers[0])).reason
        is None
    )


def test_what_has_no_effect_on_a_container_is_said_of_it(node):
    pod = gpu_pod("a", 4, elastic="3", oversubscribe="true")
    (allocation,) = node.admit(pod)
    elastic, host = remarks(node.allocator, Requester(pod, pod.containers[0]), allocation)
    assert "3 slices are no more than the 4" in elastic and "no host memory" in host
    assert not plugin(allocation).undecided


def test_shares_of_compute_are_written_and_counted(node):
    first = node.one("a", 2, cores="60", gpu_uuid=uuid(0))
    page = vcuda.read_limits(node.store.dirs.path(first.id) / contract.LIMITS_FILE)
    assert [gpu.cores_percent for gpu in page.gpus] == [60]
    second = node.one("b", 2, cores="60")
    assert set(node.parts(second)) != {uuid(0)}
    third = node.one("c", 2, cores="50", gpu_uuid=uuid(0))
    assert third.waiting
    assert f"10% of the compute of {uuid(0)}" in node.allocator.service.start_blocker(third)
    assert node.allocator.service.start_blocker(node.one("d", 2, gpu_uuid=uuid(0))) is None, (
        "no share, no promise"
    )


def test_what_is_for_later_is_kept(node):
    allocation = node.one("a", 2, elastic="4GiB", oversubscribe="true", cores="10")
    assert allocation.policy == AllocationOptions(10, False, True, 4, True)
    from agent.persistence.store import read_only

    assert read_only(node.store.state_dir, CODEC)[0].allocations[0] == node.store.table.allocations[0]


def test_a_mistake_is_placed_without_it_and_held_back_until_it_is_corrected(node):
    pod = gpu_pod("a", 4, gpus="two", cores="30")
    (allocation,) = node.admit(pod)
    assert plugin(allocation).undecided and len(node.parts(allocation)) == 1
    (remark,) = remarks(node.allocator, Requester(pod, pod.containers[0]))
    assert 'gigaslice.io/gpus: "two" must be a whole number' in remark
    settled = Settler(node.store, node.allocator).settle(allocation, Requester(pod, pod.containers[0]))
    assert settled.reason == remark and not settled.remake
    better = gpu_pod("a", 4, gpus="1", cores="40")
    assert (
        Settler(node.store, node.allocator).settle(allocation, Requester(better, better.containers[0])).reason
        is None
    )
    decided = node.store.table.find(allocation.id)
    assert (plugin(decided).undecided, decided.policy.cores) == (False, 40)
    page = vcuda.read_limits(node.store.dirs.path(allocation.id) / contract.LIMITS_FILE)
    assert page.gpus[0].cores_percent == 40


def test_a_correction_that_needs_other_gpus_needs_another_pod(node):
    pod = gpu_pod("a", 4, gpus="two")
    (allocation,) = node.admit(pod)
    better = gpu_pod("a", 4, gpus="2")
    settled = Settler(node.store, node.allocator).settle(allocation, Requester(better, better.containers[0]))
    assert settled.remake and "delete the pod" in settled.reason
    assert plugin(node.store.table.find(allocation.id)).undecided


def test_a_correction_on_the_same_gpus_may_move_memory_between_them(node):
    pod = gpu_pod("a", 8, gpus="2", elastic="lots")
    (allocation,) = node.admit(pod)
    assert sorted(node.parts(allocation).values()) == [4, 4]
    better = gpu_pod("a", 8, memory="3,5")
    assert (
        Settler(node.store, node.allocator).settle(allocation, Requester(better, better.containers[0])).reason
        is None
    )
    decided = node.store.table.find(allocation.id)
    assert sorted(node.parts(decided).values()) == [3, 5]
    assert plugin(decided).device_ids == plugin(allocation).device_ids
    assert node.store.dirs.problem(decided) is None
    page = vcuda.read_limits(node.store.dirs.path(allocation.id) / contract.LIMITS_FILE)
    assert sorted(gpu.memory_bytes >> 30 for gpu in page.gpus) == [3, 5]


def test_what_no_client_could_tell_is_decided_later(node):
    (allocation,) = node.allocator.allocate(
        [device_ids(0, 1, 2)], ContainerMatch(None, ("default/a",), ("default/a",))
    )
    assert (
        plugin(allocation).undecided
        and plugin(allocation).owner is None
        and plugin(allocation).suspects == ("default/a",)
    )
    pod = gpu_pod("a", 2, exclusive="true")
    assert (
        Settler(node.store, node.allocator).settle(allocation, Requester(pod, pod.containers[0])).reason
        is None
    )
    decided = node.store.table.find(allocation.id)
    assert decided.policy.exclusive and plugin(decided).owner.uid == "uid-a" and not plugin(decided).undecided
    (other,) = node.allocator.allocate([device_ids(2, 1, 2)], ContainerMatch())
    assert Settler(node.store, node.allocator).settle(other, None).reason is None
    assert not plugin(node.store.table.find(other.id)).undecided


def test_without_access_nothing_is_undecided(node):
    (allocation,) = node.allocator.allocate([device_ids(0, 1, 2)])
    assert not plugin(allocation).undecided


def test_device_ids_of_another_gpu_than_the_options_allows_are_counted_and_not_followed(node):
    pod = gpu_pod("a", 2, gpu_uuid=uuid(3))
    (allocation,) = node.admit(pod, prefer=False)
    assert named(allocation) == {uuid(0)} and set(node.parts(allocation)) == {uuid(3)}


def test_init_containers_lend_by_name_and_a_pod_of_another_uid_lends_nothing(node):
    init, app = node.admit(gpu_pod("a", 2, init=(4,)))
    assert plugin(app).supersedes == (init.id,)
    kept = node.store.table.find(init.id)
    assert len(held(kept)) == 2 and not kept.ended
    other = gpu_pod("b", 2)
    node.allocator.allocate(
        [sorted(plugin(app).device_ids)], ContainerMatch(Requester(other, other.containers[0]))
    )
    assert not plugin(node.store.table.find(app.id)).lent
    assert plugin(node.store.table.find(app.id)).forgotten


@pytest.mark.parametrize("chosen", [
    device_ids(0, *range(15)) | device_ids(1, *range(15)),  # what the kubelet names are a placement, with more GPUs
    device_ids(0, *range(14)) | device_ids(1, *range(16)), device_ids(2, *range(30)),
])  # fmt: skip
def test_more_gpus_only_where_none_with_fewer_has_room(store, chosen):
    small, large = inventory(2, 16, numa=(0,)).gpus, inventory(3, 80, numa=(1,)).gpus[2]
    found = Inventory((*small, replace(large, model="NVIDIA H100")), Topology.flat(3))
    node = Node(store)
    node.allocator = make_allocator(store, found)
    first = gpu_pod("first", 30)
    (one,) = node.allocator.allocate([chosen], ContainerMatch(Requester(first, first.containers[0])))
    assert node.parts(one) == {uuid(2): 30}
    node.store.update(node.store.table.without([one.id]))
    (full,) = node.allocator.allocate([device_ids(2, *range(30, 80))])
    node.store.update(node.store.table.replaced([replace(full, limits=(LiveLimit(uuid(2), 80 << 30),))]))
    whole = gpu_pod("whole", 30, gpus="1")
    (waits,) = node.allocator.allocate([chosen], ContainerMatch(Requester(whole, whole.containers[0])))
    assert node.parts(waits) == {uuid(2): 30} and waits.waiting
    node.store.update(node.store.table.without([waits.id]))
    (two,) = node.allocator.allocate([chosen], ContainerMatch(Requester(first, first.containers[0])))
    assert node.parts(two).keys() == {uuid(0), uuid(1)} and not two.waiting
