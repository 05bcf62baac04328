# SPDX-License-Identifier: Apache-2.0
"""What is decided between the filter of a pod and its binding, without a server: time is an argument."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.cluster.preempt import victims
from gigaslice.core.cluster.refusal import Refusal, RefusalReason
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Pod
from gigaslice.roles.scheduler.attempts import AttemptState
from gigaslice.roles.scheduler.placer import Placer
from tests.fakes.clusters import bound, container, facts, inventory_gpu, pod, uuid

RESERVE = 2.0


def placer(*names: str, gpus: int = 1) -> Placer:
    """Nodes with GPUs of 16 slices."""
    found = Placer(ClusterState(), RESERVE)
    for name in names:
        found.put_node(facts(name, gpus), 0.0)
    return found


def asking(uid: str, slices: int = 16, **fields: object) -> Pod:
    return pod(uid, container(slices=slices), **fields)


def state_of(found: Placer, uid: str) -> AttemptState | None:
    attempt = found.attempts.get(uid)
    return attempt and attempt.state


def begun(found: Placer, one: Pod, node: str, now: float) -> Assignment:
    chosen = found.begin_binding(one, node, now)
    assert isinstance(chosen, Assignment), chosen
    return chosen


# --- filter and prioritize --------------------------------------------------------------------------------------------


def test_a_pod_that_asks_for_no_gpu_goes_anywhere_and_leaves_no_trace():
    found = placer("a")
    assert found.filter(pod("p", container()), ["a", "unknown"], 0.0).names == ["a", "unknown"]
    assert found.prioritize(pod("p", container()), ["a"], 0.0) == []
    assert found.preempt(pod("p", container()), {"a": ("v",)}, 0.0) == {"a": ("v",)}
    assert found.pod("p") is None and len(found.attempts) == len(found.waiting) == 0


def test_without_a_node_a_pod_fits_nowhere():
    found = placer("a")
    answer = found.filter(asking("p"), [], 0.0)
    assert (list(answer.names), dict(answer.refused)) == ([], {})
    assert found.prioritize(asking("p"), [], 0.0) == []
    assert len(found.attempts) == 0


def test_a_node_that_has_vanished_is_refused_as_one_without_gpus():
    found = placer("a", "b")
    found.drop_node(facts("b"), 1.0)
    answer = found.filter(asking("p"), ["a", "b"], 1.0)
    assert list(answer.names) == ["a"]
    assert answer.refused["b"].reason is RefusalReason.NO_INVENTORY


def test_the_only_node_is_reserved_at_filter_and_one_of_two_at_prioritize():
    found = placer("a", "b")
    assert sorted(found.filter(asking("p"), ["a", "b"], 0.0).names) == ["a", "b"]
    assert len(found.attempts) == 0
    (winner, best), (_, second) = found.prioritize(asking("p"), ["a", "b"], 0.0)
    assert state_of(found, "p") is AttemptState.PROVISIONAL
    assert (best - second) * 10 > 9 * 100, "more than the scores of kube-scheduler itself"
    (left,) = found.filter(asking("q"), ["a", "b"], 0.1).names
    assert left != winner
    assert state_of(found, "q") is AttemptState.PROVISIONAL
    assert not found.filter(asking("r"), ["a", "b"], 0.1).names


def test_a_pod_that_comes_again_gives_its_reservation_back():
    found = placer("a")
    assert found.filter(asking("p"), ["a"], 0.0).names
    assert list(found.filter(asking("p"), ["a"], 0.5).names) == ["a"], "its own GPUs are not in its way"
    assert len(found.attempts) == 1


def test_a_reservation_ends_and_what_it_kept_from_others_is_a_change():
    found = placer("a")
    found.filter(asking("p"), ["a"], 0.0)
    found.filter(asking("q"), ["a"], 0.1)
    assert found.to_be_woken(RESERVE - 0.1, 9) == []
    found.expire(RESERVE)
    assert [one.uid for one in found.to_be_woken(RESERVE, 9)] == ["q"]
    assert found.filter(asking("q"), ["a"], RESERVE).names


def test_only_some_nodes_are_scored():
    found = placer(*(f"n{number:02}" for number in range(50)))
    scores = found.prioritize(asking("p"), [f"n{number:02}" for number in range(50)], 0.0)
    assert len(scores) == 32
    assert [score for _, score in scores] == sorted((score for _, score in scores), reverse=True)
    assert min(score for _, score in scores) > 0


# --- bind -------------------------------------------------------------------------------------------------------------


def test_a_binding_keeps_its_gpus_until_it_failed():
    found = placer("a")
    begun(found, asking("p"), "a", 0.0)
    found.expire(1e9)
    assert state_of(found, "p") is AttemptState.BINDING, "a binding that is being written has no end"
    assert not found.filter(asking("q"), ["a"], 1e9).names
    found.failed(asking("p"), 1e9)
    assert found.filter(asking("q"), ["a"], 1e9).names


def test_a_node_that_is_gone_or_full_when_the_binding_comes_is_refused():
    found = placer("a", "b")
    found.prioritize(asking("p"), ["a"], 0.0)
    found.drop_node(facts("a"), 0.5)
    refusal = found.begin_binding(asking("p"), "a", 0.6)
    assert isinstance(refusal, Refusal) and refusal.reason is RefusalReason.NO_INVENTORY
    found.put_pod(bound("other", "b", (0, 16)), 0.7)
    assert isinstance(found.begin_binding(asking("p"), "b", 0.8), Refusal)
    assert len(found.attempts) == 0, "nothing is kept for it"


def test_a_reservation_that_has_ended_is_decided_again():
    found = placer("a")
    found.filter(asking("p"), ["a"], 0.0)
    begun(found, asking("p"), "a", RESERVE + 1)
    found.failed(asking("p"), RESERVE + 1)
    found.filter(asking("p"), ["a"], RESERVE + 2)
    found.expire(2 * RESERVE + 2)
    found.filter(asking("q"), ["a"], 2 * RESERVE + 2)
    assert isinstance(found.begin_binding(asking("p"), "a", 2 * RESERVE + 3), Refusal), "q has the GPU now"


def test_a_written_binding_keeps_its_gpus_until_the_watch_shows_the_pod():
    found = placer("a")
    one = asking("p")
    found.put_pod(one, 0.0)
    begun(found, one, "a", 0.0)
    found.bound(one, 0.1)
    found.expire(1000.0)
    assert state_of(found, "p") is AttemptState.BOUND, (
        "the watch shows the pod, without its node: it is behind"
    )
    assert not found.filter(asking("q"), ["a"], 1000.0).names
    found.put_pod(bound("p", "a", (0, 16)), 1001.0)
    assert len(found.attempts) == 0
    assert not found.filter(asking("q"), ["a"], 1002.0).names, "the pod itself counts now"


def test_a_written_binding_of_a_pod_that_no_watch_has_shown_is_given_up():
    found = placer("a")
    begun(found, asking("p"), "a", 0.0)
    found.bound(asking("p"), 0.1)
    found.expire(120.0)
    assert state_of(found, "p") is AttemptState.BOUND
    found.expire(120.2)
    assert len(found.attempts) == 0
    assert found.filter(asking("q"), ["a"], 121.0).names


def test_in_doubt_the_pod_goes_nowhere_else_and_only_the_same_is_written():
    found = placer("a", "b", gpus=2)
    one = asking("p", 8)
    first = begun(found, one, "a", 0.0)
    found.doubtful(one, 0.1)
    assert list(found.filter(one, ["a", "b"], 0.2).names) == ["a"]
    assert found.filter(one, ["b"], 0.2).refused["b"].text == "the pod is being bound to another node"
    assert found.prioritize(one, ["a", "b"], 0.2) == []
    assert isinstance(found.begin_binding(one, "b", 0.3), Refusal)
    found.put_pod(bound("other", "a", (1, 4)), 0.4)  # another GPU would be the better one now
    assert begun(found, one, "a", 0.5) == first
    found.doubtful(one, 0.6)
    found.expire(90.5)
    assert state_of(found, "p") is AttemptState.DOUBTFUL
    found.expire(90.7)
    assert list(found.filter(one, ["b"], 91.0).names) == ["b"]


def test_a_takeover_ends_every_doubt_from_before_it():
    found = placer("a", "b")
    doubtful, binding = asking("doubtful"), asking("binding")
    begun(found, doubtful, "a", 0.0)
    found.doubtful(doubtful, 0.1)
    begun(found, binding, "b", 0.2)
    found.overtaken(1.0)
    assert list(found.filter(asking("q"), ["a"], 1.1).names) == ["a"], (
        "no binding to it can be written any more"
    )
    assert not found.filter(asking("r"), ["b"], 1.1).names, "its answer is still being read"
    found.doubtful(binding, 1.2)
    assert found.filter(asking("r"), ["b"], 1.3).names
    assert len(found.waiting) == 0


def test_a_pod_that_is_deleted_while_its_binding_is_written():
    for answer in ("bound", "failed", "doubtful"):
        found = placer("a")
        one = asking("p")
        found.put_pod(one, 0.0)
        begun(found, one, "a", 0.0)
        found.drop_pod(one, 0.1)
        assert not found.filter(asking("q"), ["a"], 0.2).names, "the write may still come first"
        getattr(found, answer)(one, 0.3)
        assert found.filter(asking("q"), ["a"], 0.4).names, answer


def test_a_pod_of_the_same_name_is_another_pod():
    found = placer("a", "b")
    old = asking("old")
    begun(found, old, "a", 0.0)
    found.doubtful(old, 0.1)
    again = Pod(old.namespace, old.name, "new", {}, old.containers)
    assert list(found.filter(again, ["a", "b"], 0.2).names) == ["b"]
    assert found.pod("old") is None, "it was sent to no filter"


def test_a_pod_that_another_scheduler_has_bound_is_on_its_node():
    found = placer("a", "b")
    found.filter(asking("p"), ["a", "b"], 0.0)
    found.put_pod(bound("p", "b", (0, 16)), 0.1)
    assert list(found.filter(asking("p"), ["a", "b"], 0.2).names) == ["b"]
    assert found.prioritize(asking("p"), ["a", "b"], 0.2) == []


# --- preempt ----------------------------------------------------------------------------------------------------------


def test_victims_are_those_of_one_gpu():
    found = placer("a", "b", gpus=2)
    for number, slices in enumerate((10, 10, 6)):
        found.put_pod(bound(f"low-{number}", "a", (number % 2, slices)), 0.0)
    high = asking("high", 12, priority=100)
    demand = found.state.demand_of(high)
    answer = found.preempt(high, {"a": ("low-0",), "b": ("x",)}, 1.0)
    assert answer["b"] == ("x",), "GPUs are not what is missing there"
    assert set(answer["a"]) == set(victims(found.state, demand, "a", 100, required=[]))
    assert set(answer["a"]) == {"low-1"}, "the other GPU would cost two pods"


def test_where_no_eviction_helps_the_node_is_left_out():
    found = Placer(ClusterState(), RESERVE)
    found.put_node(facts("small", [inventory_gpu("small", 0, 8)]), 0.0)
    found.put_node(facts("broken", [inventory_gpu("broken", 0, unhealthy="xid-79")]), 0.0)
    high = asking("high", 12, priority=100)
    assert found.preempt(high, {"small": ("x",), "broken": ("y",), "unknown": ("z",)}, 1.0) == {}


def test_a_pod_is_scored_although_much_else_was_compared_since_its_filter():
    """With --filter-reply all: waiting pods of many kinds, or a change of its class, between filter and prioritize."""
    found = placer("a", "b")
    assert len(found.filter(asking("p", 8), ["a", "b"], 0.0).names) == 2
    for slices in range(9, 90):
        found.state.filter(found.state.demand_of(asking("q", slices)), ["a"])
    assert len(found.prioritize(asking("p", 8), ["a", "b"], 0.1)) == 2
    assert state_of(found, "p") is AttemptState.PROVISIONAL


@pytest.mark.parametrize("awaits_provisioning", [False, True])
def test_gpus_are_kept_while_a_volume_is_made(awaits_provisioning: bool):
    found = placer("a")
    one = replace(asking("p"), awaits_provisioning=awaits_provisioning)
    assert found.filter(one, ["a"], 0.0).names
    found.filter(asking("q"), ["a"], 20.0)
    assert isinstance(found.begin_binding(one, "a", 20.1), Assignment) is awaits_provisioning
    found.failed(one, 20.2)
    found.filter(one, ["a"], 21.0)
    found.expire(81.5)
    assert state_of(found, "p") is None, "not for ever"


def test_a_node_that_was_named_in_vain_comes_last():
    """A volume that cannot be made there, or another plugin that refuses, at every attempt."""
    found = placer("a", "b", "c", "full")
    found.put_pod(bound("other", "full", (0, 16)), 0.0)
    names = ["a", "b", "c", "full"]

    def named(now: float) -> str:
        found.filter(asking("p"), names, now)
        return found.prioritize(asking("p"), names, now)[0][0]

    assert [named(float(at)) for at in range(0, 50, 10)] == ["a", "b", "c", "a", "b"]
    begun(found, asking("p"), "b", 50.0)
    found.failed(asking("p"), 50.1)
    assert [named(60.0), named(70.0)] == ["a", "b"], "a binding that failed is no fault of the node"
    assert found.prioritize(asking("q"), names, 71.0)[0][0] == "a", "of another pod it is not said"
    found.drop_pod(asking("p"), 72.0)
    assert not found._named._named.keys() & {"p"} and not found._named._in_vain


def test_the_only_node_is_named_again_and_again():
    found = placer("a")
    for now in range(0, 50, 10):
        assert list(found.filter(asking("p"), ["a"], float(now)).names) == ["a"]
        assert state_of(found, "p") is AttemptState.PROVISIONAL


def evicted_for(priority: int = 1000) -> tuple[Placer, Pod, Pod]:
    """GPU 0 of three has been held by a pod that makes way for P of 16; the other two have 4 left each."""
    found = placer("a", gpus=3)
    for gpu, slices in ((1, 12), (2, 12)):
        found.put_pod(bound(f"stays-{gpu}", "a", (gpu, slices), priority=priority), 0.0)
    victim = bound("victim", "a", (0, 12))
    found.put_pod(victim, 0.0)
    first = asking("p", priority=priority)
    assert not found.filter(first, ["a"], 1.0).names
    assert found.preempt(first, {"a": ("stays-1",)}, 1.1) == {"a": ("victim",)}
    nominated = replace(first, nominated="a")
    found.put_pod(nominated, 1.2)
    return found, victim, nominated


def test_gpus_of_evicted_pods_are_kept_for_the_pod_that_they_made_way_for():
    """By sums there is room for both: kube-scheduler asks us about the other one first, while p is backing off."""
    found, victim, first = evicted_for()
    found.drop_pod(victim, 2.0)
    (text,) = {found.filter(asking(f"q{number}", 8), ["a"], 2.1).refused["a"].text for number in range(3)}
    assert text == "no GPU has that much memory free together"
    assert isinstance(found.begin_binding(asking("q1", 8), "a", 2.2), Refusal)
    small = begun(found, asking("small", 4), "a", 2.3)
    assert small.containers["main"][0].gpu != uuid("a", 0), "what is left of the others may be taken"
    assert list(found.filter(first, ["a"], 2.4).names) == ["a"]
    assert begun(found, first, "a", 2.5).containers["main"][0].gpu == uuid("a", 0)


def test_while_evicted_pods_end_what_they_leave_beside_them_is_kept_too():
    found, victim, first = evicted_for()
    assert found.filter(asking("q", 4), ["a"], 2.0).names
    chosen = found.attempts.get("q")
    assert chosen is not None and chosen.assignment.containers["main"][0].gpu == uuid("a", 0), "it fits best"
    found.failed(asking("q", 4), 2.1)
    found.put_pod(replace(victim, ending=True), 2.2)
    assert found.filter(asking("q", 4), ["a"], 2.3).names
    chosen = found.attempts.get("q")
    assert chosen is not None and chosen.assignment.containers["main"][0].gpu != uuid("a", 0)
    assert not found.filter(first, ["a"], 2.4).names, "nothing has ended yet"
    found.drop_pod(victim, 2.5)
    assert [one.uid for one in found.to_be_woken(2.6, 9)] == ["p"]
    assert found.filter(first, ["a"], 2.7).names


@pytest.mark.parametrize("priority", [999, 1000, 1001])
def test_a_pod_of_higher_priority_takes_what_is_kept(priority: int):
    found, victim, first = evicted_for()
    found.drop_pod(victim, 2.0)
    assert found.filter(asking("q", priority=priority), ["a"], 2.1).names == (
        ["a"] if priority > 1000 else []
    )
    if priority > 1000:
        begun(found, asking("q", priority=priority), "a", 2.2)
        assert not found.filter(first, ["a"], 2.3).names
        assert found.filter(asking("small", 4), ["a"], 2.4).names


def test_of_two_pods_with_the_same_node_the_older_one_comes_first():
    found, victim, first = evicted_for()
    older = replace(asking("z", priority=1000, created="2026-01-01T00:00:00Z"), nominated="a")
    first = replace(first, created="2026-01-02T00:00:00Z")
    found.put_pod(first, 1.3)
    found.put_pod(older, 1.4)
    found.drop_pod(victim, 2.0)
    assert not found.filter(first, ["a"], 2.1).names
    assert found.filter(older, ["a"], 2.2).names


@pytest.mark.parametrize("end", ["gone", "bound elsewhere", "cleared", "ending"])
def test_what_is_kept_ends_with_its_reason(end: str):
    found, victim, first = evicted_for()
    found.drop_pod(victim, 2.0)
    found.filter(asking("q"), ["a"], 2.1)
    assert [one.uid for one in found.to_be_woken(2.5, 9)] == ["p"]
    if end == "gone":
        found.drop_pod(first, 3.0)
    elif end == "bound elsewhere":
        found.put_pod(replace(bound("p", "b", (0, 16)), nominated="a"), 3.0)
    else:
        found.put_pod(replace(first, nominated="" if end == "cleared" else "a", ending=end == "ending"), 3.0)
    assert "q" in [one.uid for one in found.to_be_woken(3.1, 9)]
    assert found.filter(asking("q"), ["a"], 3.2).names
    found.drop_pod(first, 3.3)
    begun(found, asking("q"), "a", 3.4)
    found.drop_pod(bound("stays-1", "a", (1, 12), priority=1000), 3.5)
    assert found.filter(asking("r"), ["a"], 3.6).names, "nor is anything kept for it elsewhere later"


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_meanwhile_the_pod_gets_its_gpu_and_the_answers_come_from_what_there_is(seed: int):
    choices = random.Random(seed)
    found, victim, first = evicted_for()
    shown: dict[str, Pod] = {"victim": victim, "p": first}
    shown |= {f"stays-{gpu}": bound(f"stays-{gpu}", "a", (gpu, 12), priority=1000) for gpu in (1, 2)}
    for number in range(25):
        now = 2.0 + number
        if number == 10:
            found.drop_pod(shown.pop("victim"), now)
        elif number == 5:
            shown["victim"] = replace(victim, ending=True)
            found.put_pod(shown["victim"], now)
        one = asking(f"q{number}", choices.randint(1, 8), priority=choices.choice((0, 0, 1000, 2000)))
        if number > 5 and found.filter(one, ["a"], now).names and one.priority <= 1000:
            chosen = begun(found, one, "a", now)
            shown[one.uid] = replace(one, node="a", annotations={ASSIGNMENT: chosen.encode()})
            found.put_pod(shown[one.uid], now)
        found.failed(one, now)  # where it was bound, nothing is kept for it any more
        others = sorted(shown.keys() - {"victim", "p"})
        if others and choices.random() < 0.2:
            found.drop_pod(shown.pop(choices.choice(others)), now)
        again = placer("a", gpus=3)
        for other in shown.values():
            again.put_pod(other, now)
        for slices in (1, 4, 8, 16):
            probe = asking("probe", slices)
            answers = []
            for each in (found, again):
                refused = dict(each.filter(probe, ["a"], now).refused)
                attempt = each.attempts.get("probe")
                answers.append((refused, attempt and attempt.assignment))
                each.failed(probe, now)
            assert answers[0] == answers[1]
    assert found.filter(first, ["a"], 50.0).names == ["a"]


def test_a_class_that_is_made_makes_its_pods_due():
    from gigaslice.core.classes.resource_class import parse_resource_class

    found = placer("a")
    one = pod("p", container(gpus=1, classes={"late": 1}))
    assert found.filter(one, ["a"], 0.0).refused["a"].reason is RefusalReason.UNKNOWN_CLASS
    assert found.to_be_woken(1.0, 9) == []
    late = parse_resource_class(
        {"metadata": {"name": "late"}, "spec": {"selector": {"matchLabels": {"vendor": "NVIDIA"}}}}
    )
    found.put_class(late, 2.0)
    assert [one.uid for one in found.to_be_woken(2.0, 9)] == ["p"]
    found.drop_class(late, 3.0)
    assert found.to_be_woken(1000.0, 9) == []


@pytest.mark.parametrize("uid", ["p", "never seen"])
def test_ends_of_bindings_that_were_not_begun_change_nothing(uid: str):
    found = placer("a")
    for end in (found.bound, found.failed, found.doubtful, found.drop_pod):
        end(asking(uid), 0.0)
    assert len(found.attempts) == 0 and found.filter(asking("q"), ["a"], 1.0).names


def test_a_binding_that_begins_after_its_pod_has_gone_leaves_nothing_in_doubt():
    found = placer("a")
    one = asking("p")
    found.put_pod(one, 0.0)
    found.drop_pod(one, 1.0)
    begun(found, one, "a", 2.0)
    found.doubtful(one, 3.0)
    assert state_of(found, "p") is None
    assert found.filter(asking("q"), ["a"], 4.0).names == ["a"]
