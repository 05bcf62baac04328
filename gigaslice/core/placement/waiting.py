# SPDX-License-Identifier: Apache-2.0
"""Where a request should wait when there is no room now: the GPUs that need the least to be given back.

The kubelet hands out device IDs by count alone, so a container can be admitted before its neighbours' memory
is free, and failing it then would be for good. It gets GPUs all the same, and its start is held back until
they have room (`gigaslice.core.allocation.start_decision`).
"""

from dataclasses import dataclass

from gigaslice.core.model import CORES_PER_GPU, Infeasible, NodeState, Placement, Request
from gigaslice.core.placement.dispatch import Candidates, find_candidates, make_placement, place
from gigaslice.core.placement.policy import Policy
from gigaslice.core.placement.pool_state import PoolState
from gigaslice.core.placement.sizing import Need
from gigaslice.core.placement.subset import Search, Weights, cheapest
from gigaslice.core.placement.tree import bits


@dataclass(frozen=True, slots=True)
class Missing:
    """What a GPU lacks: slices and their bytes, and compute share in per cent. unhealthy: it must recover first."""

    gpu: str
    slices: int
    bytes: int
    cores: int = 0
    unhealthy: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A placement, and what its GPUs lack before it can start; nothing if it can start at once."""

    placement: Placement
    missing: tuple[Missing, ...]


def place_waiting(state: NodeState, request: Request, policy: Policy = Policy.GAIA) -> Waiting | Infeasible:
    """Return where to place a request, over-committing GPUs as little as possible; or why it can never fit.

    Healthy GPUs come before unhealthy ones, then the fewest missing slices, then missing compute, then the fewest GPUs,
    then pool order and the usual order of links. Record the result with `with_occupant(…, overcommit=True)`: requests
    that already wait count as holders, so those after them queue where it is shortest.
    """
    now = place(state, request, policy)
    if isinstance(now, Placement):
        return Waiting(now, ())
    candidates = find_candidates(state, request)
    if isinstance(candidates, Infeasible):
        return candidates
    pool_state, parts = _least_missing(candidates, request.cores)
    placement = make_placement(state, pool_state, parts, request.cores)
    lacks = [_missing(state, pool_state, gpu, parts[gpu], request.cores) for gpu in sorted(parts)]
    return Waiting(placement, tuple(lack for lack in lacks if lack is not None))


def _least_missing(candidates: Candidates, cores: int) -> tuple[PoolState, dict[int, int]]:
    best: tuple[tuple[int, ...], PoolState, Need, int] | None = None
    for pool_state, need in candidates:
        weight = [_lack_weight(pool_state, gpu, need.most, cores) for gpu in range(len(pool_state.free))]
        after = pool_state.tree.access_cost if need.all_gpus == 1 else pool_state.opened_then_free()
        gpus = cheapest(
            Search(
                pool_state.tree, pool_state.whole, pool_state.usable, need.all_gpus, Weights(weight, after)
            )
        )
        if gpus is None:  # find_candidates leaves only pools with enough GPUs
            raise AssertionError(f"pool {pool_state.model} has fewer than {need.all_gpus} GPUs")
        lacks = [_lack(pool_state, gpu, need.most, cores) for gpu in bits(gpus)]
        unhealthy = (pool_state.unhealthy & gpus).bit_count()
        key = (unhealthy, *map(sum, zip(*lacks, strict=True)), need.all_gpus, pool_state.rank)
        if best is None or key < best[0]:
            best = (key, pool_state, need, gpus)
    if best is None:
        raise AssertionError("no pool to wait in")
    _, pool_state, need, gpus = best
    return pool_state, _split(pool_state, need, gpus)


def _split(pool_state: PoolState, need: Need, gpus: int) -> dict[int, int]:
    """Share a need out over chosen GPUs: the larger parts where most is left, the tail where least is."""
    emptiest_first = sorted(bits(gpus), key=lambda gpu: (pool_state.used[gpu], gpu))
    sizes = [need.slices + 1] * need.larger + [need.slices] * (need.gpus - need.larger)
    sizes += [need.tail] if need.tail else []
    return dict(zip(emptiest_first, sizes, strict=True))


def _lack(pool_state: PoolState, gpu: int, slices: int, cores: int) -> tuple[int, int]:
    needed_cores = CORES_PER_GPU if slices == pool_state.slices else cores
    lacking = pool_state.used[gpu] + slices - pool_state.slices
    return max(0, lacking), max(0, pool_state.used_cores[gpu] + needed_cores - CORES_PER_GPU)


def _lack_weight(pool_state: PoolState, gpu: int, slices: int, cores: int) -> int:
    """Return what a GPU lacks as a number for its pool: an unhealthy GPU outweighs all slices, a slice all compute."""
    lacking, lacking_cores = _lack(pool_state, gpu, slices, cores)
    compute_scale = 1 + sum(pool_state.used_cores) + CORES_PER_GPU * len(pool_state.free)
    slice_scale = 1 + sum(pool_state.used) + pool_state.slices * len(pool_state.free)
    unhealthy = pool_state.unhealthy >> gpu & 1
    return (unhealthy * slice_scale + lacking) * compute_scale + lacking_cores


def _missing(state: NodeState, pool_state: PoolState, member: int, slices: int, cores: int) -> Missing | None:
    gpu = state.gpus[pool_state.tree.members[member]]
    lacking, lacking_cores = _lack(pool_state, member, slices, cores)
    if not lacking and not lacking_cores and gpu.healthy:
        return None
    return Missing(gpu.uuid, lacking, gpu.bytes_of(lacking), lacking_cores, unhealthy=not gpu.healthy)
