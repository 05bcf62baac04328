"""What is decided between the filter of a pod and its binding, without a server: time is an argument."""

from __future__ import annotations

import pytest

from gigaslice.cluster.assignment import Assignment
from gigaslice.cluster.preempt import victims
from gigaslice.cluster.refusal import Refusal, RefusalReason
from gigaslice.cluster.state import ClusterState
from gigaslice.model import Pod
from gigaslice.scheduler.attempts import AttemptState
from gigaslice.scheduler.placer import Placer
from tests.unit.gigaslice.cluster.clusters import bound, container, facts, inventory_gpu, pod

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


def test_a_class_that_is_made_makes_its_pods_due():
    from gigaslice.classes.resource_class import parse_resource_class

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
