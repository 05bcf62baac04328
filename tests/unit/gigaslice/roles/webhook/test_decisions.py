# SPDX-License-Identifier: Apache-2.0
"""What admission adds to a pod, and what it says to a pod's author."""

from __future__ import annotations

import base64
import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.model import AnnotationRights
from gigaslice.roles.webhook.admission_pod import read_admission_pod
from gigaslice.roles.webhook.complete import completion_patch
from gigaslice.roles.webhook.mistakes import SHARE_BESIDE_OTHERS, findings
from gigaslice.roles.webhook.reviews import (
    ReviewError,
    answer_mutate,
    answer_validate,
    read_review,
    write_review,
)
from tests.unit.gigaslice.roles.webhook.pods import asks, facts, h100, inventory, pod
from tests.unit.manifests.test_chart import listed

FACTS = facts()


def applied(document, patch):
    """The document with the operations of a JSON Patch, of which only "add" occurs."""
    document = copy.deepcopy(document)
    for operation in patch:
        assert operation["op"] == "add"
        *path, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        )
        place = document
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[last] = operation["value"]
    return document


def completed_patch(document, known):
    return completion_patch(read_admission_pod(document), known)


def completed(document, known=FACTS):
    return applied(document, completed_patch(document, known))


def units(document, field="containers", number=0):
    limits = document["spec"][field][number]["resources"]["limits"]
    return {name: count for name, count in limits.items() if not name.startswith("gpuclass")}


def said(document, known=FACTS):
    """Mistakes as the author sees them, at whichever of the two questions they come up first."""
    first = answer_mutate(read_admission_pod(document), known)
    return first.message or answer_validate(read_admission_pod(completed(document, known)), known).message


def warned(document, known=FACTS):
    assert not said(document, known)
    return answer_validate(read_admission_pod(completed(document, known)), known).warnings


def test_annotations_that_nobody_has_checked_are_refused_with_a_sentence():
    document = pod(
        asks(limits={"gigaslice.io/vgpu-memory": 8}), annotations={"gigaslice.io/exclusive": "true"}
    )
    assert 'gigaslice.io/allow-exclusive: "true"' in said(document)
    assert not said(document, facts(units=ClusterUnits(rights=AnnotationRights.CHECKED)))


# --- what is added ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits, added", [
    ({"gpuclass.gigaslice.io/nvidia.h100": 2}, {"gigaslice.io/gpu": "2"}),
    ({"gpuclass.gigaslice.io/h100.small": 2}, {"gigaslice.io/vgpu-memory": "16"}),
    ({"gpuclass.gigaslice.io/h100.odd": 3}, {"gigaslice.io/vgpu-memory": "6"}),
    ({"gpuclass.gigaslice.io/nvidia.h100": 1, "gpuclass.gigaslice.io/nvidia.t4": 1}, {"gigaslice.io/gpu": "2"}),
    ({"gpuclass.gigaslice.io/h100.odd": 1, "gpuclass.gigaslice.io/h100.small": 1, "gigaslice.io/vgpu-memory": 10},
     {"gigaslice.io/vgpu-memory": "10"}),
    ({"gpuclass.gigaslice.io/nvidia.h100": 2, "gigaslice.io/vgpu-memory": 24}, {"gigaslice.io/vgpu-memory": "24"}),
    ({"gpuclass.gigaslice.io/nvidia.h100": 2, "gigaslice.io/gpu": 2}, {"gigaslice.io/gpu": "2"}),
    ({"gigaslice.io/vgpu-memory": 8}, {"gigaslice.io/vgpu-memory": "8"}),
    ({"gigaslice.io/vgpu-memory": 8, "cpu": 1}, {"gigaslice.io/vgpu-memory": "8", "cpu": "1"}),
])  # fmt: skip
def test_the_raw_unit_is_added_beside_a_class(limits, added):
    document = completed(pod(asks(limits=limits)))
    assert units(document) == added
    resources = document["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert document["spec"]["schedulerName"] == "gigaslice-scheduler"
    assert not said(document)


def test_init_containers_and_sidecars_get_it_too():
    sidecar = {**h100(), "restartPolicy": "Always"}
    document = completed(pod({}, init=({}, h100(2), sidecar)))
    assert units(document, "initContainers", 1) == {"gigaslice.io/gpu": "2"}
    assert units(document, "initContainers", 2) == {"gigaslice.io/gpu": "1"}
    assert document["spec"]["initContainers"][0] == {"name": "i0"}
    assert document["spec"]["containers"] == [{"name": "c0"}]


def test_another_units_name_is_the_agents_setting():
    known = facts(nodes={"a": inventory(("H100", 80), resource="example.com/gigaslice-memory")})
    limits = {"gpuclass.gigaslice.io/nvidia.h100": 1, "example.com/gigaslice-memory": 8}
    assert units(completed(pod(asks(limits=limits)), known)) == {"example.com/gigaslice-memory": "8"}


def test_limits_alone_are_completed_alone():
    container = {"resources": {"limits": {"gpuclass.gigaslice.io/nvidia.h100": "1"}}}
    assert completed(pod(container))["spec"]["containers"][0]["resources"].keys() == {"limits"}


@pytest.mark.parametrize(
    "document",
    [
        pod({}),
        pod(asks(limits={"cpu": 1, "nvidia.com/gpu": 1})),
        {"kind": "Pod"},
        {"kind": "Pod", "metadata": None, "spec": {"containers": None}},
        pod({"resources": None}),
    ],
)
def test_pods_that_ask_for_nothing_of_ours_are_left_alone(document):
    assert completed_patch(document, FACTS) == [] and not said(document) and not warned(document)


def test_a_chosen_scheduler_and_a_chosen_node_stay():
    memory = asks(limits={"gigaslice.io/vgpu-memory": 8})
    assert completed(pod(memory, schedulerName="mine"))["spec"]["schedulerName"] == "mine"
    assert completed(pod(memory, nodeName="n"))["spec"]["schedulerName"] == "default-scheduler"
    assert completed_patch(pod(memory), facts(scheduler="default-scheduler")) == []
    assert not said(pod(memory, schedulerName="mine"))


def test_adapters_alone_need_no_scheduler_of_ours():
    known = facts(resources=frozenset({"gigaslice.io/rdma"}))
    assert completed_patch(pod(asks(limits={"gigaslice.io/rdma": 1})), known) == []


COUNTS = st.dictionaries(
    st.sampled_from([
        "gpuclass.gigaslice.io/nvidia.h100", "gpuclass.gigaslice.io/h100.small", "gpuclass.gigaslice.io/nothing",
        "gigaslice.io/gpu", "gigaslice.io/vgpu-memory", "cpu", "gigaslice.io/oops",
    ]),
    st.sampled_from(["0", "1", "2", "-1", "many", "1k"]),
    max_size=3,
)  # fmt: skip


@given(
    st.lists(COUNTS, max_size=3), st.lists(COUNTS, max_size=2), st.sampled_from(["default-scheduler", "mine"])
)
def test_a_second_pass_adds_nothing_and_no_class_slips_past(apps, inits, scheduler):
    document = pod(
        *(asks(limits=one) for one in apps),
        init=tuple(asks(limits=one) for one in inits),
        schedulerName=scheduler,
    )
    once = completed(document)
    assert completed_patch(once, FACTS) == []
    names = [
        (container["name"], name)
        for field in ("containers", "initContainers")
        for container in once["spec"].get(field, ())
        for name in container["resources"]["limits"]
        if name.startswith("gpuclass")
    ]
    if names and not said(document):
        assert once["spec"]["schedulerName"] == "gigaslice-scheduler"
        for field in ("containers", "initContainers"):
            for container in once["spec"].get(field, ()):
                limits = container["resources"]["limits"].keys()
                if any(name.startswith("gpuclass") for name in limits):
                    assert limits & {"gigaslice.io/gpu", "gigaslice.io/vgpu-memory"}


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits, sentence", [
    ({"gpuclass.gigaslice.io/nvidia.h100": 1, "gpuclass.gigaslice.io/h100.small": 1},
     "class h100.small is a share of a GPU and class nvidia.h100 a whole one"),
    ({"gpuclass.gigaslice.io/nvidia.h10": 1},
     "container c0: gpuclass.gigaslice.io/nvidia.h10: there is no such class; did you mean "
     "gpuclass.gigaslice.io/nvidia.h100?"),
    ({"gpuclass.gigaslice.io/tpu": 1},
     "container c0: gpuclass.gigaslice.io/tpu: there is no such class; there are h100.odd, h100.small, nvidia.b200, "
     "nvidia.h100, nvidia.t4 (kubectl get resourceclasses)"),
    ({"gigaslice.io/vgpumemory": 1}, "did you mean gigaslice.io/vgpu-memory?"),
    ({"gigaslice.io/memory": 1}, "did you mean gigaslice.io/vgpu-memory?"),
    ({"gigaslice.io/gpus": 1}, "did you mean gigaslice.io/gpu?"),
    ({"gigaslice.com/gpu": 1}, "did you mean gigaslice.io/gpu?"),
    ({"gpuclasses.gigaslice.io/nvidia.h100": 1}, "did you mean gpuclass.gigaslice.io/nvidia.h100?"),
    ({"gpuclass.gigaslice.io/nvidia.h100": 0}, "must be a whole number from 1 up; to ask for none, leave the line out"),
    ({"gigaslice.io/vgpu-memory": -1}, "must be a whole number from 1 up"),
    ({"gigaslice.io/vgpu-memory": "lots"}, "must be a whole number from 1 up"),
    ({"gigaslice.io/vgpu-memory": 1, "gigaslice.io/gpu": 1}, "are both asked for"),
    ({"gpuclass.gigaslice.io/nvidia.h100": 5}, "5 GPUs of class nvidia.h100 are more than any node has, which is 4"),
    ({"gigaslice.io/gpu": 5}, "5 GPUs are more than any node has, which is 4; ask for 4 at most"),
    ({"gigaslice.io/vgpu-memory": 321}, "321 of gigaslice.io/vgpu-memory are more than any node has, which is 320"),
])  # fmt: skip
def test_a_mistake_is_refused_with_what_to_write(limits, sentence):
    assert sentence in said(pod(asks(limits=limits)))
    assert sentence.replace("c0", "i0") in said(pod({}, init=(asks(limits=limits),)))


@pytest.mark.parametrize("annotations, sentence", [
    ({"gigaslice.io/gpu-typ": "H100"}, "there is no such annotation; did you mean gigaslice.io/gpu-type?"),
    ({"gigaslice.io/zzz": "1"}, "annotation gigaslice.io/zzz: there is no such annotation; there are cores,"),
    ({"gigaslice.io/gpus.c9": "1"}, "annotation gigaslice.io/gpus.c9: the pod has no such container"),
    ({"gigaslice.io/gpus": "two"}, "must be a whole number"),
    ({"gigaslice.io/gpus": "9"}, "9 GPUs cannot share 8 slices"),
    ({"gigaslice.io/memory": "4,6"}, "make the limit 10"),
    ({"gigaslice.io/gpu-type": "H100", "gigaslice.io/exclude-gpu-type": "H100"}, "leave one of the two out"),
    ({"gigaslice.io/assignment": "{}"}, "gigaslice.io/assignment is written by the scheduler; leave it out"),
])  # fmt: skip
def test_a_mistake_in_annotations_is_refused_with_what_to_write(annotations, sentence):
    memory = asks(limits={"gigaslice.io/vgpu-memory": 8})
    assert sentence in said(pod(memory, annotations=annotations))
    assert not said(pod({}, annotations=annotations)), (
        "a pod that asks for nothing of ours is not our subject"
    )


def test_right_annotations_are_taken():
    ours = {"gigaslice.io/gpus.c0": "2", "gigaslice.io/cores": "30", "gigaslice.io/allocation.c0": "x"}
    annotations = {**ours, "team/owner": "me"}
    assert not said(pod(asks(limits={"gigaslice.io/vgpu-memory": 8}), annotations=annotations))


@pytest.mark.parametrize("spec, sentence", [
    ({"nodeName": "n"}, "leave spec.nodeName out"),
    ({"schedulerName": "mine"}, 'write "gigaslice-scheduler", or leave it out'),
])  # fmt: skip
def test_a_class_cannot_go_past_our_scheduler(spec, sentence):
    assert sentence in said(pod(h100(), **spec))


@pytest.mark.parametrize("scheduler, refused", [("mine", True), ("", False), ("default-scheduler", False)])
def test_another_scheduler_is_refused_before_anything_is_added(scheduler, refused):
    """What is left out, or is what Kubernetes writes there, is ours to fill in; a name that was chosen is not."""
    answer = answer_mutate(
        read_admission_pod(pod(h100(), **({"schedulerName": scheduler} if scheduler else {}))), FACTS
    )
    assert ("does not see GPU classes" in answer.message) is refused
    assert bool(answer.patch) is not refused


def test_a_pod_that_was_not_completed_is_refused():
    """Our first question was not asked, or another webhook took away what was added."""
    found = findings(read_admission_pod(pod(h100(2))), FACTS, completed=True).mistakes
    assert [one for one in found if "needs gigaslice.io/gpu: 2 beside it" in one]
    assert [one for one in found if "default-scheduler" in one]


def test_all_mistakes_are_said_at_once():
    text = said(pod(asks(limits={"gigaslice.io/gpuu": 1}), asks(limits={"gpuclass.gigaslice.io/x": 0})))
    assert "gpuu" in text and "container c1: gpuclass.gigaslice.io/x: there is no such class" in text
    assert "must be a whole number" in text


@pytest.mark.parametrize("document", [
    pod(asks(limits={f"gpuclass.gigaslice.io/x{number}": 1 for number in range(500)})),
    pod(*(asks(limits={"gigaslice.io/gpuu": 1}) for _ in range(500))),
    pod(asks(limits={"gigaslice.io/gpu": 1}),
        annotations={f"gigaslice.io/gpuss{number}": "1" for number in range(500)}),
    pod(*(asks(limits={"gigaslice.io/gpu": 1}) for _ in range(500)),
        annotations={f"gigaslice.io/gpus.x{number}": "1" for number in range(500)}),
    pod(*(asks(limits={"gigaslice.io/gpu": 5}) for _ in range(500))),
    pod(*(h100() for _ in range(500)), schedulerName="gigaslice-scheduler"),
])  # fmt: skip
def test_only_so_many_mistakes_are_looked_for(document):
    """A pod of 3 MiB may have a hundred thousand, and each is compared with every name that there is."""
    found = findings(read_admission_pod(document), FACTS, completed=True)
    assert 20 <= len(found.mistakes) <= 21


def test_warnings_hide_no_mistake():
    many = {f"gigaslice.io/vgpu-memory.{number}": 1 for number in range(100)}
    assert "there is no such class" in said(
        pod(asks(limits=many), asks(limits={"gpuclass.gigaslice.io/x": 1}))
    )


def test_what_a_name_says_cannot_act_on_a_terminal():
    assert "\x1b" not in said(pod(asks(limits={"gpuclass.gigaslice.io/\x1b[31m": 1})))


def test_two_shares_without_their_sum_are_refused_by_the_sentence_of_the_policy():
    """The policy sees one class at a time, so it adds nothing there, and refuses: modes do not differ."""
    limits = {"gpuclass.gigaslice.io/h100.odd": 1, "gpuclass.gigaslice.io/h100.small": 1}
    document = pod(asks(limits=limits))
    assert said(document) == (
        f"container c0: h100.odd and h100.small are classes of which {SHARE_BESIDE_OTHERS}, or write their sum as "
        "gigaslice.io/vgpu-memory beside them"
    )
    assert units(completed(document)) == {}
    (policy,) = [
        found
        for found in listed("--set", "cluster.enabled=true", "--kube-version", "1.36.0")
        if found["kind"] == "ValidatingAdmissionPolicy" and found["metadata"]["name"].endswith("-classes")
    ]
    assert SHARE_BESIDE_OTHERS in policy["spec"]["validations"][0]["messageExpression"]


def requested(limits, **requests):
    return pod({"resources": {"requests": {**limits, **requests}, **({"limits": limits} if limits else {})}})


@pytest.mark.parametrize("name", ["gpuclass.gigaslice.io/nvidia.h100", "gigaslice.io/gpu"])
def test_what_stands_under_requests_alone_is_refused_with_what_to_write(name):
    """There is no map of limits to add the unit to, and Kubernetes takes no such resource without a limit."""
    sentence = f"container c0: {name} stands under requests alone; write it under limits"
    assert said(requested({}, **{name: "1"})) == sentence
    beside = requested({"gpuclass.gigaslice.io/nvidia.t4": "1"}, **{name: "1"})
    assert sentence in said(beside) and completed_patch(beside, FACTS)[:-1] == []


# --- what no node has -------------------------------------------------------------------------------------------------

MUCH = pod(asks(limits={"gigaslice.io/gpu": 5}))


def test_more_than_any_node_has_is_a_warning_where_nodes_may_come():
    (warning,) = warned(MUCH, facts(nodes_may_come=True))
    assert "more than any node has" in warning and "waits for a larger node" in warning


def test_a_class_without_any_gpu_is_a_warning_since_its_nodes_may_be_away():
    (warning,) = warned(pod(asks(limits={"gpuclass.gigaslice.io/nvidia.b200": 1})))
    assert "no node has GPUs of class nvidia.b200 now" in warning


def test_before_the_first_node_has_said_what_it_has_nothing_is_too_much():
    assert not warned(MUCH, facts(nodes={}))


def test_a_type_that_no_node_offers_now_is_a_warning():
    (warning,) = warned(pod(asks(limits={"gigaslice.io/vgpu-memory.h100": 8})))
    assert "no node offers it now" in warning


@pytest.mark.parametrize("name", ["gigaslice.io/nic", "gigaslice.io/frames-per-second"])
def test_a_name_that_an_administrator_may_have_chosen_is_a_warning(name):
    (warning,) = warned(pod(asks(limits={name: 1, "gigaslice.io/vgpu-memory": 8})))
    assert "no node is known to offer it; there are gigaslice.io/gpu, gigaslice.io/rdma" in warning


def test_a_name_that_the_controller_was_told_is_nobodys_mistake():
    document = pod(asks(limits={"gigaslice.io/nic": 1, "gigaslice.io/vgpu-memory": 8}))
    assert not warned(document, facts(resources=frozenset({"gigaslice.io/nic"})))


@pytest.mark.parametrize("name, instead", [
    ("gigaslice.io/nvidia.h100", "is a class; write gpuclass.gigaslice.io/nvidia.h100"),
    ("gigaslice.io/exclusive", "write it under metadata.annotations"),
    ("gigaslice.io/time-slicing.main", "write it under metadata.annotations"),
])  # fmt: skip
def test_a_class_or_an_annotation_as_a_resource_is_refused_with_what_to_write(name, instead):
    assert instead in said(pod(asks(limits={name: 1, "gigaslice.io/vgpu-memory": 8})))


def test_adapters_beside_a_class_do_not_stand_for_its_unit():
    limits = {"gigaslice.io/rdma": 1, "gpuclass.gigaslice.io/nvidia.h100": 1}
    document = pod(asks(limits=limits))
    assert units(completed(document)) == {"gigaslice.io/rdma": "1", "gigaslice.io/gpu": "1"}
    assert not said(document) and not warned(document)


def test_a_share_counts_gpus_that_are_large_enough():
    small = facts(nodes={"a": facts().nodes["a"]})
    assert not said(pod(asks(limits={"gpuclass.gigaslice.io/h100.small": 4})), small)
    assert "5 GPUs of class h100.small" in said(
        pod(asks(limits={"gpuclass.gigaslice.io/h100.small": 5})), small
    )


def test_a_part_is_no_larger_than_the_largest_gpu():
    document = pod(asks(limits={"gigaslice.io/vgpu-memory": 170}), annotations={"gigaslice.io/gpus": "2"})
    assert "85 slices of one GPU are more than any node has, which is 80" in said(document)


# --- questions and answers --------------------------------------------------------------------------------------------


def question(document, uid="u-1", operation="CREATE"):
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    return {"request": {"uid": uid, "kind": kind, "operation": operation, "object": document}}


def test_an_answer_carries_the_patch_or_the_sentence():
    document = pod(h100())
    review = read_review(question(document))
    assert review.pod is not None
    response = write_review(review.uid, answer_mutate(review.pod, FACTS))["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u-1", True, "JSONPatch")
    assert applied(document, json.loads(base64.b64decode(response["patch"]))) == completed(document)
    refused = write_review("u-1", answer_mutate(read_admission_pod(pod(h100(0))), FACTS))["response"]
    assert not refused["allowed"] and "patch" not in refused and refused["status"]["code"] == 422


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
def test_a_pod_that_is_there_already_is_left_alone(operation):
    """Nothing that it asks for can be changed, and what our scheduler wrote on it would be a mistake in a new one."""
    document = pod(h100(0), annotations={"gigaslice.io/assignment": "{}"})
    assert read_review(question(document, operation=operation)).pod is None
    assert read_review(question(None, operation=operation)).pod is None


def test_warnings_are_bounded():
    many = pod(*(asks(limits={f"gigaslice.io/vgpu-memory.{'x' * 300}{n}": 1}) for n in range(40)))
    response = write_review("u", answer_validate(read_admission_pod(many), FACTS))["response"]
    assert response["allowed"] and sum(map(len, response["warnings"])) < 4096


@pytest.mark.parametrize("body", [
    None, [], {}, {"request": None}, {"request": {"uid": 3}}, {"request": {"uid": "u"}},
    {"request": {"uid": "u", "kind": {"kind": "Node"}, "object": {}}},
    {"request": {"uid": "u", "kind": {"kind": "Pod"}}}, question(pod(), uid=""), question(pod(), uid="u" * 129),
    question(pod(), operation="create"), question(pod(), operation=None), question(pod(), operation=["CREATE"]),
    question(None), question([]), question({"spec": 3}),
    {"request": {**question(pod())["request"], "kind": {"group": "example.com", "kind": "Pod"}}},
])  # fmt: skip
def test_what_is_no_question_is_refused(body):
    with pytest.raises(ReviewError):
        read_review(body)
