# SPDX-License-Identifier: Apache-2.0
"""Plans that free GPUs (`gigaslice.core.cluster.defragment`), from the cluster's state. Pure.

A pod may be moved if something makes it again, it is not ending, and it does not carry the cluster autoscaler's
annotation against eviction. Nodes that lend host memory are left out: how much of it is real depends on who shares it.
Of a large cluster the nodes are looked at where the least would have to move, since the search must not take long.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.defragment import FreeingPlan, MovablePod, Steps, finished, planning
from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.hardware import NOTHING, GpuRoom, Hardware, NodeRoom
from gigaslice.core.cluster.refusal import Refusal
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import CORES_PER_GPU, NodeState, Occupant, Pod, Share

__all__ = ["freeing_plans", "freeing_steps", "may_be_moved"]

_STAYS = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_MOST_NODES = 300
_AT_ONCE = 200  # nodes of which the fullest GPU is looked for in one step


def may_be_moved(pod: Pod) -> bool:
    """Whether a pod may be restarted elsewhere, as far as it says."""
    return pod.controlled and not pod.ending and not pod.mirror and pod.annotations.get(_STAYS) != "false"


def freeing_plans(
    state: ClusterState, pods: Mapping[str, Pod], *, gpus: int = 1, most: int = 5, tries: int = 60
) -> list[FreeingPlan]:
    """Finds what would free whole GPUs, at once: see `freeing_steps`."""
    return finished(freeing_steps(state, pods, gpus=gpus, most=most, tries=tries))


def freeing_steps(
    state: ClusterState, pods: Mapping[str, Pod], *, gpus: int = 1, most: int = 5, tries: int = 60
) -> Steps[list[FreeingPlan]]:
    """Finds what would free whole GPUs, step by step; see `gigaslice.core.cluster.defragment.planning`.

    The cluster may change between two steps: each node counts as it was when it was looked at, and a node whose GPUs
    have become others takes no pods any more.

    Args:
        state: The cluster.
        pods: The pods that it has, by UID; a pod that is missing here is not moved.
        gpus: How many GPUs of one node are to be free together.
        most: So many plans at most.
        tries: So many GPUs at most are looked at.
    """
    order = []
    for number, name in enumerate(state.nodes):
        order.append((_least_held(state, name), name))
        if number % _AT_ONCE == 0:
            yield
    nodes: dict[str, NodeState] = {}
    kinds: dict[str, Hardware | None] = {}
    moved: dict[str, Pod] = {}
    movable: dict[str, MovablePod] = {}
    for name in sorted(name for _, name in nsmallest(_MOST_NODES, order)):
        node, kind = _node(state, name), state.hardware(name)
        yield
        if node is None:
            continue
        nodes[name], kinds[name] = node, kind
        for occupant in node.occupants:
            pod = pods.get(occupant.name)
            if pod is not None and may_be_moved(pod):
                moved[occupant.name], movable[occupant.name] = pod, MovablePod(occupant.name, pod.node)
    demands: dict[str, PodDemand | Refusal] = {}

    def place(name: str, node: NodeState, pod: MovablePod) -> tuple[Share, ...] | None:
        if pod.name not in demands:
            demands[pod.name] = state.demand_of(moved[pod.name])
        demand = demands[pod.name]
        if isinstance(demand, Refusal) or not demand.any or state.hardware(name) is not kinds[name]:
            return None
        assigned = state.choose_in(_room(node), demand, name)
        return None if assigned is None else _together(assigned)

    return (yield from planning(nodes, movable, place, gpus=gpus, most=most, tries=tries))


def _least_held(state: ClusterState, name: str) -> int:
    """The fewest slices that are held of a partly used GPU; very many where there is none."""
    hardware = state.hardware(name)
    if hardware is None:
        return 1 << 30
    rows = zip(hardware.gpus, state.room(name), strict=True)
    return min((gpu.slices - room.free for gpu, room in rows if room.foreign and room.free), default=1 << 29)


def _node(state: ClusterState, name: str) -> NodeState | None:
    """The node as placement has it, with its pods by UID; None for one that takes no pods now."""
    facts, hardware = state.facts(name), state.hardware(name)
    if facts is None or hardware is None or not facts.schedulable or not facts.ready or hardware.lends:
        return None
    shares: dict[str, list[Share]] = {}
    gpus = []
    for gpu_holders, room in zip(state.holders(name), state.room(name), strict=True):
        for holder in gpu_holders.holders:
            shares.setdefault(holder.holding.id, []).append(
                Share(gpu_holders.gpu.gpu.uuid, holder.slices, holder.cores)
            )
        shut = gpu_holders.free > 0 and room.free == 0  # one pod's alone, or unhealthy
        gpus.append((gpu_holders.gpu.gpu, not shut and not gpu_holders.gpu.unhealthy))
    occupants = [Occupant(uid, tuple(pod_shares)) for uid, pod_shares in shares.items()]
    node = NodeState.build([gpu for gpu, _ in gpus], hardware.topology, occupants)
    for gpu, good in gpus:
        node = node if good else node.with_health(gpu.uuid, healthy=False)
    return node


def _room(node: NodeState) -> NodeRoom:
    usage = node.usage()
    rows = zip(node.gpus, usage.slices, usage.cores, usage.holders, strict=True)
    return tuple(
        GpuRoom(
            max(0, gpu.slices - slices),
            max(0, gpu.slices - slices),
            max(0, CORES_PER_GPU - cores),
            bool(held),
        )
        if gpu.healthy
        else NOTHING
        for gpu, slices, cores, held in rows
    )


def _together(assignment: Assignment) -> tuple[Share, ...]:
    """What all containers have, one share per GPU. Init containers count too: a plan may be too careful."""
    totals: dict[str, tuple[int, int]] = {}
    for shares in assignment.containers.values():
        for share in shares:
            slices, cores = totals.get(share.gpu, (0, 0))
            totals[share.gpu] = slices + share.slices, min(CORES_PER_GPU, cores + share.cores)
    return tuple(Share(gpu, *totals[gpu]) for gpu in sorted(totals))
