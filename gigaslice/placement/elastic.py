"""Elastic quota (Gaia Scheduler, "limits strictly, or lets a job grow while it is alone"): limits and the start gate.

Accounting always uses what was requested, so a burst never blocks anybody's admission; only the limit that a
job's processes see moves. When a neighbour arrives the limit falls back to the request at once, and the
neighbour may start as soon as its own request is physically free. How the excess is pushed out, and when
patience ends, is not decided here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gigaslice.errors import UnknownGpuError
from gigaslice.model import NodeState, Occupant, Share
from gigaslice.placement.pending import Missing


@dataclass(frozen=True, slots=True)
class Limit:
    """What a job may use of one GPU now. cores: per cent of its compute, 0 = unlimited."""

    gpu: str
    slices: int
    memory_bytes: int
    cores: int


def limit_slices(
    requested: int, gpu_slices: int, *, alone: bool, elastic: bool, max_slices: int | None = None
) -> int:
    """Return the slices a job may use of one GPU: its request, or up to the GPU while elastic and alone on it."""
    if not (elastic and alone):
        return requested
    return max(requested, min(gpu_slices if max_slices is None else max_slices, gpu_slices))


def elastic_limits(state: NodeState) -> dict[str, tuple[Limit, ...]]:
    """Return the limits of every job on every GPU it holds; GPUs that have vanished are left out."""
    holders = {gpu.uuid: jobs for gpu, jobs in zip(state.gpus, state.usage().holders, strict=True)}
    return {
        occupant.job: tuple(
            _limit(state, occupant, share, alone=len(holders[share.gpu]) == 1)
            for share in occupant.shares
            if share.gpu in holders
        )
        for occupant in state.occupants
    }


def _limit(state: NodeState, occupant: Occupant, share: Share, *, alone: bool) -> Limit:
    gpu = state.gpu(share.gpu)
    slices = limit_slices(
        share.slices, gpu.slices, alone=alone, elastic=occupant.elastic, max_slices=occupant.max_slices
    )
    cores = 0 if occupant.elastic and alone else share.cores
    return Limit(share.gpu, slices, gpu.bytes_of(slices), cores)


def start_shortfall(state: NodeState, job: str, others_bytes: Mapping[str, int]) -> tuple[Missing, ...]:
    """Return what is still missing before a job may start: nothing means go.

    others_bytes: by GPU, the bytes that everything else on it uses now, as measured (0 for a GPU not named).
    An unhealthy GPU is always missing; one that has vanished lacks the whole share. UnknownJobError.
    """
    lacks = [
        _shortfall(state, share, others_bytes.get(share.gpu, 0)) for share in state.allocation(job).shares
    ]
    return tuple(lack for lack in lacks if lack is not None)


def _shortfall(state: NodeState, share: Share, others: int) -> Missing | None:
    try:
        gpu = state.gpu(share.gpu)
    except UnknownGpuError:
        return Missing(share.gpu, share.slices, 0, unhealthy=True)
    lacking = max(0, gpu.bytes_of(share.slices) + others - gpu.bytes_of(gpu.slices))
    if not lacking and gpu.healthy:
        return None
    return Missing(share.gpu, -(-lacking // gpu.slice_bytes), lacking, unhealthy=not gpu.healthy)
