# SPDX-License-Identifier: Apache-2.0
"""What becomes of allocations whose pods were not known when they were made."""

from agent.deviceplugin.requester import ContainerMatch, Requester
from agent.deviceplugin.settlement import Settler
from gigaslice.core.deviceplugin.origin import plugin
from tests.fakes.nodes import device_ids, whole_allocation
from tests.fakes.pods import gpu_pod

GPU = "gigaslice.io/vgpu-memory"


def requester(count=0, also=None):
    pod = gpu_pod("a", count, also=also)
    return Requester(pod, pod.containers[0])


def test_a_late_pod_with_a_class_that_nobody_assigned_has_to_be_made_anew(store, allocator):
    match = ContainerMatch(None, ("default/a",), ("default/a",))
    (guessed,) = allocator.allocate([device_ids(0, 1, 2)], match)
    late = requester(2, {"gpuclass.gigaslice.io/nvidia.l4": 1})
    settled = Settler(store, allocator).settle(guessed, late)
    assert "no scheduler of gigaslice chose the GPUs" in settled.reason
    assert settled.remake and settled.refused
    assert plugin(store.table.find(guessed.id)).undecided


def test_a_whole_gpu_that_was_given_before_its_pod_was_known_is_settled_for_it(store, allocator):
    guessed = whole_allocation(1, 0, library=store.library, undecided=True)
    store.commit(store.table.with_allocation(guessed), [guessed])
    assert Settler(store, allocator).settle(guessed, requester(also={"gigaslice.io/gpu": 1})).reason is None
    decided = store.table.find(guessed.id)
    assert (plugin(decided).undecided, plugin(decided).owner.uid, decided.assigned) == (False, "uid-a", False)
