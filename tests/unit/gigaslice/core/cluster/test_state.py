# SPDX-License-Identifier: Apache-2.0
"""The cluster in memory: what counts, since when and until when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gigaslice.core.classes.resource_class import ClassShare, ResourceClass
from gigaslice.core.classes.selector import parse_selector
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.cluster.node_record import NodeFacts
from gigaslice.core.cluster.refusal import Refusal, RefusalReason
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import ContainerKind, Occupant, Pod, PodContainer, Share
from tests.fakes.clusters import CHECKED, bound, chosen, container, demand, facts, inventory_gpu, pod, uuid
from tests.fakes.gpus import GIB

EIGHT = pod("new", container(slices=8))
ALL = pod("all", container(gpus=2))


def a_class(name: str, model: str, share: ClassShare | None = None) -> ResourceClass:
    return ResourceClass(name, parse_selector({"matchLabels": {"model": model}}), share)


@pytest.fixture
def state() -> ClusterState:
    state = ClusterState(CHECKED)
    state.put_node(facts("a"))
    return state


def reason(state: ClusterState, which: str = "a", one: object = None) -> RefusalReason | None:
    asked = demand(state, EIGHT) if one is None else demand(state, one)  # type: ignore[arg-type]
    fitting, refused = state.filter(asked, [which])
    assert (which in fitting) == (which not in refused)
    return refused[which].reason if refused else None


def test_six_and_six_are_not_eight(state: ClusterState) -> None:
    state.put_pod(bound("1", "a", (0, 10)))
    assert reason(state) is None
    state.put_pod(bound("2", "a", (1, 10)))
    assert reason(state) is RefusalReason.NO_ROOM
    assert reason(state, one=pod("x", container(slices=6))) is None


def test_a_pod_counts_until_it_has_ended(state: ClusterState) -> None:
    both = bound("1", "a", (0, 16), (1, 16))
    for end in (lambda: state.drop_pod("1"), lambda: state.put_pod(replace(both, phase="Failed"))):
        state.put_pod(both)
        assert reason(state) is RefusalReason.NO_ROOM
        end()
        assert reason(state) is None


@pytest.mark.parametrize("resource", ["gigaslice.io/vgpu-memory", "gigaslice.io/vgpu-memory.t4"])
def test_a_pod_that_no_agent_can_have_placed_counts_with_all_that_it_asks_for(
    state: ClusterState, resource: str
) -> None:
    asking = PodContainer("main", requests={resource: 8})
    state.put_pod(pod("x", asking, node="a", annotations={"gigaslice.io/gpus": "zero"}))
    assert sum(room.free for room in state.room("a")) == 24


def test_a_pod_may_come_before_its_node() -> None:
    state = ClusterState(CHECKED)
    state.put_pod(bound("1", "a", (0, 16), (1, 16)))
    assert reason(state) is RefusalReason.NO_INVENTORY and not state.nodes
    state.put_node(facts("a"))
    assert reason(state) is RefusalReason.NO_ROOM
    state.drop_node("a")
    assert reason(state) is RefusalReason.NO_INVENTORY
    state.put_node(facts("a"))
    assert reason(state) is RefusalReason.NO_ROOM
    state.drop_node("a")
    state.drop_pod("1")
    state.put_node(facts("a"))
    assert reason(state) is None


def test_an_inventory_that_cannot_be_read_has_its_own_reason(state: ClusterState) -> None:
    state.put_node(NodeFacts("a", "{}"))
    assert reason(state) is RefusalReason.UNREADABLE_INVENTORY
    state.put_node(NodeFacts("a", None))
    assert reason(state) is RefusalReason.NO_INVENTORY


def test_an_inventory_is_decoded_when_it_changes() -> None:
    text = facts("a").inventory_text
    first, second, other = NodeFacts("a", text), NodeFacts("a", text, ready=False), NodeFacts("a", "{}")
    assert first.inventory is second.inventory is not None and first != second
    assert other.inventory is None and other.mistake and not NodeFacts("a", text).mistake
    assert NodeFacts("a").inventory is None and not NodeFacts("a").mistake


def test_what_the_agent_lists_counts_before_an_annotation_that_says_something_else(
    state: ClusterState,
) -> None:
    held = (Occupant("1", (Share(uuid("a", 0), 16), Share(uuid("a", 1), 16))),)
    state.put_node(facts("a", held=held))
    assert reason(state) is RefusalReason.NO_ROOM
    state.put_pod(bound("1", "a", (0, 16)))
    assert reason(state) is RefusalReason.NO_ROOM, "its agent has recorded both GPUs"
    state.put_node(facts("a"))
    assert reason(state) is None, "not twice, and the assignment is what its agent has executed"
    (holder,) = state.holders("a")[0].holders
    assert (holder.holding.title, holder.slices) == ("team/pod-1", 16)


def test_a_pod_without_assignment_counts_as_the_agent_would_place_it(state: ClusterState) -> None:
    for uid in ("1", "2"):
        state.put_pod(pod(uid, container(slices=10), node="a"))
    assert reason(state) is RefusalReason.NO_ROOM
    held = tuple(Occupant(uid, (Share(uuid("a", 0), 8),)) for uid in ("1", "2"))
    state.put_node(facts("a", held=held))
    assert reason(state) is None, "the agent has put them elsewhere"
    state.drop_pod("1")
    state.drop_pod("2")
    state.put_node(facts("a"))
    assert reason(state, one=ALL) is None


def test_a_pod_of_a_class_without_assignment_counts_with_what_its_node_lists_alone(
    state: ClusterState,
) -> None:
    """Its agent gives it no GPU: another scheduler has bound it, and where it asks for nothing else it just runs."""
    state.put_class(a_class("any", "NVIDIA A"))
    state.put_pod(pod("1", container(classes={"any": 2}), node="a"))
    assert reason(state, one=ALL) is None
    state.put_node(facts("a", held=(Occupant("1", (Share(uuid("a", 0), 16),)),)))
    assert reason(state, one=ALL) is not None
    assert chosen(state, pod("x", container(slices=16)), "a") == {"main": [(1, 16, 100)]}


def test_a_pod_that_has_lost_its_assignment_keeps_its_gpus_until_it_ends(state: ClusterState) -> None:
    state.put_class(a_class("any", "NVIDIA A"))
    one = bound("1", "a", (0, 16))
    for stripped in (
        replace(one, annotations={}),
        replace(one, annotations={}, containers=(container(classes={"any": 1}),)),
    ):
        state.put_pod(one)
        state.put_pod(stripped)
        assert chosen(state, pod("x", container(slices=16)), "a") == {"main": [(1, 16, 100)]}
        state.put_pod(replace(stripped, phase="Succeeded"))
        assert reason(state, one=ALL) is None


def unread(uid: str, node: str = "a") -> Pod:
    return Pod("team", f"pod-{uid}", uid, node=node, phase="Running", readable=False)


def test_a_bound_pod_that_cannot_be_read_closes_its_node_until_it_is_read_or_gone(
    state: ClusterState,
) -> None:
    state.put_node(facts("b"))
    state.put_pod(unread("1"))
    assert reason(state) is RefusalReason.UNREADABLE_POD and reason(state, "b") is None
    assert state.class_status("any").free == 0 and not any(one.free for one in state.room("a"))
    state.put_pod(bound("1", "a", (0, 16)))
    assert chosen(state, pod("x", container(slices=16)), "a") == {"main": [(1, 16, 100)]}
    state.drop_pod("1")
    for end in (
        lambda: state.drop_pod("1"),
        lambda: state.put_pod(pod("1", container(), node="a")),
        lambda: state.put_pod(unread("1", "b")),
    ):
        state.put_pod(unread("1"))
        assert reason(state, one=ALL) is RefusalReason.UNREADABLE_POD
        end()
        assert reason(state, one=ALL) is None
    assert reason(state, "b") is RefusalReason.UNREADABLE_POD
    state.drop_node("b")
    state.put_node(facts("b"))
    assert reason(state, "b") is RefusalReason.UNREADABLE_POD, "nor does a node that comes back forget it"


def test_a_bound_pod_that_cannot_be_read_any_more_keeps_its_gpus(state: ClusterState) -> None:
    for before in (bound("1", "a", (0, 16)), pod("1", container(slices=16), node="a")):
        state.put_pod(before)
        state.put_pod(unread("1"))
        assert chosen(state, pod("x", container(slices=16)), "a") == {"main": [(1, 16, 100)]}
        state.drop_pod("1")
        assert reason(state, one=ALL) is None


def test_a_pod_that_cannot_be_read_has_what_its_agent_says(state: ClusterState) -> None:
    state.put_pod(unread("1"))
    state.put_node(facts("a", held=(Occupant("1", (Share(uuid("a", 0), 16),)),)))
    assert chosen(state, pod("x", container(slices=16)), "a") == {"main": [(1, 16, 100)]}
    state.put_node(facts("a"))
    assert reason(state) is RefusalReason.UNREADABLE_POD


def test_a_pod_that_cannot_be_read_and_is_evicted_is_left_out_of_account(state: ClusterState) -> None:
    state.put_pod(unread("1"))
    assert state.refusal(demand(state, ALL), "a", without={"1"}) is None


def test_an_unreadable_assignment_frees_nothing(state: ClusterState) -> None:
    """As much as its pod asks for counts, and no more."""
    state.put_class(a_class("any", "NVIDIA A"))
    damaged = pod("1", container(classes={"any": 1}), node="a")
    state.put_pod(replace(damaged, annotations={ASSIGNMENT: "[]"}))
    assert reason(state, one=ALL) is RefusalReason.NO_GPU
    assert reason(state, one=pod("x", container(slices=16))) is None


def test_an_exclusive_pod_shuts_its_gpus(state: ClusterState) -> None:
    state.put_pod(bound("1", "a", (0, 1), (1, 1), annotations={"exclusive": "true"}))
    assert reason(state) is RefusalReason.NO_ROOM


@pytest.mark.parametrize("suffix", ["", ".main"])
def test_an_edit_of_a_bound_pod_neither_shuts_its_gpus_nor_opens_them(
    state: ClusterState, suffix: str
) -> None:
    said = {f"exclusive{suffix}": "true"}
    plain, alone = (bound(uid, "a", (0, 1), (1, 1)) for uid in "12")
    alone = replace(alone, annotations={**alone.annotations, f"gigaslice.io/exclusive{suffix}": "true"})
    state.put_pod(plain)
    state.put_pod(bound("1", "a", (0, 1), (1, 1), annotations=said))
    assert reason(state) is None
    state.drop_pod("1")
    state.put_pod(alone)
    assert reason(state) is RefusalReason.NO_ROOM
    state.put_pod(bound("2", "a", (0, 1), (1, 1)))
    assert reason(state) is RefusalReason.NO_ROOM
    state.drop_pod("2")
    state.put_pod(bound("2", "a", (0, 1), (1, 1)))
    assert reason(state) is None, "forgotten with the pod"


def test_what_a_pod_was_chosen_for_is_what_its_binding_means(state: ClusterState) -> None:
    """An edit between the decision and the binding that shows it."""
    one = pod("1", container(slices=1), annotations={"exclusive": "true", "gpu-uuid": uuid("a", 0)})
    asked = demand(state, one)
    for edited, shut in (({}, True), ({"gigaslice.io/exclusive": "true"}, True)):
        assignment = state.choose(asked, "a")
        assert isinstance(assignment, Assignment)
        state.reserve("1", "a", assignment, asked)
        shown = {**edited, ASSIGNMENT: assignment.encode()}
        state.put_pod(replace(one, node="a", annotations=shown))
        assert (state.room("a")[0].free == 0) == shut
        state.drop_pod("1")
    state.reserve("1", "a", Assignment({"main": (Share(uuid("a", 0), 1),)}), asked)
    state.release("1")
    state.put_pod(bound("1", "a", (0, 1)))
    assert state.room("a")[0].free == 15, "given up with the reservation"


def test_what_agents_have_recorded_counts_before_what_pods_say(state: ClusterState) -> None:
    """After a restart nobody remembers what was decided, and annotations may have been edited meanwhile."""
    first, second = (uuid("a", gpu) for gpu in (0, 1))
    state.put_pod(bound("1", "a", (0, 1), (1, 1), annotations={"exclusive": "true"}))
    assert [gpu.free for gpu in state.room("a")] == [0, 0]
    state.put_node(facts("a", exclusive={"1": ()}))
    assert [gpu.free for gpu in state.room("a")] == [15, 15], "it has them with others"
    state.put_node(facts("a", exclusive={"1": (second,), "gone": (first,)}))
    assert [gpu.free for gpu in state.room("a")] == [15, 0]
    state.put_pod(bound("1", "a", (0, 1), (1, 1)))
    assert [gpu.free for gpu in state.room("a")] == [15, 0]


def test_whether_a_pod_may_use_host_memory_is_what_its_agent_has_recorded(state: ClusterState) -> None:
    """Slices in host memory leave the GPU's own to others: who writes it later gets nothing, and gives nothing."""
    lending = [inventory_gpu("b", 0, 24, memory_bytes=16 * GIB, host_bytes=8 * GIB)]
    state.put_node(facts("b", lending))
    state.put_pod(bound("1", "b", (0, 12)))
    plain = state.room("b")[0].own_free
    state.put_pod(bound("1", "b", (0, 12), annotations={"oversubscribe": "true"}))
    assert state.room("b")[0].own_free == plain
    state.put_node(facts("b", lending, lent={"1": (uuid("b", 0),)}))
    assert state.room("b")[0].own_free > plain
    state.put_node(facts("b", lending, lent={"1": ()}))
    assert state.room("b")[0].own_free == plain
    state.put_node(facts("b", lending, held=(Occupant("2", (Share(uuid("b", 0), 2),)),)))
    before = state.room("b")[0].own_free
    state.put_pod(pod("2", container(slices=2), node="b", annotations={"oversubscribe": "true"}))
    assert state.room("b")[0].own_free == before, "of a pod that its agent has placed, too"


def test_a_reservation_counts_until_the_pod_does(state: ClusterState) -> None:
    asked = demand(state, ALL)
    assignment = state.choose(asked, "a")
    assert isinstance(assignment, Assignment)
    state.reserve("all", "a", assignment, asked)
    assert reason(state) is RefusalReason.NO_ROOM and state.reserved_on("all") == "a"
    assert state.choose(asked, "a", without={"all"}) == assignment
    state.put_pod(replace(ALL, node=""))
    assert reason(state) is RefusalReason.NO_ROOM, "a pod that is not bound yet changes nothing"
    shown = replace(ALL, node="a", annotations={ASSIGNMENT: assignment.encode()})
    state.put_pod(shown)
    assert reason(state) is RefusalReason.NO_ROOM and state.reserved_on("all") == ""
    state.reserve("all", "a", assignment, asked)
    assert state.reserved_on("all") == "", "the pod itself counts"
    state.drop_pod("all")
    assert reason(state) is None and state.reserved_on("all") == ""


def test_a_reservation_ends(state: ClusterState) -> None:
    asked = demand(state, ALL)
    assignment = state.choose(asked, "a")
    assert isinstance(assignment, Assignment)
    for end in (
        lambda: state.release("all"),
        lambda: state.drop_pod("all"),
        lambda: state.put_pod(replace(ALL, phase="Failed")),
    ):
        state.reserve("all", "a", assignment, asked)
        assert reason(state) is RefusalReason.NO_ROOM
        end()
        assert reason(state) is None
    state.reserve("all", "a", assignment, asked)
    state.put_node(facts("b"))
    state.reserve("all", "b", Assignment({"main": (Share(uuid("b", 0), 16),)}))
    assert reason(state) is None, "a pod is reserved in one place"


def test_classes(state: ClusterState) -> None:
    state.put_class(a_class("big", "NVIDIA B"))
    wanted = pod("x", container(classes={"big": 1}))
    assert reason(state, one=wanted) is RefusalReason.NO_CLASS
    state.put_node(facts("a", [inventory_gpu("a", 0), inventory_gpu("a", 1, model="NVIDIA B")]))
    assert chosen(state, wanted, "a") == {"main": [(1, 16, 100)]}
    assert (state.class_status("big").devices, state.class_status("big").free) == (1, 1)
    state.put_pod(bound("1", "a", (1, 4)))
    assert reason(state, one=wanted) is RefusalReason.NO_GPU
    assert (state.class_status("big").devices, state.class_status("big").free) == (1, 0)
    state.put_class(a_class("big", "NVIDIA A"))
    assert chosen(state, wanted, "a") == {"main": [(0, 16, 100)]}
    state.put_class(a_class("big", "NVIDIA B", ClassShare(8 * GIB, 30)))
    assert chosen(state, wanted, "a") == {"main": [(1, 8, 30)]}
    state.drop_class("big")
    found = state.demand_of(wanted)
    assert isinstance(found, Refusal) and found.reason is RefusalReason.UNKNOWN_CLASS


def test_an_init_container_lends_its_gpu(state: ClusterState) -> None:
    first = container("first", slices=12, kind=ContainerKind.INIT)
    one = pod("x", first, container("main", slices=12))
    assert chosen(state, one, "a") == {"first": [(0, 12)], "main": [(0, 12)]}
    state.put_pod(bound("1", "a", (0, 10)))
    assert chosen(state, one, "a") == {"first": [(1, 12)], "main": [(1, 12)]}
    both = pod("y", container("one", slices=12), container("two", slices=12))
    assert reason(state, one=both) is RefusalReason.TOGETHER


def test_a_cordoned_node_is_refused_in_the_report_alone(state: ClusterState) -> None:
    state.put_node(replace(facts("a"), schedulable=False))
    assert reason(state) is None
    (report,) = state.report(demand(state, EIGHT))
    assert report.refusal is None and not report.schedulable and report.would_help == "kubectl uncordon"


def test_nothing_changes_without_a_change(state: ClusterState) -> None:
    one = bound("1", "a", (0, 3))
    state.put_pod(one)
    before = state.revision
    state.put_pod(one)
    state.put_node(facts("a"))
    state.put_pod(pod("other", container(), node="a"))
    state.drop_pod("never")
    state.release("never")
    assert state.revision == before


def test_the_best_nodes_are_the_first_of_the_ranking() -> None:
    state = ClusterState(CHECKED)
    for number in range(20):
        state.put_node(facts(f"n{number:02}"))
        if number % 3:
            state.put_pod(bound(f"u{number}", f"n{number:02}", (0, number % 7 + 1)))
    wanted = demand(state, pod("p", container(slices=4)))
    names = [f"n{number:02}" for number in range(0, 20, 2)]
    cache = state._cache(wanted)
    ranked = sorted(state.filter(wanted, names)[0], key=lambda name: (cache.key(name), name))
    for most in (1, 3, 99):
        assert state.best(wanted, names, most) == ranked[:most]


def test_a_class_that_changes_is_read_again_for_nodes_that_come_back(state: ClusterState) -> None:
    one = pod("x", container(classes={"fast": 1}))
    state.put_class(a_class("fast", "NVIDIA A"))
    assert reason(state, one=one) is None
    assert reason(state, one=pod("y", container(slices=1))) is None, "keeps the kind of node in memory"
    state.drop_node("a")
    state.put_class(a_class("fast", "NVIDIA B"))
    state.put_node(facts("a"))
    assert reason(state, one=one) is RefusalReason.NO_CLASS


def test_a_class_may_name_a_node(state: ClusterState) -> None:
    state.put_node(facts("b"))
    state.put_class(ResourceClass("here", parse_selector({"matchLabels": {"node": "b"}})))
    one = demand(state, pod("x", container(classes={"here": 1})))
    assert state.filter(one, ["a", "b"])[0] == ["b"]
