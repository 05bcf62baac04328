# SPDX-License-Identifier: Apache-2.0
"""NUMA hints of a resource and what each topology-manager policy makes of them. Pure: numbers in, a verdict out.

NUMA masks are integers, bit n standing for node n. A hint without a mask (None) means "any node is fine".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


@dataclass(frozen=True, slots=True)
class Hint:
    """Nodes that can serve a request, and whether no smaller set of nodes ever could."""

    mask: int | None
    preferred: bool


def masks(nodes: Sequence[int]) -> Iterable[int]:
    """Every non-empty set of NODES, smaller sets first, lower nodes first."""
    for size in range(1, len(nodes) + 1):
        for chosen in itertools.combinations(sorted(nodes), size):
            yield sum(1 << node for node in chosen)


def on(mask: int, nodes: Iterable[int]) -> bool:
    return any(mask >> node & 1 for node in nodes if node >= 0)


def resource_hints(
    nodes: Sequence[int],
    placed: Mapping[str, tuple[int, ...]],
    free: Set[str],
    reusable: Set[str],
    requested: int,
) -> list[Hint] | None:
    """Hints for WANTED of the devices PLACED (id -> nodes, empty without topology); None: no opinion.

    Preferred is judged by all devices there are, also those in use: so two pods may find their preferred
    nodes full while the smaller ones still hold enough for each other.
    """
    if not any(placed.values()):
        return None
    if len(free | reusable) < requested:
        return []
    smallest = len(nodes)
    found = []
    for mask in masks(nodes):
        size = mask.bit_count()
        if size < smallest and sum(on(mask, where) for where in placed.values()) >= requested:
            smallest = size
        lent = [placed.get(device, ()) for device in reusable]
        if not all(on(mask, where) for where in lent if where):
            continue
        spare = sum(on(mask, placed.get(device, ())) for device in free - reusable)
        if spare + sum(1 for where in lent if where) >= requested:
            found.append(mask)
    return [Hint(mask, mask.bit_count() == smallest) for mask in found]


def merge(policy: str, nodes: Sequence[int], hints: Iterable[list[Hint] | None]) -> tuple[int | None, bool]:
    """The affinity (None: none) for a container and whether the policy admits it."""
    if policy == "none":
        return None, True
    everything = sum(1 << node for node in nodes)
    filled = []
    for provider in hints:
        if provider is None:
            filled.append([Hint(None, True)])
        elif not provider:
            filled.append([Hint(None, False)])
        elif policy == "single-numa-node":
            single = [h for h in provider if h.preferred and h.mask is not None and h.mask.bit_count() == 1]
            filled.append(single)
        else:
            filled.append(provider)
    best = Hint(everything, False)
    for chosen in itertools.product(*filled):
        candidate = _and(everything, chosen)
        if candidate.mask and _better(candidate, best):
            best = candidate
    if policy == "best-effort":
        return best.mask, True
    if policy == "single-numa-node" and best.mask == everything and len(nodes) > 1:
        return None, best.preferred
    return best.mask, best.preferred


def _and(everything: int, hints: Sequence[Hint]) -> Hint:
    mask = everything
    for hint in hints:
        mask &= everything if hint.mask is None else hint.mask
    own = {hint.mask for hint in hints if hint.mask is not None}
    return Hint(mask, all(hint.preferred for hint in hints) and len(own) <= 1)


def _better(candidate: Hint, best: Hint) -> bool:
    if candidate.preferred != best.preferred:
        return candidate.preferred
    assert candidate.mask is not None and best.mask is not None
    return (candidate.mask.bit_count(), candidate.mask) < (best.mask.bit_count(), best.mask)
