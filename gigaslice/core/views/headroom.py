# SPDX-License-Identifier: Apache-2.0
"""What could still be placed, in one sentence: the first thing to know of a cluster. Pure.

A percentage of free memory says nothing on a full cluster: what matters is whether a whole GPU is left, and how large a
part of one GPU is. Only nodes that take pods count; what is free elsewhere is said apart.
"""

from __future__ import annotations

from gigaslice.core.text import plural
from gigaslice.core.units import format_bytes
from gigaslice.core.views.cluster_picture import ClusterPicture, Sums, sum_up
from gigaslice.core.views.svg import models

__all__ = ["headline", "held_share"]


def headline(view: ClusterPicture) -> str:
    """What a pod could get now."""
    if not any(node.gpus for node in view.nodes):
        return "No node reports a GPU."
    open_gpus = [gpu for node in view.nodes if node.takes_pods for gpu in node.gpus]
    sums = sum_up(open_gpus)
    whole = [gpu.model for gpu in open_gpus if not gpu.holders and not gpu.unhealthy]
    if whole:
        verb = "is" if len(whole) == 1 else "are"
        text = f"{plural(len(whole), 'whole GPU')} {verb} free ({models(sorted(whole))})."
        if sums.largest_partly_bytes:
            text += f" Beside other pods, up to {format_bytes(sums.largest_partly_bytes)} fit on one GPU."
    elif sums.largest_partly_bytes:
        pieces = sum(gpu.free > 0 for gpu in open_gpus)
        text = (
            f"No whole GPU is free. A pod still gets up to {format_bytes(sums.largest_partly_bytes)} on one GPU; "
            f"{format_bytes(sums.free_partly_bytes)} in all are free, on {plural(pieces, 'GPU')}."
        )
    else:
        text = "Nothing is free on any node that takes pods."
    closed = view.sums().free_bytes - sums.free_bytes
    return text + (f" {format_bytes(closed)} more are free on nodes that take no pods now." if closed else "")


def held_share(sums: Sums) -> str:
    """The part of all memory that pods hold. It is 100 % only where all is held, and 0 % only where none is."""
    share = sums.held_bytes / sums.total_bytes if sums.total_bytes else 0.0
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return f"{min(0.999, max(0.001, share)):.1%}" if not 0.01 <= share < 0.99 else f"{share:.0%}"
