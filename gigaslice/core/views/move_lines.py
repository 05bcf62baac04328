# SPDX-License-Identifier: Apache-2.0
"""Plans that free GPUs, as sentences that say what to type. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gigaslice.core.cluster.defragment import FreeingPlan
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Pod, Share
from gigaslice.core.text import plain
from gigaslice.core.units import format_bytes
from gigaslice.core.views.svg import short_model

__all__ = ["move_lines"]


def move_lines(state: ClusterState, plans: Sequence[FreeingPlan], pods: Mapping[str, Pod]) -> list[str]:
    """One sentence for each plan: "GPU3 of node-a (L4): cordon it, restart team/job-3 (4 GiB, to GPU1 of node-b) …"."""
    return [_line(state, plan, pods) for plan in plans]


def _line(state: ClusterState, plan: FreeingPlan, pods: Mapping[str, Pod]) -> str:
    freed = [
        gpu_holders.gpu.gpu
        for gpu_holders in state.holders(plan.node)
        if gpu_holders.gpu.gpu.uuid in plan.gpus
    ]
    names = " and ".join(f"GPU{gpu.index}" for gpu in freed)
    models = ", ".join(dict.fromkeys(short_model(gpu.model) for gpu in freed))
    it = "it" if len(freed) == 1 else "them"
    moves = ", then ".join(
        f"{pods.get(move.pod.name, move.pod.name)} ({format_bytes(move.size)}, "
        f"to {_where(state, move.node, move.shares)})"
        for move in plan.moves
    )
    return plain(f"{names} of {plan.node} ({models}): cordon {it}, restart {moves}, uncordon {it}")


def _where(state: ClusterState, node: str, shares: Sequence[Share]) -> str:
    uuids = {share.gpu for share in shares}
    gpus = [
        f"GPU{gpu_holders.gpu.gpu.index}"
        for gpu_holders in state.holders(node)
        if gpu_holders.gpu.gpu.uuid in uuids
    ]
    return f"{' and '.join(gpus)} of {node}"
