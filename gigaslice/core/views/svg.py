# SPDX-License-Identifier: Apache-2.0
"""The cluster as a picture: a panel for each node, a box for each GPU, its slices coloured by the pods that hold them.

Equal clusters give equal pictures. A namespace has one hue wherever and whenever it is drawn, and its pods differ in
lightness. Nothing is told by colour alone: every box has its numbers in words, unhealthy GPUs are hatched, and titles
name the pods. A picture needs nothing from outside and runs nothing; names of others are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gigaslice.core.text import plain, plural
from gigaslice.core.units import format_bytes
from gigaslice.core.views.cluster_picture import (
    ClusterPicture,
    GpuView,
    HolderView,
    LinkGroup,
    NodeView,
    Sums,
)

__all__ = [
    "PARTS",
    "PATTERN",
    "USED",
    "cluster_svg",
    "colour",
    "gpu_svg",
    "memory_svg",
    "models",
    "short_model",
    "summary",
]

_PER_ROW = 8  # GPUs side by side
_BOX, _HIGH, _GAP, _APART = 104, 40, 8, 10  # pixels: of a GPU, between GPUs, and between NUMA nodes
_HEAD, _LINKS, _PAD = 26, 18, 10
_LETTER = 6.2  # of the small font, about
_HUES = (210, 25, 130, 285, 50, 175, 340, 90, 240, 5, 155, 310)

PATTERN = (
    '<pattern id="unhealthy" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0 0V7" stroke="#c33" stroke-width="3"/></pattern>'
)
"""What unhealthy GPUs are filled with; once in a document that has pictures of nodes."""

PARTS = {
    "held by pods": "hsl(210 45% 55%)",
    "free on whole GPUs": "hsl(140 40% 62%)",
    "free beside other pods": "hsl(45 85% 65%)",
    "on unhealthy GPUs": "url(#unhealthy)",
}
"""What the parts of the bar are filled with."""
USED = 'fill="#000" fill-opacity="0.5"'
"""What lies over the part of a pod's memory that is in use."""

_STYLE = (
    "svg{color:#1b1f24;background:#fff;font:11px system-ui,sans-serif}"
    "@media(prefers-color-scheme:dark){svg{color:#e6e8eb;background:#16191d}}"
)


def colour(namespace: str, pod: str) -> str:
    """The colour of a pod: hue by its namespace, lightness by its name; dark letters can be read on it."""
    hue = _HUES[_mixed(namespace) % len(_HUES)]
    return f"hsl({hue} 65% {70 + _mixed(pod) % 5 * 4}%)"


def cluster_svg(view: ClusterPicture) -> str:
    """The whole cluster as one document: the bar of what is free, then the nodes by name."""
    sums, y = view.sums(), 0.0
    parts: list[str] = []
    widest = _width(_PER_ROW)
    for node in view.nodes:
        body, width, height = _node(node)
        parts.append(
            f'<g transform="translate(0 {_n(y + 60)})" role="group" aria-label="{_t(_node_title(node))}">'
        )
        parts += [body, "</g>"]
        widest, y = max(widest, width), y + height + 12
    bar = _bar(sums, widest - 2 * _PAD)
    height = y + 60
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(widest)}" height="{_n(height)}" '
            f'viewBox="0 0 {_n(widest)} {_n(height)}" role="img" aria-labelledby="title desc" color="#1b1f24">',
            f'<title id="title">GPUs of {plural(len(view.nodes), "node")}</title>',
            f'<desc id="desc">{_t(summary(sums))}</desc>',
            f"<defs>{PATTERN}</defs><style>{_STYLE}</style>",
            f'<text x="{_PAD}" y="18" font-size="13" fill="currentColor">{_t(summary(sums))}</text>',
            f'<g transform="translate({_PAD} 28)">{bar}</g>',
            *parts,
            "</svg>",
        ]
    )


def gpu_svg(gpu: GpuView, *, named: bool) -> str:
    """One GPU as a picture of its own, for a document that has `PATTERN` in it; named: with its model."""
    width, height = _BOX + 2, _HIGH + 28
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" font-size="11" '
        f'aria-label="{_t(_gpu_title(gpu))}">'
        f"{_gpu(gpu, 1, 1, named=named)}</svg>"
    )


def memory_svg(sums: Sums, width: int = 480) -> str:
    """The bar of what is held, free and unhealthy, as a picture of its own."""
    return (
        f'<svg width="{width}" height="14" viewBox="0 0 {width} 14" preserveAspectRatio="none" role="img">'
        f"<title>{_t(summary(sums))}</title>{_bar(sums, width)}</svg>"
    )


def summary(sums: Sums) -> str:
    """What the bar shows, in one line."""
    most = f", at most {format_bytes(sums.largest_partly_bytes)} on one" if sums.largest_partly_bytes else ""
    text = (
        f"{plural(sums.gpus, 'GPU')}: {format_bytes(sums.held_bytes)} held, {format_bytes(sums.free_whole_bytes)} "
        f"free on {plural(sums.whole, 'whole GPU')}, {format_bytes(sums.free_partly_bytes)} free on "
        f"{plural(sums.partly_used, 'partly used GPU')}{most}"
    )
    return text + (f", {plural(sums.unhealthy, 'unhealthy GPU')}" if sums.unhealthy else "")


def _bar(sums: Sums, width: float) -> str:
    total = max(1, sums.total_bytes)
    sizes = (sums.held_bytes, sums.free_whole_bytes, sums.free_partly_bytes, sums.unhealthy_bytes)
    parts, x = [], 0.0
    for (what, fill), size in zip(PARTS.items(), sizes, strict=True):
        wide = width * size / total
        if size:
            parts.append(
                f'<rect x="{_n(x)}" y="0" width="{_n(wide)}" height="14" fill="{fill}">'
                f"<title>{what}: {format_bytes(size)}</title></rect>"
            )
        x += wide
    if sums.measured_bytes:
        used = min(sums.used_bytes, sums.held_bytes)
        parts.append(
            f'<rect x="0" y="9" width="{_n(width * used / total)}" height="5" {USED}>'
            f"<title>in use: {format_bytes(sums.used_bytes)}</title></rect>"
        )
    frame = (
        f'<rect x="0.5" y="0.5" width="{_n(width - 1)}" height="13" fill="none" stroke="currentColor" '
        'opacity="0.5"/>'
    )
    return "".join([*parts, frame])


def _node(node: NodeView) -> tuple[str, float, float]:
    """Draws NODE at the origin; its shapes, width and height."""
    top = _HEAD
    places = _places(node.gpus)
    rows = max((row for _, row in places), default=-1) + 1
    brackets = _brackets(node, places)
    row_high = (
        _HIGH + 34 + (_LINKS * max(1, max((depth for *_, depth in brackets), default=0)) if brackets else 0)
    )
    width = max(max((x + _BOX for x, _ in places), default=_BOX) + 2 * _PAD, _width(_PER_ROW))
    height = top + rows * row_high + (_PAD if rows else 0) + 4
    parts = [
        f'<rect x="0.5" y="0.5" width="{_n(width - 1)}" height="{_n(height - 1)}" rx="6" fill="none" '
        'stroke="currentColor" opacity="0.3"/>'
        f'<text x="{_PAD}" y="18" font-weight="bold" fill="currentColor">{_t(_node_title(node))}</text>'
    ]
    mixed = len({gpu.model for gpu in node.gpus}) > 1
    for gpu, (x, row) in zip(node.gpus, places, strict=True):
        parts.append(_gpu(gpu, x + _PAD, top + row * row_high, named=mixed))
    for label, left, right, row, depth in brackets:
        parts.append(
            _bracket(
                label, left + _PAD, right + _PAD, top + row * row_high + _HIGH + 32 + (depth - 1) * _LINKS
            )
        )
    return "".join(parts), width, height


def _places(gpus: Sequence[GpuView]) -> list[tuple[float, int]]:
    """Where each GPU is: pixels from the left, and its row. NUMA nodes are set apart."""
    positions, x, row, beside = [], 0.0, 0, 0
    for number, gpu in enumerate(gpus):
        if beside == _PER_ROW:
            x, row, beside = 0.0, row + 1, 0
        elif number and beside and gpus[number - 1].numa != gpu.numa:
            x += _APART
        positions.append((x, row))
        x, beside = x + _BOX + _GAP, beside + 1
    return positions


def _brackets(
    node: NodeView, places: Sequence[tuple[float, int]]
) -> list[tuple[str, float, float, int, int]]:
    """Label, left, right, row and depth of the groups of GPUs that stand side by side; the nearest ones first."""
    brackets: list[tuple[str, float, float, int, int]] = []
    for group in sorted(node.links, key=lambda links: (len(links.gpus), links.gpus)):
        if not _side_by_side(group, places):
            continue
        row = places[group.gpus[0]][1]
        left, right = places[group.gpus[0]][0], places[group.gpus[-1]][0] + _BOX
        inside = [
            bracket
            for bracket in brackets
            if bracket[3] == row and bracket[1] >= left and bracket[2] <= right
        ]
        depth = 1 + max((bracket[4] for bracket in inside), default=0)
        if depth <= 2:
            brackets.append((group.kind, left, right, row, depth))
    return brackets


def _side_by_side(group: LinkGroup, places: Sequence[tuple[float, int]]) -> bool:
    first, last = group.gpus[0], group.gpus[-1]
    return len(group.gpus) == last - first + 1 and places[first][1] == places[last][1]


def _bracket(label: str, left: float, right: float, y: float) -> str:
    middle = (left + right) / 2
    return (
        f'<path d="M{_n(left + 4)} {_n(y)}v4H{_n(right - 4)}v-4" fill="none" stroke="currentColor" opacity="0.5"/>'
        f'<text x="{_n(middle)}" y="{_n(y + 15)}" text-anchor="middle" font-size="10" fill="currentColor" '
        f'opacity="0.8">{_t(label)}</text>'
    )


def _gpu(gpu: GpuView, x: float, y: float, *, named: bool) -> str:
    box = f'x="{_n(x)}" y="{_n(y)}" width="{_BOX}" height="{_HIGH}" rx="3"'
    parts = [
        f"<g><title>{_t(_gpu_title(gpu))}</title>",
        f'<rect {box} fill="currentColor" fill-opacity="0.06"/>',
    ]
    left = x
    for holder in gpu.holders:
        wide = min(_BOX * holder.slices / max(1, gpu.slices), x + _BOX - left)
        if wide <= 0:
            continue
        fill = colour(holder.namespace, holder.pod)
        parts.append(
            f'<rect x="{_n(left)}" y="{_n(y)}" width="{_n(wide)}" height="{_HIGH}" fill="{fill}" stroke="#fff" '
            f'stroke-width="0.5"><title>{_t(_holder_title(holder, gpu))}</title></rect>'
        )
        if holder.used_bytes is not None:
            part = min(1.0, holder.used_bytes / max(1, holder.slices * gpu.slice_bytes))
            parts.append(
                f'<rect x="{_n(left)}" y="{_n(y + _HIGH - 7)}" width="{_n(wide * part)}" height="7" {USED} '
                'pointer-events="none"/>'
            )
        letters = int((wide - 6) / _LETTER)
        if letters >= 4:
            parts.append(
                f'<text x="{_n(left + 3)}" y="{_n(y + _HIGH / 2 + 4)}" fill="#111" pointer-events="none">'
                f"{_t(_cut(holder.pod, letters))}</text>"
            )
        left += wide
    if gpu.unhealthy:
        parts.append(f'<rect {box} fill="url(#unhealthy)" fill-opacity="0.55"/>')
    parts.append(f'<rect {box} fill="none" stroke="{"#c33" if gpu.unhealthy else "currentColor"}"/>')
    free = _cut(gpu.unhealthy, 16) if gpu.unhealthy else f"{format_bytes(gpu.free * gpu.slice_bytes)} free"
    name = f"GPU{gpu.index} {_cut(short_model(gpu.model), 10)}" if named else f"GPU{gpu.index}"
    parts.append(
        f'<text x="{_n(x)}" y="{_n(y + _HIGH + 12)}" fill="currentColor">{_t(name)}</text>'
        f'<text x="{_n(x)}" y="{_n(y + _HIGH + 24)}" fill="currentColor" opacity="0.8">{_t(free)}</text></g>'
    )
    return "".join(parts)


def short_model(model: str) -> str:
    """The model without its vendor: "A100-SXM4-80GB"."""
    return model.removeprefix("NVIDIA ").removeprefix("Tesla ")


def models(gpus: Iterable[str]) -> str:
    """How many GPUs there are of each model, such as "4 × A100"."""
    names = [short_model(model) for model in gpus]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _node_title(node: NodeView) -> str:
    held = sum(min(gpu.used, gpu.slices) * gpu.slice_bytes for gpu in node.gpus)
    total = sum(gpu.slices * gpu.slice_bytes for gpu in node.gpus)
    words = [
        node.name,
        models(gpu.model for gpu in node.gpus),
        f"{format_bytes(held)} of {format_bytes(total)} held" if node.gpus else "",
        *node.conditions,
    ]
    return " · ".join(word for word in words if word)


def _gpu_title(gpu: GpuView) -> str:
    text = f"GPU{gpu.index} {gpu.model}, {gpu.uuid}: {gpu.free} of {plural(gpu.slices, 'slice')} free"
    text += f", {gpu.unhealthy}" if gpu.unhealthy else ""
    return text + "".join(f"; {_holder_title(holder, gpu)}" for holder in gpu.holders)


def _holder_title(holder: HolderView, gpu: GpuView) -> str:
    cores = f", {holder.cores}% of its compute" if holder.cores else ""
    used = "" if holder.used_bytes is None else f", {format_bytes(holder.used_bytes)} in use"
    return f"{holder}: {format_bytes(holder.slices * gpu.slice_bytes)}{cores}{used}"


def _width(gpus: int) -> float:
    return gpus * (_BOX + _GAP) - _GAP + _APART + 2 * _PAD


def _mixed(text: str) -> int:
    """A number that is the same in every process, unlike `hash` (FNV-1a)."""
    value = 0x811C9DC5
    for byte in text.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value ^ value >> 15


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(1, most - 1)] + "…"


def _t(text: str) -> str:
    return escape(plain(text))


def _n(number: float) -> str:
    """A coordinate in as few characters as are exact to a tenth of a pixel."""
    return f"{round(number, 1):g}"
