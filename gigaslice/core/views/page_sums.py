# SPDX-License-Identifier: Apache-2.0
"""The page's first part: the numbers of the whole cluster, its bar, and what the bar's colours mean. Pure."""

from __future__ import annotations

from gigaslice.core.text import plural
from gigaslice.core.units import format_bytes
from gigaslice.core.views.cluster_picture import ClusterPicture, Sums
from gigaslice.core.views.headroom import held_share
from gigaslice.core.views.html import swatch, text
from gigaslice.core.views.svg import PARTS, USED, memory_svg

__all__ = ["NOT_MEASURED", "sums_of"]

NOT_MEASURED = "not measured"


def sums_of(view: ClusterPicture) -> str:
    """Tiles, bar and legend."""
    sums = view.sums()
    tiles = (
        _tile(len(view.nodes), "node"),
        _tile(sums.gpus, "GPU"),
        (held_share(sums), f"held: {format_bytes(sums.held_bytes)} of {format_bytes(sums.total_bytes)}"),
        _used(sums),
        *([_tile(sums.unhealthy, "unhealthy GPU")] if sums.unhealthy else ()),
        _tile(len(view.waiting), "waiting pod"),
    )
    items = "".join(f"<li><b>{text(value)}</b> {text(name)}</li>" for value, name in tiles)
    return f'<ul class="sums">{items}</ul><div class="bar">{memory_svg(sums)}</div>{_legend(sums)}'


def _tile(count: int, what: str) -> tuple[str, str]:
    value, _, name = plural(count, what).partition(" ")
    return value, name


def _used(sums: Sums) -> tuple[str, str]:
    if not sums.measured_bytes:
        return NOT_MEASURED, "what pods use of that"
    part = (
        ""
        if sums.measured_bytes >= sums.held_bytes
        else f" (of {format_bytes(sums.measured_bytes)} measured)"
    )
    return format_bytes(sums.used_bytes), f"in use of what is held{part}"


def _legend(sums: Sums) -> str:
    sizes = (sums.held_bytes, sums.free_whole_bytes, sums.free_partly_bytes, sums.unhealthy_bytes)
    items = [
        f"<li>{swatch(fill)}{format_bytes(size)} {what}</li>"
        for (what, fill), size in zip(PARTS.items(), sizes, strict=True)
        if size or fill != PARTS["on unhealthy GPUs"]
    ]
    if sums.measured_bytes:
        items.insert(
            1, f"<li>{swatch(PARTS['held by pods'], USED)}{format_bytes(sums.used_bytes)} in use</li>"
        )
    return f'<ul class="legend" aria-label="What the bar shows">{"".join(items)}</ul>'
