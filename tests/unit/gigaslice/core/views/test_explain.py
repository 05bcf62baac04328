# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gigaslice.core.classes.resource_class import parse_resource_class
from gigaslice.core.cluster.refusal import RefusalReason
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Occupant, Share
from gigaslice.core.views.explain import PodSituation, explain
from tests.fakes.clusters import bound, container, facts, inventory_gpu, pod
from tests.unit.gigaslice.core.views.pictures import EVIL


def h100() -> object:
    return parse_resource_class(
        {"metadata": {"name": "nvidia.h100"}, "spec": {"selector": {"matchLabels": {"model": "NVIDIA H100"}}}}
    )


def six_and_six(**more) -> ClusterState:
    """node-a: two GPUs of 12 slices, with 6 free on each."""
    state = ClusterState()
    state.put_node(facts("node-a", [inventory_gpu("node-a", index, 12) for index in range(2)], **more))
    state.put_pod(bound("u1", "node-a", (0, 6)))
    state.put_pod(bound("u2", "node-a", (1, 4)))
    state.put_pod(bound("u3", "node-a", (1, 2)))
    return state


def eight(uid: str = "new", **fields):
    return pod(uid, container(slices=8), **fields)


def test_six_and_six() -> None:
    found = explain(six_and_six(), eight())
    assert found.situation is PodSituation.WAITING
    assert found.asks == "8 GiB of GPU memory"
    (line,) = found.lines
    assert str(line) == "node-a: 6 + 6 GiB free, 8 wanted on one GPU"
    assert line.gpus[0] == "GPU0 A, 6 GiB of 12 GiB free: 6 of 12 slices free, 8 asked for on one GPU"
    assert found.suggestions == (
        "asking for 6 GiB or less: node-a has that on one GPU",
        "pod team/pod-u3 ending: it has 2 GiB of GPU1 of node-a",
    )
    assert "node-a: 6 + 6 GiB free, 8 wanted on one GPU" in found.text()


@pytest.mark.parametrize("asked, says", [
    (pod("new", container(slices=30)), "20 + 14 + 14 GiB free, 30 wanted on one GPU, or 15 on each of 2"),
    (pod("new", container(slices=30), annotations={"gpus": "1"}), "20 GiB free, 30 wanted on one GPU"),
    (pod("new", container(slices=30), annotations={"gpu-type": "V100"}), "all GPUs are in use"),
    (pod("new", container(slices=33)), "20 GiB free, 33 wanted on one GPU"),
])  # fmt: skip
def test_models_that_need_different_numbers_of_gpus(asked, says) -> None:
    gpus = [
        inventory_gpu("node-a", 0, 80),
        *(inventory_gpu("node-a", n, 16, model="NVIDIA V100") for n in (1, 2)),
    ]
    state = ClusterState()
    state.put_node(facts("node-a", gpus))
    state.put_pod(bound("u1", "node-a", (0, 60), (1, 2), (2, 2)))
    (line,) = explain(state, asked).lines
    assert str(line) == f"node-a: {says}"


def test_what_is_said_to_help_helps() -> None:
    state = six_and_six()
    for uid in ("u1", "u2", "u3"):
        other = six_and_six()
        other.drop_pod(uid)
        assert explain(other, eight()).situation is PodSituation.ROOM
    assert explain(state, pod("new", container(slices=6))).situation is PodSituation.ROOM
    assert explain(state, pod("new", container(slices=7))).situation is PodSituation.WAITING


def test_on_a_full_cluster_sets_of_pods_are_named_one_for_each_node() -> None:
    state = six_and_six()
    for name, held in (
        ("node-b", (8, 8)),
        ("node-c", (5, 5, 6)),
        ("node-d", (4, 4, 4, 4)),
        ("node-e", (16,)),
    ):
        state.put_node(facts(name, 1))
        for number, slices in enumerate(held):
            state.put_pod(bound(f"{name}-{number}", name, (0, slices)))
    whole = pod("new", container(gpus=1))
    assert explain(state, whole).suggestions == (
        "pod team/pod-u1 ending: it has 6 GiB of GPU0 of node-a",
        "pod team/pod-node-e-0 ending: it has 16 GiB of GPU0 of node-e",
        "these 2 pods of node-b ending: team/pod-node-b-0 (8 GiB of GPU0), team/pod-node-b-1 (8 GiB of GPU0)",
    )
    for uid in ("node-b-0", "node-b-1"):
        state.drop_pod(uid)
    assert explain(state, whole).situation is PodSituation.ROOM


def test_pods_of_which_no_name_may_be_read_are_not_named() -> None:
    """As they are where the pods of other namespaces may not be listed: agents tell their UIDs alone."""
    state = ClusterState()
    held = (Occupant("0c6f-uid", (Share("GPU-node-a-0", 16),)),)
    state.put_node(facts("node-a", 1, held=held))
    for asked in (eight(), pod("new", container(gpus=1))):
        found = explain(state, asked)
        assert "0c6f-uid" not in found.text()
        assert found.suggestions[0].startswith("pods that end")


def test_a_node_of_the_right_type_that_is_cordoned() -> None:
    state = six_and_six()
    state.put_node(facts("node-b", schedulable=False))
    found = explain(state, eight())
    assert [str(line) for line in found.lines] == [
        "node-b: would fit, but is cordoned",
        "node-a: 6 + 6 GiB free, 8 wanted on one GPU",
    ]
    assert found.suggestions[0] == "kubectl uncordon node-b: it would fit there"
    assert "6 GiB" in found.suggestions[1]


def test_a_node_that_is_not_ready() -> None:
    state = ClusterState()
    state.put_node(facts("node-a", ready=False))
    found = explain(state, eight())
    assert str(found.lines[0]) == "node-a: would fit, but is not ready"
    assert found.suggestions == ("node node-a becoming ready: it would fit there",)


def test_a_class_that_a_node_has_not() -> None:
    state = ClusterState()
    state.put_class(h100())
    state.put_node(facts("node-a", [inventory_gpu("node-a", 0, model="NVIDIA L4")]))
    found = explain(state, pod("new", container(classes={"nvidia.h100": 1}, gpus=1)))
    assert str(found.lines[0]) == "node-a: no GPU of the class asked for; it has 1 × L4"
    assert found.lines[0].gpus == ("GPU0 L4, 16 GiB of 16 GiB free: not of class nvidia.h100",)
    assert found.asks == "1 GPU of class nvidia.h100"


def test_gpus_of_another_class_do_not_count_as_free() -> None:
    state = ClusterState()
    state.put_class(h100())
    gpus = [inventory_gpu("a", 0, 12, model="NVIDIA H100"), inventory_gpu("a", 1, 12, model="NVIDIA L4")]
    state.put_node(facts("a", gpus))
    state.put_pod(bound("u1", "a", (0, 6)))
    found = explain(state, pod("new", container(classes={"nvidia.h100": 1}, slices=8)))
    assert str(found.lines[0]) == "a: 6 GiB free, 8 wanted on one GPU"
    assert found.lines[0].gpus[1].endswith("not of class nvidia.h100")


def test_unhealthy_gpus_say_what_is_wrong() -> None:
    state = ClusterState()
    state.put_node(facts("a", [inventory_gpu("a", 0, unhealthy="Xid 79 at 05:00")]))
    found = explain(state, eight())
    assert str(found.lines[0]) == "a: unhealthy: GPU0 Xid 79 at 05:00"
    assert "gigaslice uncordon" in found.suggestions[0]


def test_a_class_that_does_not_exist() -> None:
    state = ClusterState()
    state.put_class(h100())
    found = explain(state, pod("new", container(classes={"nvidia.h10": 1})))
    assert found.situation is PodSituation.INVALID
    assert 'did you mean "nvidia.h100"?' in found.summary
    assert found.event() == found.summary


def test_pods_that_do_not_wait() -> None:
    state = six_and_six()
    assert explain(state, pod("x", container())).situation is PodSituation.NOT_OURS
    assert explain(state, eight(phase="Succeeded")).situation is PodSituation.ENDED
    running = bound("u1", "node-a", (0, 6), phase="Running")
    found = explain(state, running)
    assert found.situation is PodSituation.RUNNING
    assert str(found.lines[0]) == "node-a: 6 GiB of GPU0 NVIDIA A (GPU-node-a-0) for container main"
    starting = explain(state, bound("u1", "node-a", (0, 6)))
    assert starting.situation is PodSituation.BOUND
    assert "kubectl describe pod -n team pod-u1" in starting.suggestions[0]


def test_a_pod_whose_gpus_the_agent_chose() -> None:
    state = six_and_six()
    one = pod("agents", container(slices=5), node="node-a", phase="Running")
    state.put_pod(one)
    (line,) = explain(state, one).lines
    assert str(line) == "node-a: 5 GiB of GPU0 NVIDIA A (GPU-node-a-0)"


def test_a_bound_pod_that_is_held_back_for_an_annotation_is_told_which() -> None:
    """By its agent, where no scheduler of ours has looked at it."""
    state = six_and_six()
    one = pod("new", container(slices=2), node="node-a", annotations={"exclusive": "true"})
    assert "gigaslice.io/allow-exclusive" in explain(state, one).suggestions[0]
    assert explain(state, replace(one, phase="Running")).suggestions == (), "it was taken before that"


def test_a_pod_is_not_said_to_have_what_it_has_not_asked_for() -> None:
    state = ClusterState()
    state.put_node(facts("node-a", 2))
    one = replace(bound("1", "node-a", (0, 16), (1, 16)), containers=(container(slices=2),))
    state.put_pod(one)
    (line,) = explain(state, one).lines
    assert line.text.startswith("2 GiB of GPU0")


def test_a_pod_that_fits_now() -> None:
    state = six_and_six()
    state.put_node(facts("node-b"))
    found = explain(state, eight())
    assert found.situation is PodSituation.ROOM
    assert found.summary == "fits on 1 node now, such as node-b"


def test_a_pod_that_has_been_chosen_a_node() -> None:
    state = six_and_six()
    state.put_node(facts("node-b"))
    one = eight()
    demand = state.demand_of(one)
    state.reserve(one.uid, "node-b", state.choose(demand, "node-b"))
    assert explain(state, one).summary == "is about to be bound to node-b"


def test_hundreds_of_nodes_with_the_same_reason_are_one_line() -> None:
    state = six_and_six()
    for number in range(300):
        state.put_node(facts(f"small-{number:03}", [inventory_gpu(f"small-{number:03}", 0, 4)]))
        state.put_node(facts(f"full-{number:03}", 1))
        state.put_pod(bound(f"f{number}", f"full-{number:03}", (0, 16)))
    found = explain(state, eight())
    assert str(found.lines[0]) == "node-a: 6 + 6 GiB free, 8 wanted on one GPU"
    assert len(found.lines) <= 4
    assert sum(line.count for line in found.lines) == 601
    assert sum(found.reasons.values()) == 601


def test_all_nodes_are_counted_where_many_would_fit_but_for_a_cordon() -> None:
    state = ClusterState()
    for number in range(90):
        state.put_node(facts(f"n{number:02}", 1, schedulable=False))
    found = explain(state, eight())
    assert sum(line.count for line in found.lines) == 90


def test_the_nearest_node_is_among_those_that_are_looked_at() -> None:
    state = ClusterState()
    for number in range(100):
        name = f"n{number:03}"
        state.put_node(facts(name, 1))
        state.put_pod(bound(f"p{number}", name, (0, 12 if number != 77 else 9)))
    found = explain(state, eight())
    assert str(found.lines[0]) == "n077: 7 GiB free, 8 wanted on one GPU"
    assert found.suggestions[0] == "asking for 7 GiB or less: n077 has that on one GPU"


@pytest.mark.parametrize("asked", [14, 16])
def test_the_fewest_pods_are_told_of_all_nodes_and_not_of_the_nearest_alone(asked) -> None:
    """Forty-five nodes have a little free and two pods; the one without anything free has a single pod."""
    state = ClusterState()
    for number in range(45):
        name = f"n{number:03}"
        state.put_node(facts(name, [inventory_gpu(name, 0, 16)]))
        state.put_pod(bound(f"a{number}", name, (0, 8)))
        state.put_pod(bound(f"b{number}", name, (0, 7)))
    state.put_node(facts("z", [inventory_gpu("z", 0, 16)]))
    state.put_pod(bound("alone", "z", (0, 16)))
    found = explain(state, pod("new", container(slices=asked)))
    (first, *others) = [text for text in found.suggestions if "ending" in text]
    assert first == "pod team/pod-alone ending: it has 16 GiB of GPU0 of z"
    assert others and all(text.startswith("these 2 pods") for text in others)


def test_moves_are_told_where_room_is_missing() -> None:
    assert "moving pods: restart x" in explain(six_and_six(), eight(), ["restart x", "restart y"]).suggestions


def test_an_event_is_one_line_that_does_not_change_with_what_is_free() -> None:
    state = six_and_six()
    before = explain(state, eight()).event()
    assert before == ("no node has 8 GiB of GPU memory: no GPU has that much memory free together (1 node)")
    state.drop_pod("u3")
    state.put_pod(bound("u4", "node-a", (1, 3)))
    assert explain(state, eight()).event() == before


def test_an_event_is_short_enough_whatever_is_asked() -> None:
    state = six_and_six()
    found = explain(
        state, pod("new", *(container(f"c{number}-" + "ü" * 40, slices=9) for number in range(40)))
    )
    assert len(found.event().encode()) <= 1024
    found.event().encode().decode()


def test_names_of_others_are_one_line() -> None:
    state = ClusterState()
    state.put_node(facts("a", [inventory_gpu("a", 0, unhealthy=EVIL + "\nhelp", model=EVIL)]))
    text = explain(state, eight()).text()
    assert "\x1b" not in text
    assert "\nhelp" not in text


def test_the_form_for_programs_is_json() -> None:
    found = json.loads(json.dumps(explain(six_and_six(), eight()).as_json()))
    assert found["situation"] == "waiting"
    assert found["lines"][0]["nodes"] == ["node-a"]
    assert found["helps"]


def test_a_cluster_without_nodes() -> None:
    assert explain(ClusterState(), eight()).summary == "waits: the cluster has no nodes"


@pytest.mark.parametrize("slices", [0, 3])
def test_whole_gpus(slices: int) -> None:
    state = six_and_six()
    state.drop_pod("u1")
    if slices:
        state.put_pod(bound("u9", "node-a", (0, slices)))
    found = explain(state, pod("new", container(gpus=2)))
    assert str(found.lines[0]) == (
        "node-a: all GPUs are in use" if slices else "node-a: 1 of 2 GPUs would do now, more wanted"
    )


def test_the_documentation_has_every_reason() -> None:
    page = (Path(__file__).resolve().parents[5] / "docs" / "explain.md").read_text()
    table = page.partition("<!-- reasons -->\n")[2].partition("<!-- end -->")[0]
    of_pods = (RefusalReason.INVALID, RefusalReason.UNKNOWN_CLASS)
    sentences = {row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()}
    assert sentences == {reason.refusal.text for reason in RefusalReason if reason not in of_pods}
