# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from gigaslice.core.classes.resource_class import parse_resource_class
from gigaslice.core.cluster.defragment import finished
from gigaslice.core.cluster.holding import HeldShare, Holding, PodConsumer
from gigaslice.core.cluster.state import ClusterState, NodeFacts
from gigaslice.core.model import Occupant, Share
from gigaslice.core.views.cluster_picture import GpuCondition, LinkGroup
from gigaslice.core.views.collect import picture, picture_steps
from gigaslice.core.views.page import render
from gigaslice.core.views.svg import cluster_svg
from gigaslice.core.views.totals import totals
from gigaslice.core.views.usage import NodeUsage
from tests.fakes.clusters import bound, container, facts, inventory_gpu, pod, uuid
from tests.unit.gigaslice.core.views.pictures import NOW

GIB = 1 << 30


def state() -> ClusterState:
    found = ClusterState()
    found.put_node(facts("node-a", 4))
    found.put_node(facts("node-b", [inventory_gpu("node-b", 0, unhealthy="Xid 79")], schedulable=False))
    found.put_node(NodeFacts("cpu-only"))
    found.put_node(NodeFacts("broken", "{}", ready=False))
    found.put_pod(bound("u1", "node-a", (0, 6), (1, 16)))
    return found


def test_a_picture_has_what_the_state_has() -> None:
    view = picture(state())
    assert [node.name for node in view.nodes] == ["broken", "cpu-only", "node-a", "node-b"]
    broken, plain, a, b = view.nodes
    assert broken.conditions == ("not ready", "its inventory cannot be read, or lists no GPU")
    assert plain.conditions == ()
    assert [gpu.condition for gpu in a.gpus] == [
        GpuCondition.PARTLY_USED,
        GpuCondition.FULL,
        GpuCondition.WHOLE,
        GpuCondition.WHOLE,
    ]
    assert str(a.gpus[0].holders[0]) == "team/pod-u1"
    assert a.links == (LinkGroup("PIX", (0, 1)), LinkGroup("PIX", (2, 3)), LinkGroup("SYS", (0, 1, 2, 3)))
    assert b.gpus[0].unhealthy == "Xid 79"
    assert b.conditions == ("cordoned",)


def test_no_later_change_touches_it() -> None:
    cluster = state()
    before = picture(cluster)
    svg = cluster_svg(before)
    cluster.drop_pod("u1")
    cluster.drop_node("node-b")
    assert cluster_svg(before) == svg != cluster_svg(picture(cluster))


def test_pods_that_only_the_agent_knows_have_their_uid_or_the_name_that_is_given() -> None:
    cluster = ClusterState()
    held = (Occupant("uid-7", (Share(uuid("n", 0), 3),)),)
    cluster.put_node(facts("n", 1, held=held))
    assert str(picture(cluster).nodes[0].gpus[0].holders[0]) == "uid-7"
    assert str(picture(cluster, names={"uid-7": "team/x"}).nodes[0].gpus[0].holders[0]) == "team/x"


def test_what_several_pods_share_has_the_names_of_all() -> None:
    cluster = state()
    pods = (PodConsumer("u8", "team", "first"), PodConsumer("u9", "team", "second"))
    cluster.put_holding("node-a", Holding("claim", (HeldShare(uuid("node-a", 3), 2),), pods))
    (holder,) = picture(cluster).nodes[2].gpus[3].holders
    assert (str(holder), holder.slices) == ("team/first, second", 2)


def test_waiting_pods_come_with_their_explanation() -> None:
    one = pod("w", container(gpus=5), created="2026-11-23T05:00:00Z")
    view = picture(state(), [one], ["move x"])
    (waiting,) = view.waiting
    assert waiting.since == "2026-11-23T05:00:00Z"
    assert waiting.details
    assert "60 min" in render(view, now=NOW)


def test_what_is_used_is_that_of_the_nodes_own_agent() -> None:
    cluster = state()
    pods = (PodConsumer("u8", "team", "first"), PodConsumer("u9", "team", "second"))
    cluster.put_holding("node-a", Holding("claim", (HeldShare(uuid("node-a", 3), 2),), pods))
    cluster.put_node(facts("unlisted", 1, held=(Occupant("uid-7", (Share(uuid("unlisted", 0), 3),)),)))
    used = {
        (uuid("node-a", 0), "team", "pod-u1"): 5,
        (uuid("node-a", 3), "team", "first"): 20,
        (uuid("node-a", 3), "team", "second"): 3,
        (uuid("node-a", 1), "other", "pod-u1"): 99,
        (uuid("node-a", 1), "team", "pod-u1"): 0,
    }

    def seen(usage: dict[str, NodeUsage]) -> list[int | None]:
        view = finished(picture_steps(cluster, (), (), usage=usage))
        gpus = [gpu for node in view.nodes if node.name in ("node-a", "unlisted") for gpu in node.gpus]
        return [holder.used_bytes for gpu in gpus for holder in gpu.holders]

    assert seen({"node-a": NodeUsage(used), "unlisted": NodeUsage({})}) == [5, None, 23, None]
    used[uuid("node-a", 1), "team", "pod-u1"] = 7
    assert seen({"node-a": NodeUsage(used)})[1] == 7, (
        "what NVML shows of a whole GPU; without it nothing is known"
    )
    del used[uuid("node-a", 0), "team", "pod-u1"]
    assert seen({"node-a": NodeUsage(used)})[0] is None, "its agent has no such pod yet"
    assert seen({"node-b": NodeUsage(used)}) == [None, None, None, None], "of another node's agent"


def test_classes_say_what_they_select() -> None:
    cluster = state()
    selector = {"matchExpressions": [{"key": "memory", "operator": "Gt", "values": ["8GiB"]}]}
    cluster.put_class(parse_resource_class({"metadata": {"name": "big"}, "spec": {"selector": selector}}))
    none = {"matchLabels": {"model": "NVIDIA H100"}}
    share = {"memory": "4Gi", "cores": 20}
    cluster.put_class(
        parse_resource_class({"metadata": {"name": "h100"}, "spec": {"selector": none, "share": share}})
    )
    big, h100 = picture(cluster).classes
    assert (big.name, big.devices, big.free, big.nodes, big.selects) == ("big", 5, 2, 2, "memory > 8GiB")
    assert h100.selects == "model is NVIDIA H100; a unit is 4 GiB and 20% of the compute of a GPU"
    assert h100.problem == "no GPU of the cluster matches"


def test_memory_is_added_up_by_namespace_and_pod() -> None:
    (team,) = totals(picture(state()))
    assert (team.namespace, team.size, team.gpus, len(team.pods)) == ("team", 22 * GIB, 2, 1)
    assert (team.pods[0].whole, team.pods[0].node) == (1, "node-a")
