# SPDX-License-Identifier: Apache-2.0
"""Where a request goes: the way into this package for every request.

Requests that the Gaia paper has go to `dispatch`, or to `waiting` where there is no room. Two kinds that it has not
are brought down to those here. An exclusive GPU is a whole GPU of which only a part is then taken, memory and compute
alike. Different parts are placed one after the other, the largest first, each on a GPU that has none yet: a GPU that
holds a large part holds a smaller one too, so the order cannot lead into a dead end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gigaslice.core.model import (
    Infeasible,
    NodeState,
    Placement,
    Reason,
    Request,
    Share,
)
from gigaslice.core.placement import dispatch, waiting
from gigaslice.core.placement.policy import Policy
from gigaslice.core.placement.sizing import problem
from gigaslice.core.placement.tree import bits
from gigaslice.core.placement.waiting import Missing, Waiting


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool's way to serve a request: UUIDs of the GPUs it may take, and the slices of each part, largest first."""

    only: frozenset[str]
    sizes: tuple[int, ...]


def place(state: NodeState, request: Request, policy: Policy = Policy.GAIA) -> Placement | Infeasible:
    """Return where to place a request on this node, or why it cannot be placed: see `dispatch.place`."""
    if not request.exclusive and not request.parts:
        return dispatch.place(state, request, policy)
    plans = find_plans(state, request)
    if isinstance(plans, Infeasible):
        return plans
    for plan in plans:
        if request.exclusive:
            whole = dispatch.place(state, _whole(plan, request), policy)
            placement = (
                _shared_out(whole, plan.sizes, request.cores) if isinstance(whole, Placement) else None
            )
        else:
            placement = _one_by_one(state, plan, request, policy)
        if placement is not None:
            return placement
    left = ", ".join(
        f"GPU{gpu.index} {state.free(gpu.uuid)} of {gpu.slices}"
        for gpu in state.gpus
        if any(gpu.uuid in plan.only for plan in plans)
    )
    sizes = " and ".join(dict.fromkeys(str(size) for size in plans[0].sizes))
    what = (
        f"{len(plans[0].sizes)} GPU that no other pod uses"
        if request.exclusive
        else f"parts of {sizes} slices on different GPUs"
    )
    return Infeasible(
        Reason.INSUFFICIENT_NOW, f"no room now for {what}; free: {left}; waits for other pods to end"
    )


def place_waiting(state: NodeState, request: Request, policy: Policy = Policy.GAIA) -> Waiting | Infeasible:
    """Return where a request waits if it does not fit now, or why it never can: see `waiting.place_waiting`."""
    if not request.exclusive and not request.parts:
        return waiting.place_waiting(state, request, policy)
    now = place(state, request, policy)
    if isinstance(now, Placement):
        return Waiting(now, ())
    plans = find_plans(state, request)
    if isinstance(plans, Infeasible):
        return plans
    placements = [_wait(state, plan, request, policy) for plan in plans]
    return min(
        placements,
        key=lambda placement: (
            sum(m.unhealthy for m in placement.missing),
            sum(m.slices for m in placement.missing),
        ),
    )


def find_plans(state: NodeState, request: Request) -> Sequence[PoolPlan] | Infeasible:
    """Return how each pool could serve the request on an idle node, or why none ever can."""
    if not request.parts:
        candidates = dispatch.find_candidates(state, replace(request, exclusive=False))
        if isinstance(candidates, Infeasible):
            return candidates
        return [
            PoolPlan(
                frozenset(
                    state.gpus[pool.tree.members[gpu]].uuid
                    for gpu in bits(pool.usable)
                    if pool.slices >= need.most
                ),
                (*[need.slices + 1] * need.larger, *[need.slices] * (need.gpus - need.larger))
                + ((need.tail,) if need.tail else ()),
            )
            for pool, need in candidates
        ]
    sentence = _part_problem(request)
    if sentence:
        return Infeasible(Reason.INVALID, sentence)
    sizes = tuple(sorted(request.parts, reverse=True))
    pools = [
        (pool.slices, gpus)
        for pool in state.pools()
        if (gpus := frozenset(uuid for p in pool.members if _allowed(uuid := state.gpus[p].uuid, request)))
    ]
    if not pools:
        return Infeasible(Reason.NO_MATCHING_GPU, "none of the GPUs that the request allows is on this node")
    large = [(slices, gpus) for slices, gpus in pools if slices >= sizes[0]]
    if not large:
        return Infeasible(
            Reason.EXCEEDS_GPU,
            f"{sizes[0]} slices of one GPU asked for, but the largest matching GPU has "
            f"{max(slices for slices, _ in pools)}; ask for less per GPU or spread over more GPUs",
        )
    plans = [PoolPlan(gpus, sizes) for _, gpus in large if len(gpus) >= len(sizes)]
    if not plans:
        return Infeasible(
            Reason.EXCEEDS_NODE,
            f"{len(sizes)} GPUs of one model asked for, but this node has at most "
            f"{max(len(gpus) for _, gpus in large)} that match; ask for fewer GPUs",
        )
    return plans


def _part_problem(request: Request) -> str | None:
    if min(request.parts) < 1:
        return "a part of less than 1 slice asked for; ask for 1 or more on each GPU"
    if request.whole_first:
        return "sizes for each GPU leave nothing to divide; leave whole GPUs first out"
    if request.gpus is not None and request.gpus != len(request.parts):
        return f"{len(request.parts)} sizes for {request.gpus} GPUs; say one size per GPU"
    if request.total is not None and request.total != sum(request.parts):
        return f"the sizes add up to {sum(request.parts)} slices, and {request.total} are asked for; make both the same"
    return problem(replace(request, gpus=None, total=None, parts=()))


def _allowed(uuid: str, request: Request) -> bool:
    return not request.only or uuid in request.only


def _whole(plan: PoolPlan, request: Request) -> Request:
    return Request(gpus=len(plan.sizes), only=plan.only)


def _shared_out(whole: Placement, sizes: Sequence[int], cores: int) -> Placement:
    """Whole GPUs, of which only so much is taken, with the compute that is asked for: its pod may use the rest, too."""
    return Placement(
        tuple(
            share if size >= share.slices else Share(share.gpu, size, cores)
            for share, size in zip(whole.shares, sizes, strict=True)
        )
    )


def _part(size: int, gpus: frozenset[str], request: Request) -> Request:
    return Request(gpus=1, slices=size, only=gpus, cores=request.cores)


def _one_by_one(state: NodeState, plan: PoolPlan, request: Request, policy: Policy) -> Placement | None:
    left, shares = plan.only, list[Share]()
    for size in plan.sizes:
        placement = dispatch.place(state, _part(size, left, request), policy) if left else None
        if not isinstance(placement, Placement):
            return None
        shares += placement.shares
        left -= frozenset(placement.uuids)
    return _in_order(state, shares)


def _wait(state: NodeState, plan: PoolPlan, request: Request, policy: Policy) -> Waiting:
    if request.exclusive:
        whole = waiting.place_waiting(state, _whole(plan, request), policy)
        if isinstance(whole, Infeasible):  # the plan has enough GPUs
            raise AssertionError(whole.detail)
        return Waiting(_shared_out(whole.placement, plan.sizes, request.cores), whole.missing)
    left, shares, missing = plan.only, list[Share](), list[Missing]()
    for size in plan.sizes:
        placement = waiting.place_waiting(state, _part(size, left, request), policy)
        if isinstance(placement, Infeasible):
            raise AssertionError(placement.detail)
        shares += placement.placement.shares
        missing += placement.missing
        left -= frozenset(placement.placement.uuids)
    return Waiting(_in_order(state, shares), tuple(missing))


def _in_order(state: NodeState, shares: Sequence[Share]) -> Placement:
    return Placement(tuple(sorted(shares, key=lambda share: state.position(share.gpu))))
