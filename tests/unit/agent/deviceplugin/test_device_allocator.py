# SPDX-License-Identifier: Apache-2.0
import random
from dataclasses import replace

import pytest

import vcuda
from agent.allocation.request import ImpossibleError
from agent.deviceplugin.requester import PreviousHolders
from agent.inventory.holder import InventoryHolder
from agent.roles.records import CODEC
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.deviceplugin.origin import held, plugin, with_origin
from gigaslice.core.errors import StorageError
from tests.fakes.nodes import GIB, all_device_ids, device_ids, inventory, uuid
from tests.unit.agent.conftest import make_allocator
from vcuda import contract

REF = ContainerRef("default", "p", "main")


def gpus(allocation):
    return {hold.gpu: hold.memory_bytes // hold.slice_bytes for hold in allocation.holds}


def name_all(store):
    """As if the kubelet had listed every container."""

    store.update(store.table.replaced(with_origin(one, container=REF) for one in store.table.allocations))


def test_everything_is_on_disk_before_the_answer(store, allocator):
    (one,) = allocator.allocate([device_ids(0, *range(8))])
    path = store.dirs.path(one.id)
    assert store.dirs.problem(one) is None
    assert vcuda.read_limits(path / contract.LIMITS_FILE).gpus[0].memory_bytes == 8 * GIB
    from agent.persistence.store import read_only

    assert read_only(store.state_dir, CODEC)[0] == store.table


def test_the_preferred_set_is_what_placement_does(store, allocator):
    free = set(all_device_ids(inventory()))
    for size in (8, 4, 12, 10, 14):
        wanted = allocator.prefer(sorted(free), [], size)
        assert len(wanted) == size
        (one,) = allocator.allocate([wanted])
        assert gpus(one) == {wanted[0].rpartition("/")[0]: size}
        assert not one.waiting
        free -= set(wanted)
    assert not free


def test_any_set_is_counted_and_placed(allocator):
    """The kubelet may pick at random across GPUs."""
    allocator.allocate([device_ids(0, *range(8))])
    (one,) = allocator.allocate([device_ids(0, 10, 11) | device_ids(1, 3, 4, 5)])
    assert gpus(one) == {uuid(0): 5}, "the GPU that is shared already is filled first"


def test_device_ids_of_one_numa_node_keep_the_container_there(store):
    allocator = make_allocator(store, inventory(4, 8, numa=(0, 1)))
    (one,) = allocator.allocate([device_ids(1, 1, 2) | device_ids(3, 0, 1)])
    assert set(gpus(one)) <= {uuid(1), uuid(3)}


def test_more_than_a_gpu_is_spread_evenly(allocator):
    (one,) = allocator.allocate([device_ids(0, *range(24)) | device_ids(1, *range(7))])
    assert gpus(one) == {uuid(0): 16, uuid(1): 15}


def test_more_than_the_node_has_fails_with_a_text_a_user_can_act_on(store, allocator):
    with pytest.raises(ImpossibleError) as caught:
        allocator.allocate([[f"x/{n}" for n in range(49)]])
    assert "49 slices" in str(caught.value)
    assert store.table.allocations == ()
    assert store.dirs.read_all() == {}


def test_no_devices_at_all(allocator):
    with pytest.raises(ImpossibleError):
        allocator.allocate([[]])


def test_several_containers_at_once_are_all_or_none(store, allocator):
    with pytest.raises(ImpossibleError):
        allocator.allocate([device_ids(0, 1), [f"x/{n}" for n in range(49)]])
    assert store.table.allocations == ()
    assert store.dirs.read_all() == {}
    assert len(allocator.allocate([device_ids(0, 1), device_ids(0, 2), device_ids(0, 3)])) == 3


def test_ids_this_agent_never_gave_out_are_counted_too(allocator):
    (one,) = allocator.allocate([["odd", "GPU-old/7", f"{uuid(1)}/3"]])
    assert sum(gpus(one).values()) == 3


def test_init_containers_lend_their_device_ids(store, allocator):
    """init 4 · init 2 of the same · sidecar 3 of them · app 3 with the last · as a kubelet was seen to do it."""
    (init0,) = allocator.allocate([device_ids(0, 6, 7, 0, 1)])
    (init1,) = allocator.allocate([device_ids(0, 6, 1)])
    (sidecar,) = allocator.allocate([device_ids(0, 7, 0, 1)])
    wanted = allocator.prefer(
        sorted(set(all_device_ids(inventory())) - device_ids(0, 7, 0, 1)), [f"{uuid(0)}/6"], 3
    )
    assert f"{uuid(0)}/6" in wanted
    (app,) = allocator.allocate([wanted])
    assert {uuid(0)} == set(gpus(init0)) | set(gpus(init1)) | set(gpus(sidecar)) | set(gpus(app))
    assert sum(len(held(one)) for one in store.table.allocations) == 6
    assert all(store.dirs.problem(one) is None for one in store.table.allocations), (
        "an init container may run again"
    )


def test_a_pod_that_is_gone_makes_room_at_the_next_question(store, allocator):
    (first,) = allocator.allocate([device_ids(0, *range(24))])
    allocator.allocate([device_ids(1, *range(20))])
    free = set(all_device_ids(inventory())) - device_ids(1, *range(20))
    wanted = allocator.prefer(sorted(free), [], 24, holders=PreviousHolders(frozenset({first.id})))
    (third,) = allocator.allocate([wanted])
    assert gpus(third) == {uuid(0): 24}
    assert not third.waiting
    assert store.dirs.path(first.id).exists(), "given up only when the kubelet does not list it any more"


def test_a_fragmented_node_admits_and_holds_back_the_start(store, allocator):
    (a,) = allocator.allocate([device_ids(0, *range(18))])
    (b,) = allocator.allocate([device_ids(1, *range(18))])
    name_all(store)
    (late,) = allocator.allocate([device_ids(0, 18, 19, 20, 21) | device_ids(1, 18, 19, 20, 21)])
    assert late.waiting
    (gpu,) = gpus(late)
    reason = allocator.service.start_blocker(late)
    assert f"2 GiB of {gpu}" in reason
    assert "default/p/main" in reason
    holder = a if uuid(0) == gpu else b
    store.update(store.table.with_ended({holder.id}))
    assert allocator.service.start_blocker(store.table.find(late.id)) is None
    assert not store.table.find(late.id).waiting


def test_a_second_one_that_waits_queues_where_it_is_shortest(store, allocator):
    allocator.allocate([device_ids(0, *range(18))])
    allocator.allocate([device_ids(1, *range(18))])
    (first,) = allocator.allocate([device_ids(0, 18, 19, 20, 21) | device_ids(1, 18, 19, 20, 21)])
    (second,) = allocator.allocate([device_ids(0, 22) | device_ids(1, 22, 23)])
    assert first.waiting
    assert not second.waiting
    assert set(gpus(second)).isdisjoint(gpus(first))


def test_an_unhealthy_gpu_is_avoided_and_waited_for(store):
    allocator = make_allocator(store, inventory(2, unhealthy=(0,)))
    (one,) = allocator.allocate([device_ids(0, *range(8))])
    assert gpus(one) == {uuid(1): 8}
    (two,) = allocator.allocate([device_ids(1, *range(20))])
    assert two.waiting


def test_doubtful_questions_get_no_answer_and_no_error(allocator):
    assert allocator.prefer([f"{uuid(0)}/1"], [], 0) == ()
    assert len(allocator.prefer([f"{uuid(0)}/1"], [], 5)) <= 1


def test_a_disk_that_is_full_changes_nothing(store, allocator, monkeypatch):
    def full(*arguments, **keywords):
        raise vcuda.errors.SystemError_("cannot create the ledger", "No space left on device")

    monkeypatch.setattr(vcuda, "fill_ledger", full)
    with pytest.raises(StorageError, match="No space left"):
        allocator.allocate([device_ids(0, 1)])
    assert store.table.allocations == ()


def test_the_container_that_the_kubelet_means(allocator):
    (first,) = allocator.allocate([device_ids(0, 1, 2)])
    (second,) = allocator.allocate([device_ids(0, 1, 2)])
    assert [one.id for one in allocator.find([f"{uuid(0)}/2", f"{uuid(0)}/1"])] == [second.id, first.id]
    assert allocator.find(["x/1"]) == ()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_kubelet_does_no_gpu_is_given_out_twice(store, seed):
    """A node's life with a kubelet that takes the preferred set, skips it, completes it at random, and ends pods."""
    rng = random.Random(seed)
    found = inventory(3, 8, numa=(0, 1))
    allocator = make_allocator(store, found)
    free, pods = set(all_device_ids(found)), []
    for _ in range(60):
        if pods and (not free or rng.random() < 0.45):
            free |= pods.pop(rng.randrange(len(pods)))
            continue
        size = rng.randint(1, min(len(free), 10))
        kind = rng.random()
        wanted = set(allocator.prefer(rng.sample(sorted(free), len(free)), [], size)) if kind < 0.8 else set()
        if kind < 0.2:
            wanted = set(rng.sample(sorted(wanted), len(wanted) // 2))
        wanted |= set(rng.sample(sorted(free - wanted), size - len(wanted)))
        (one,) = allocator.allocate([wanted])
        assert plugin(one).device_ids == wanted
        free -= wanted
        pods.append(wanted)
        check(store, found, asked=kind < 0.8)


def check(store, found, asked):
    """No device ID counts twice, and a GPU holds more than it has only where a container waits for it."""
    taken = [device_id for one in store.table.allocations for device_id in held(one)]
    assert len(taken) == len(set(taken))
    for gpu in found.gpus:
        on_gpu = [one for one in store.table.allocations if held(one) and gpu.uuid in gpus(one)]
        promised = sum(share.slices for one in on_gpu for share in one.shares if share.gpu == gpu.uuid)
        if asked:  # only then has the kubelet told who is gone
            assert promised <= gpu.slices or any(one.waiting for one in on_gpu)


def test_who_was_there_before_a_cordon_may_start_again_and_nobody_else(store):
    """A cordon keeps new containers away. What runs goes on, and a container that ends may be started again."""
    holder = InventoryHolder(inventory())
    allocator = make_allocator(store, holder)
    (there,) = allocator.allocate([device_ids(0, *range(8))])
    sick = inventory(unhealthy=(0,))
    holder.replace(replace(sick, cordoned=frozenset({uuid(0)})))
    assert allocator.service.start_blocker(there) is None
    late = replace(there, waiting=True)
    store.update(store.table.replaced([late]))
    assert f"{uuid(0)} is not healthy" in allocator.service.start_blocker(late)
    store.update(store.table.replaced([there]))
    holder.replace(sick)
    assert f"{uuid(0)} is not healthy" in allocator.service.start_blocker(there), "broken, not only cordoned"


def test_a_host_that_does_not_say_what_is_left_holds_up_only_who_needs_some_of_it(store):
    found = inventory(1, 24)
    (gpu,) = found.gpus
    lending = replace(gpu, memory_bytes=16 * GIB, host_bytes=8 * GIB)
    allocator = make_allocator(store, replace(found, gpus=(lending,)), host_left=lambda: None)
    (first,) = allocator.allocate([device_ids(0, *range(16))])
    assert allocator.service.start_blocker(first) is None, "all of it is in the GPU's own memory"
