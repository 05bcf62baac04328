# SPDX-License-Identifier: Apache-2.0
"""The page's nodes: a card for each, whose GPUs flow into as many rows as the window needs, and a legend. Pure.

Near GPUs stand in a frame with the name of their link. A list of boxes wraps where a drawing of the whole node would
have to be scrolled; `gigaslice nodes --format svg` draws nodes as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gigaslice.core.units import format_bytes
from gigaslice.core.views.cluster_picture import GpuView, LinkGroup, NodeView, sum_up
from gigaslice.core.views.html import swatch, table, text
from gigaslice.core.views.page_sums import NOT_MEASURED
from gigaslice.core.views.svg import USED, colour, gpu_svg, models

__all__ = ["link_meaning", "node_card", "node_legend", "node_text"]

_MOST_COLOURS = 24  # of namespaces, in the legend
_LINKS = {
    "PSB": "on one board",
    "PIX": "behind one PCIe switch",
    "PXB": "with several PCIe switches between them",
    "PHB": "at one host bridge of a CPU",
    "NODE": "in one NUMA node",
    "SYS": "in different NUMA nodes",
}
"""What the names of `nvidia-smi topo -m` mean, the nearest first."""
_NVLINK = "NVL+"


def node_text(node: NodeView) -> str:
    """What the filter looks for on a node, in small letters."""
    words = [node.name, *node.conditions]
    for gpu in node.gpus:
        words += [gpu.model, gpu.uuid, gpu.unhealthy, *map(str, gpu.holders)]
    return " ".join(dict.fromkeys(words)).lower()


def node_legend(nodes: Sequence[NodeView]) -> str:
    """What the colours, the dark strip and the names of links on NODES mean."""
    holders = [holder for node in nodes for gpu in node.gpus for holder in gpu.holders]
    spaces = sorted({holder.namespace for holder in holders if holder.namespace})
    measured = any(holder.used_bytes is not None for holder in holders)
    rows = [
        ("Box", "one GPU: as wide as a pod's colour is, as much of it does the pod hold"),
        (
            "Colour",
            "".join(
                f"<span>{swatch(colour(space, ''))}{text(space)} </span>" for space in spaces[:_MOST_COLOURS]
            )
            + (f"and {len(spaces) - _MOST_COLOURS} more; " if len(spaces) > _MOST_COLOURS else "")
            + "each namespace has one, its pods have shades of it; where two have the same, names tell them apart",
        ),
        (
            "Dark strip",
            f"{swatch('none', USED)}what the pod uses of it now"
            + (
                ""
                if measured
                else f" ({NOT_MEASURED} here: the controller's setting page-usage is off, or no agent answers)"
            ),
        ),
        ("Hatched", f"{swatch('url(#unhealthy)')}unhealthy: gets no containers"),
        *((text(kind), text(link_meaning(kind))) for kind in _kinds(nodes)),
    ]
    items = "".join(f"<div><dt>{name}</dt><dd>{meaning}</dd></div>" for name, meaning in rows)
    return f'<details id="legend"><summary>What colours and names mean</summary><dl>{items}</dl></details>'


def link_meaning(kind: str) -> str:
    """The meaning of a link's name such as "PIX" or "NVL+NODE"."""
    nearness = _LINKS.get(kind.removeprefix(_NVLINK), "near each other")
    return f"GPUs joined by NVLink, {nearness}" if kind.startswith(_NVLINK) else f"GPUs {nearness}"


def node_card(node: NodeView) -> str:
    """One node: title, GPUs, links, and all of it as a table."""
    conditions = f' <span class="warn">{text(", ".join(node.conditions))}</span>' if node.conditions else ""
    kinds = text(models(gpu.model for gpu in node.gpus))
    title = f'<h3>{text(node.name)} <span class="dim">{kinds}</span>{conditions}</h3>'
    body = _amounts(node) + _gpus(node) + _table(node) if node.gpus else ""
    return f'<article data-text="{text(node_text(node))}">{title}{body}</article>'


def _amounts(node: NodeView) -> str:
    sums = sum_up(node.gpus)
    used = f"{format_bytes(sums.used_bytes)} in use" if sums.measured_bytes else f"use {NOT_MEASURED}"
    words = f"{format_bytes(sums.held_bytes)} of {format_bytes(sums.total_bytes)} held"
    return f'<p class="dim">{words}{f", {used}" if sums.held_bytes else ""}</p>'


def _gpus(node: NodeView) -> str:
    mixed = len({gpu.model for gpu in node.gpus}) > 1
    framed = list(_frames(node))
    pieces, after = list[str](), 0
    for group in framed:
        pieces += [_box(gpu, named=mixed) for gpu in node.gpus[after : group.gpus[0]]]
        inside = "".join(_box(node.gpus[gpu], named=mixed) for gpu in group.gpus)
        label = text(f"{group.kind}: {link_meaning(group.kind)}")
        pieces.append(
            f'<li class="near"><span class="dim" title="{label}">{text(group.kind)}</span>'
            f'<ul class="gpus" aria-label="{label}">{inside}</ul></li>'
        )
        after = group.gpus[-1] + 1
    pieces += [_box(gpu, named=mixed) for gpu in node.gpus[after:]]
    others = "; ".join(f"{group.kind}: {_named(node, group)}" for group in node.links if group not in framed)
    more = f'<p class="dim">{text(others)}</p>' if others else ""
    return f'<ul class="gpus" aria-label="GPUs of {text(node.name)}">{"".join(pieces)}</ul>{more}'


def _box(gpu: GpuView, *, named: bool) -> str:
    return f"<li>{gpu_svg(gpu, named=named)}</li>"


def _frames(node: NodeView) -> Iterator[LinkGroup]:
    """The smallest groups of neighbours, none of which has a GPU of another, from left to right."""
    taken = set[int]()
    frames = list[LinkGroup]()
    for group in sorted(node.links, key=lambda links: (len(links.gpus), links.gpus)):
        if len(group.gpus) == group.gpus[-1] - group.gpus[0] + 1 and not taken & set(group.gpus):
            taken |= set(group.gpus)
            frames.append(group)
    yield from sorted(frames, key=lambda links: links.gpus)


def _named(node: NodeView, group: LinkGroup) -> str:
    numbers = [node.gpus[position].index for position in group.gpus]
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"GPU{numbers[0]} to GPU{numbers[-1]}"
    return " and ".join(f"GPU{number}" for number in numbers)


def _kinds(nodes: Sequence[NodeView]) -> list[str]:
    """The names of links on NODES, the nearest first."""
    order = list(_LINKS)
    kinds = {group.kind for node in nodes for group in node.links}

    def nearness(kind: str) -> tuple[bool, int, str]:
        name = kind.removeprefix(_NVLINK)
        return name == kind, order.index(name) if name in order else len(order), kind

    return sorted(kinds, key=nearness)


def _table(node: NodeView) -> str:
    rows = (
        f'<tr><th scope="row">GPU{gpu.index}</th><td>{text(gpu.model)}</td>'
        f"<td class=n>{format_bytes(gpu.free * gpu.slice_bytes)}</td><td>{_held_by(gpu)}</td>"
        f"<td>{text(gpu.unhealthy or 'healthy')}</td></tr>"
        for gpu in node.gpus
    )
    body = table(f"GPUs of {node.name}", ("GPU", "Model", ">Free", "Held by", "Health"), rows)
    return f'<details id="{text(f"node-{node.name}")}"><summary>As a table</summary>{body}</details>'


def _held_by(gpu: GpuView) -> str:
    parts = []
    for holder in gpu.holders:
        used = NOT_MEASURED if holder.used_bytes is None else f"{format_bytes(holder.used_bytes)} in use"
        parts.append(f"{holder} {format_bytes(holder.slices * gpu.slice_bytes)} ({used})")
    return "<br>".join(map(text, parts)) or "-"
