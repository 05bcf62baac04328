# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 of the Gaia Scheduler paper: from a request to the algorithm that places it, or to a reason.

Reasons are looked for in a fixed order, so the same request always gets the same one: senseless; no GPU, or none of
those it allows; more than any GPU has; more GPUs than any pool has; no room now. Only the last can change by
waiting. Nothing here changes the node: record the answer with `NodeState.with_occupant`.
"""

from collections.abc import Sequence
from itertools import groupby

from gigaslice.core.model import CORES_PER_GPU, Infeasible, NodeState, Placement, Reason, Request, Share
from gigaslice.core.placement import noninteger
from gigaslice.core.placement.policy import RULES, Policy, PolicyRule
from gigaslice.core.placement.pool_state import PoolState, set_up
from gigaslice.core.placement.sizing import Need, problem, size
from gigaslice.core.placement.tree import bits

Candidates = Sequence[tuple[PoolState, Need]]
"""The pools that could ever serve a request, and what it needs of each: the fewest GPUs first, then in pool order."""


def place(state: NodeState, request: Request, policy: Policy = Policy.GAIA) -> Placement | Infeasible:
    """Return where to place a request on this node, or why it cannot be placed.

    Deterministic: equal states and requests get equal answers. A pool of which more GPUs are needed is only taken
    where none with fewer has room now. A request for part of a GPU tries the fragments of all those pools before it
    opens a GPU; several GPUs always come from one pool, the first that has them.
    """
    candidates = find_candidates(state, request)
    if isinstance(candidates, Infeasible):
        return candidates
    for gpus, alike in groupby(candidates, key=lambda candidate: candidate[1].all_gpus):
        choose = _place_one if gpus == 1 else _place_several
        placement = choose(state, list(alike), request, RULES[policy])
        if placement is not None:
            return placement
    return no_room(state, candidates, request)


def find_candidates(state: NodeState, request: Request) -> Candidates | Infeasible:
    """Return the pools that could serve a request on an idle node, or the reason why none ever can."""
    sentence = problem(request)
    if sentence:
        return Infeasible(Reason.INVALID, sentence)
    pool_states = set_up(state, request)
    if not pool_states:
        return Infeasible(Reason.NO_MATCHING_MODEL, "no GPU on this node; it has no GPU at all")
    pool_states = tuple(pool_state for pool_state in pool_states if pool_state.usable)
    if not pool_states:
        return Infeasible(
            Reason.NO_MATCHING_GPU,
            "none of the GPUs that the request allows is on this node; check the UUIDs",
        )
    sized = [
        (pool_state, size(request, pool_state.slices)) for pool_state in pool_states if pool_state.slices
    ]
    on_gpu = [(pool_state, need) for pool_state, need in sized if need.most <= pool_state.slices]
    if not on_gpu:
        largest = max(pool_state.slices for pool_state in pool_states)
        most = min((need.most for _, need in sized), default=1)
        return Infeasible(
            Reason.EXCEEDS_GPU,
            f"{most} slices of one GPU asked for, but the largest matching GPU has {largest}; "
            "ask for less per GPU or spread over more GPUs",
        )
    candidates = [
        (pool_state, need) for pool_state, need in on_gpu if need.all_gpus <= pool_state.usable.bit_count()
    ]
    if not candidates:
        fewest = min(need.all_gpus for _, need in on_gpu)
        have_most = max(pool_state.usable.bit_count() for pool_state, _ in on_gpu)
        return Infeasible(
            Reason.EXCEEDS_NODE,
            f"{fewest} GPUs of one model asked for, but this node has at most {have_most} that match; "
            "ask for fewer GPUs",
        )
    return sorted(candidates, key=lambda pool: pool[1].all_gpus)


def _place_one(
    state: NodeState, candidates: Candidates, request: Request, rule: PolicyRule
) -> Placement | None:
    chosen = rule.one([(pool_state, need.slices) for pool_state, need in candidates], request.cores)
    if chosen is None:
        return None
    pool_state, gpu = chosen
    need = next(need for pool, need in candidates if pool is pool_state)
    return make_placement(state, pool_state, {gpu: need.slices}, request.cores)


def _place_several(
    state: NodeState, candidates: Candidates, request: Request, rule: PolicyRule
) -> Placement | None:
    for pool_state, need in candidates:
        if need.tail:
            extra = noninteger.choose(pool_state, need.gpus, need.tail, request.cores)
            if extra is not None:
                whole = dict.fromkeys(bits(extra[0]), pool_state.slices)
                return make_placement(state, pool_state, whole | {extra[1]: need.tail}, request.cores)
            continue
        choosable, roomy = _choosable(pool_state, need, request.cores)
        gpus = rule.several(state.topology, pool_state, choosable, need.gpus)
        if gpus is not None:
            larger = bits(gpus & roomy)[: need.larger]
            parts = {gpu: need.slices + (gpu in larger) for gpu in bits(gpus)}
            return make_placement(state, pool_state, parts, request.cores)
    return None


def _choosable(pool_state: PoolState, need: Need, cores: int) -> tuple[int, int]:
    """Return the GPUs that may be chosen, and those of them that can give one slice more.

    GPUs that cannot are let in only as far as any choice still has enough that can, cheapest first.
    """
    fitting = pool_state.fitting(need.slices, cores)
    if not need.larger:
        return fitting, 0
    roomy = pool_state.fitting(need.most, cores)
    if roomy.bit_count() < need.larger:
        return 0, 0
    tight = sorted(bits(fitting & ~roomy), key=lambda gpu: (pool_state.tree.access_cost[gpu], gpu))
    return roomy | sum(1 << gpu for gpu in tight[: need.gpus - need.larger]), roomy


def make_placement(state: NodeState, pool_state: PoolState, parts: dict[int, int], cores: int) -> Placement:
    """Return the placement of so many slices on each GPU of a pool; a whole GPU comes with all its compute."""
    shares = []
    for gpu in sorted(parts):
        whole = parts[gpu] == pool_state.slices
        uuid = state.gpus[pool_state.tree.members[gpu]].uuid
        shares.append(Share(uuid, parts[gpu], CORES_PER_GPU if whole else cores))
    return Placement(tuple(shares))


def no_room(state: NodeState, candidates: Candidates, request: Request) -> Infeasible:
    """Return the answer to a request that would fit on this node if it were idle."""
    needed = " or ".join(dict.fromkeys(str(need) for _, need in candidates))
    share = f" with {request.cores}% compute each" if request.cores else ""
    left = ", ".join(
        _left(state, pool_state, gpu, request)
        for pool_state, _ in candidates
        for gpu in bits(pool_state.usable)
    )
    return Infeasible(
        Reason.INSUFFICIENT_NOW, f"no room now for {needed}{share}; free: {left}; waits for other pods to end"
    )


def _left(state: NodeState, pool_state: PoolState, gpu: int, request: Request) -> str:
    name = f"GPU{state.gpus[pool_state.tree.members[gpu]].index}"
    if pool_state.unhealthy >> gpu & 1:
        return f"{name} unhealthy"
    cores = f" ({pool_state.free_cores[gpu]}%)" if request.cores else ""
    return f"{name} {pool_state.free[gpu]} of {pool_state.slices}{cores}"
