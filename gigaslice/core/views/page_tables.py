# SPDX-License-Identifier: Apache-2.0
"""The page's tables: pods that wait, who holds what, classes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gigaslice.core.text import plural
from gigaslice.core.units import format_bytes
from gigaslice.core.views.ages import age
from gigaslice.core.views.cluster_picture import ClassView, WaitingPodView
from gigaslice.core.views.html import swatch, table, text
from gigaslice.core.views.page_sums import NOT_MEASURED
from gigaslice.core.views.svg import colour
from gigaslice.core.views.totals import NamespaceTotals, PodTotals

__all__ = ["classes_table", "space_text", "totals_table", "waiting_table"]

_ROWS = 200  # of pods


def waiting_table(pods: Sequence[WaitingPodView], now: float) -> str:
    """Pods without GPUs, each with the reason on its line."""
    if not pods:
        return '<p class="dim">None.</p>'
    rows = (_waiting_row(pod, now) for pod in pods[:_ROWS])
    more = f'<p class="dim">and {len(pods) - _ROWS} more</p>' if len(pods) > _ROWS else ""
    return table("Waiting pods", ("Pod", "Asks for", "Waits", "Why"), rows) + more


def _waiting_row(pod: WaitingPodView, now: float) -> str:
    """The nearest node's reason and what helps most stand on the line; the rest is opened."""
    reason, *others = pod.details or (pod.why,)
    helps = [f"would help: {suggestion}" for suggestion in pod.suggestions]
    if len(pod.details) > 1:
        reason = f"{reason} (the nearest of {len(pod.details)} kinds of nodes)"
    why = text(reason) + (f"<br>{text(helps[0])}" if helps else "")
    lines = [*others, *helps[1:]]
    if lines:
        items = "".join(f"<li>{text(line)}</li>" for line in lines)
        why += f'<details id="{text(f"why-{pod}")}"><summary>{len(lines)} more</summary><ul>{items}</ul></details>'
    waits = age(pod.since, now)
    since = (
        f'<time datetime="{text(pod.since)}" title="since {text(pod.since)}">{waits}</time>' if waits else "-"
    )
    words = text(f"{pod} {pod.asks} {pod.why}".lower())
    return (
        f'<tr data-text="{words}"><th scope="row">{text(str(pod))}</th><td>{text(pod.asks)}</td><td>{since}</td>'
        f"<td>{why}</td></tr>"
    )


def space_text(space: NamespaceTotals) -> str:
    """What the filter looks for on a namespace, in small letters."""
    return " ".join([space.namespace, *(f"{pod.pod} {pod.node}" for pod in space.pods)]).lower()


def totals_table(spaces: Sequence[NamespaceTotals]) -> str:
    """What namespaces and their pods hold and use, the largest first."""
    if not spaces:
        return '<p class="dim">No pod holds any.</p>'
    heads = ("Namespace", ">Pods", ">Held", ">In use", ">GPUs")
    return table("What namespaces hold and use", heads, map(_space_row, spaces))


def _space_row(space: NamespaceTotals) -> str:
    name = space.namespace or "(pods that the cluster does not list)"
    pods = "".join(
        f"<li>{swatch(colour(space.namespace, pod.pod))}{text(_pod_total(pod))}</li>"
        for pod in space.pods[:_ROWS]
    )
    opened = f'<details id="{text(f"held-{space.namespace}")}"><summary>{text(name)}</summary><ul>{pods}</ul></details>'
    return (
        f'<tr data-text="{text(space_text(space))}"><th scope="row">{opened}</th><td class=n>{len(space.pods)}</td>'
        f"<td class=n>{format_bytes(space.size)}</td><td class=n>{_used(space.used)}</td>"
        f"<td class=n>{space.gpus}</td></tr>"
    )


def _used(size: int | None) -> str:
    return NOT_MEASURED if size is None else format_bytes(size)


def _pod_total(pod: PodTotals) -> str:
    used = NOT_MEASURED if pod.used is None else f"{format_bytes(pod.used)} in use"
    return f"{pod.pod} on {pod.node}: {format_bytes(pod.size)}, {used}, {plural(pod.gpus, 'GPU')}"


def classes_table(classes: Sequence[ClassView]) -> str:
    """Classes of GPUs, and how many there are."""
    if not classes:
        return '<p class="dim">None.</p>'
    rows = (
        f'<tr><th scope="row">{text(row.name)}</th><td>{text(row.selects)}</td><td class=n>{row.devices}</td>'
        f'<td class=n>{row.free}</td><td class=n>{row.nodes}</td><td class="warn">{text(row.problem)}</td></tr>'
        for row in classes
    )
    return table("Classes of GPUs", ("Class", "Selects", ">GPUs", ">Free", ">Nodes", "Problem"), rows)
