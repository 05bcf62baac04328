# SPDX-License-Identifier: Apache-2.0
import pytest

from agent.allocation.assignments import shares_in
from agent.allocation.request import NotExecutableError
from agent.deviceplugin.assigned import assigned_to, named_for, with_assignment
from agent.deviceplugin.requester import Requester
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse
from gigaslice.core.model import Pod, PodContainer, Share
from tests.fakes.nodes import device_ids, inventory, uuid

MEMORY, CLASS = "gigaslice.io/vgpu-memory", "gpuclass.gigaslice.io/nvidia.l4"
GPUS = inventory(3, 24).gpus


def requester(text=None, **requests):
    container = PodContainer("c0", requests=requests or {MEMORY: 8})
    annotations = {} if text is None else {ASSIGNMENT: text}
    return Requester(Pod("default", "p", "u", annotations, (container,)), container)


def assignment(*shares, container="c0"):
    return Assignment({container: shares}).encode()


def refusal(text, slices=8, whole=0, **more):
    with pytest.raises(NotExecutableError) as caught:
        assigned_to(requester(text), GPUS, slices=slices, whole=whole, **more)
    return str(caught.value)


def test_a_pod_without_an_assignment_is_the_agents_to_place():
    assert assigned_to(requester(), GPUS, slices=8, whole=0) is None


def test_the_shares_come_in_the_order_of_the_gpus():
    text = assignment(Share(uuid(2), 3, 30), Share(uuid(0), 5))
    found = assigned_to(requester(text), GPUS, slices=8, whole=0)
    assert found.shares == (Share(uuid(0), 5), Share(uuid(2), 3, 30))
    assert found.whole == ()


def test_whole_gpus_and_slices_of_one_container_are_told_apart():
    text = assignment(Share(uuid(0), 24), Share(uuid(1), 24, 100), Share(uuid(2), 4))
    found = assigned_to(requester(text), GPUS, slices=28, whole=1)
    assert found.whole == (uuid(1),)
    assert found.shares == (Share(uuid(0), 24), Share(uuid(2), 4))
    assert assigned_to(requester(text), GPUS, slices=4, whole=2).whole == (uuid(0), uuid(1))


@pytest.mark.parametrize(
    ("text", "slices", "whole", "says"),
    [
        (assignment(Share("GPU-elsewhere", 8)), 8, 0, "names GPU-elsewhere, which this node does not have"),
        (assignment(Share(uuid(0), 9)), 8, 0, "9 slices, and it asks for 8 slices"),
        (assignment(Share(uuid(0), 8)), 0, 1, "8 slices, and it asks for 1 whole GPU"),
        (assignment(Share(uuid(0), 25)), 25, 0, "25 slices of " + uuid(0) + ", which has 24"),
        (assignment(Share(uuid(0), 8), container="other"), 8, 0, "is for other, and container c0 asks for GPUs too"),
        ("{}", 8, 0, "is for no container"),
        ("GPU-1:8", 8, 0, "annotation gigaslice.io/assignment: the assignment is not JSON"),
        ('{"c0":[["GPU-1"]]}', 8, 0, "without UUID and slices"),
    ],
)  # fmt: skip
def test_what_cannot_be_executed_says_what_is_wrong_and_what_to_do(text, slices, whole, says):
    found = refusal(text, slices, whole)
    assert says in found
    assert "delete the pod, so that it is scheduled again" in found


def test_a_container_may_have_less_of_a_gpu_than_the_gpu_has():
    """GPUs with lent host memory have slices that are for containers with the option alone."""
    assert "which has 7" in refusal(assignment(Share(uuid(0), 8)), most={uuid(0): 7})


def test_a_class_without_an_assignment_is_refused_with_the_scheduler_to_use():
    with pytest.raises(
        NotExecutableError, match="no scheduler of gigaslice chose the GPUs of this pod"
    ) as caught:
        assigned_to(requester(**{CLASS: 1, MEMORY: 8}), GPUS, slices=8, whole=0)
    assert "schedulerName: gigaslice-scheduler" in str(caught.value)


def test_device_ids_are_named_after_the_assigned_gpus_where_there_are_such():
    shares = (Share(uuid(1), 3), Share(uuid(0), 1))
    free = device_ids(0, 5, 6) | device_ids(1, 2, 10, 11, 3) | device_ids(2, 0)
    assert named_for(shares, free, [], 4) == (
        f"{uuid(1)}/2", f"{uuid(1)}/3", f"{uuid(1)}/10", f"{uuid(0)}/5",
    )  # fmt: skip
    assert named_for(shares, free | {f"{uuid(1)}/0"}, [f"{uuid(1)}/0"], 4) == (
        f"{uuid(1)}/0", f"{uuid(1)}/2", f"{uuid(1)}/3", f"{uuid(0)}/5",
    )  # fmt: skip
    few = named_for(shares, device_ids(2, 0, 1, 2) | device_ids(1, 0), [], 4)
    assert few[0] == f"{uuid(1)}/0"
    assert len(few) == 4


def test_an_answer_is_completed_by_the_pod_that_it_was_given_for_and_by_no_other():
    answer = KeptAllocateResponse("u", "c0", device_ids(0, 1, 2), "a" * 32, "", (uuid(0),))
    text = assignment(Share(uuid(0), 2))
    container = PodContainer("c0", requests={MEMORY: 2})
    own, other, plain = (
        Pod("default", "p", uid, annotations, (container,))
        for uid, annotations in (("u", {ASSIGNMENT: text}), ("v", {ASSIGNMENT: text}), ("u", {}))
    )
    assert with_assignment(answer, [other, own]).assigned == (Share(uuid(0), 2),)
    assert with_assignment(answer, [other, plain]) == with_assignment(answer, []) == answer


def test_reading_for_others_never_fails():
    assert shares_in(assignment(Share(uuid(0), 8)), "c0") == (Share(uuid(0), 8),)
    assert shares_in(assignment(Share(uuid(0), 8)), "c1") == ()
    assert shares_in("nonsense", "c0") == ()
