# SPDX-License-Identifier: Apache-2.0
"""Which pods would have to go so that a more important one fits on a node, and no pod more than that. Pure.

kube-scheduler counts slices of a node and evicts until the count fits; the GPUs that it frees so may be the wrong ones.
Here every set is tried on the GPUs themselves. The best set spares the most important pods: as few of the highest
priority as possible, then as few of the next, and of equal sets the one with the fewest slices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations

from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.state import ClusterState

__all__ = ["victims"]

_Fits = Callable[[frozenset[str]], bool]


class _TooManySetsError(Exception):
    """The search was given up; never leaves this module."""


def victims(
    state: ClusterState,
    demand: PodDemand,
    node: str,
    priority: int,
    *,
    candidates: Collection[str] | None = None,
    required: Collection[str] = (),
    most_tries: int = 1000,
) -> tuple[str, ...] | None:
    """Returns the UIDs of the pods to be evicted, none where the pod fits at once; None where no eviction helps.

    Args:
        state: The cluster.
        demand: What the preempting pod asks for.
        node: Where.
        priority: Of the preempting pod. Only pods of a lower one are evicted.
        candidates: The pods that may be evicted; None for all with a lower priority.
        required: Pods that go in any case, such as those that kube-scheduler chose and that hold no GPU.
        most_tries: Sets tried before a good one is taken for the best; enough for a dozen pods on the GPUs of a node.
    """
    gone = frozenset(required)
    slices: dict[str, int] = {}
    levels: dict[int, set[str]] = {}
    for gpu in state.holders(node):
        for holder in gpu.holders:
            for pod in holder.holding.consumers:
                named = pod.name and not holder.holding.reserved and pod.uid not in gone
                if named and pod.priority < priority and (candidates is None or pod.uid in candidates):
                    slices[pod.uid] = slices.get(pod.uid, 0) + holder.slices
                    levels.setdefault(pod.priority, set()).add(pod.uid)
    tries = 0

    def fits(out: frozenset[str]) -> bool:
        nonlocal tries
        tries += 1
        return state.without(gone | out).refusal(demand, node) is None

    def limited(out: frozenset[str]) -> bool:
        if tries > most_tries:
            raise _TooManySetsError
        return fits(out)

    ordered = [sorted(levels[level], key=lambda uid: (slices[uid], uid)) for level in sorted(levels)]
    if not fits(frozenset(slices)):
        return None
    if fits(frozenset()):
        return tuple(sorted(gone))
    try:
        chosen = _best(limited, ordered, frozenset(), slices)
    except _TooManySetsError:
        chosen = _spared(fits, ordered)
    return tuple(sorted(gone | chosen))


def _best(
    fits: _Fits, levels: Sequence[Sequence[str]], out: frozenset[str], slices: Mapping[str, int]
) -> frozenset[str]:
    """Returns the best set that has OUT in it and otherwise pods of these levels, lowest priority first."""
    if not levels:
        return out
    lower = frozenset(uid for level in levels[:-1] for uid in level)
    for count in range(len(levels[-1]) + 1):
        sets = [
            _best(fits, levels[:-1], out.union(chosen), slices)
            for chosen in combinations(levels[-1], count)
            if fits(out.union(chosen) | lower)
        ]
        if sets:
            return min(sets, key=lambda uids: _cost(uids, levels, slices))
    raise AssertionError("all of them together are enough")


def _cost(
    uids: frozenset[str], levels: Sequence[Sequence[str]], slices: Mapping[str, int]
) -> tuple[list[int], int, list[str]]:
    counts = [sum(uid in uids for uid in level) for level in reversed(levels)]
    return counts, sum(slices[uid] for uid in uids), sorted(uids)


def _spared(fits: _Fits, levels: Sequence[Sequence[str]]) -> frozenset[str]:
    """Returns a set of which no pod can be spared: all of them, less those that can, the most important first."""
    out = frozenset(uid for level in levels for uid in level)
    for level in reversed(levels):
        for uid in reversed(level):
            if fits(out - {uid}):
                out -= {uid}
    return out
