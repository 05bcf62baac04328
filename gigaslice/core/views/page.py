"""The web page of the cluster: one document, made anew for every request, that only shows.

It works without its program: the filter is then a form, and every explanation can be opened by keyboard. The program
filters while one types and fetches the page again every few seconds. Of a large cluster the page shows a part, so that
a browser has no ten thousand pictures to draw; the filter is of the whole cluster where it is sent as a form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import urlencode

from gigaslice.core.text import plain, plural
from gigaslice.core.units import format_bytes
from gigaslice.core.views.cluster_picture import ClassView, ClusterPicture, NodeView, WaitingPodView
from gigaslice.core.views.page_assets import HEADERS, SCRIPT, STYLE
from gigaslice.core.views.svg import PATTERN, colour, fragmentation_svg, models, node_svg, summary
from gigaslice.core.views.totals import NamespaceTotals, PodTotals, totals

__all__ = ["HEADERS", "PageQuery", "render"]

_NODES, _ROWS = 100, 200  # on one page
_LONGEST = 200  # characters of a filter


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What part is shown. text: words that a node, or what is on it, must have. page: of the nodes, from 0."""

    text: str = ""
    page: int = 0

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> PageQuery:
        """Reads the query of an address. A value that makes no sense is ignored."""
        number = query.get("page", "")
        page = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 0
        return cls(" ".join(query.get("q", "").split())[:_LONGEST], page)


def render(view: ClusterPicture, query: PageQuery = PageQuery(), at: str = "") -> str:
    """The page as HTML; send it with `HEADERS`. at: when this was so, as text."""
    words = query.text.lower().split()
    nodes = [node for node in view.nodes if _has(words, node_text(node))]
    pages = max(1, -(-len(nodes) // _NODES))
    page = min(query.page, pages - 1)
    shown = nodes[page * _NODES : (page + 1) * _NODES]
    parts = [
        _note(view),
        _sums(view),
        _waiting([pod for pod in view.waiting if _has(words, f"{pod} {pod.why} {pod.asks}".lower())]),
        _moves(view.moves),
        _nodes(shown, len(nodes), len(view.nodes)),
        _pager(query, page, pages),
        _totals([namespace for namespace in totals(view) if _has(words, _space_text(namespace))]),
        _classes(view.classes),
    ]
    return _document(query, at, "\n".join(part for part in parts if part))


def _document(query: PageQuery, at: str, main: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>GPUs of the cluster</title><link rel="icon" href="data:,"><style>{STYLE}</style></head><body>
<a class="skip" href="#main">to the content</a>
<header><h1>GPUs of the cluster</h1>
<nav aria-label="parts of the page"><a href="#waiting">Waiting pods</a><a href="#moves">Moves</a>
<a href="#nodes">Nodes</a><a href="#holders">Who holds what</a><a href="#classes">Classes</a></nav>
<form method="get" role="search"><label for="q">Filter</label>
<input type="search" id="q" name="q" value="{_t(query.text)}" placeholder="node, model, namespace, pod"
autocomplete="off">
<button>Filter</button><label class="js" hidden><input type="checkbox" id="live" checked> refresh</label>
<span class="dim" id="said" role="status"></span></form>
<p class="dim" id="at">{_t(f"as of {at}" if at else "")}</p></header>
<main id="main" tabindex="-1">
{main}
</main>
<svg width="0" height="0" aria-hidden="true"><defs>{PATTERN}</defs></svg>
<script>{SCRIPT}</script></body></html>
"""


def _note(view: ClusterPicture) -> str:
    return f'<p class="warn" role="alert">{_t(view.note)}</p>' if view.note else ""


def _sums(view: ClusterPicture) -> str:
    sums = view.sums()
    tiles = (
        _tile(len(view.nodes), "node"),
        _tile(sums.gpus, "GPU"),
        (f"{format_bytes(sums.held_bytes)} of {format_bytes(sums.total_bytes)}", "held"),
        _tile(sums.whole, "whole GPU", " free"),
        (f"{sums.fragmentation:.0%}", "fragmentation"),
        _tile(sums.unhealthy, "unhealthy GPU"),
        _tile(len(view.waiting), "waiting pod"),
    )
    items = "".join(f"<li><b>{_t(value)}</b> {name}</li>" for value, name in tiles)
    return (
        f'<ul class="sums">{items}</ul><div class="bar">{fragmentation_svg(sums)}</div>'
        f'<p class="dim">{_t(summary(sums))}</p>'
    )


def _tile(count: int, what: str, more: str = "") -> tuple[str, str]:
    value, _, name = plural(count, what).partition(" ")
    return value, name + more


def _waiting(pods: Sequence[WaitingPodView]) -> str:
    if not pods:
        return '<h2 id="waiting">Waiting pods</h2><p class="dim">None.</p>'
    rows = "".join(map(_waiting_row, pods[:_ROWS]))
    more = f'<p class="dim">and {len(pods) - _ROWS} more</p>' if len(pods) > _ROWS else ""
    return (
        f'<h2 id="waiting">Waiting pods ({len(pods)})</h2><div class="wide"><table><thead><tr><th>Pod<th>Asks for'
        f"<th>Since<th>Why</tr></thead><tbody>{rows}</tbody></table></div>{more}"
    )


def _waiting_row(pod: WaitingPodView) -> str:
    lines = [*pod.details, *(f"would help: {suggestion}" for suggestion in pod.suggestions)]
    why = _t(pod.why)
    if lines:
        items = "".join(f"<li>{_t(line)}</li>" for line in lines)
        why = f'<details id="{_t(f"why-{pod}")}"><summary>{why}</summary><ul>{items}</ul></details>'
    text = _t(f"{pod} {pod.asks} {pod.why}".lower())
    return f'<tr data-text="{text}"><td>{_t(str(pod))}<td>{_t(pod.asks)}<td>{_t(pod.since)}<td>{why}</tr>'


def _moves(moves: Sequence[str]) -> str:
    items = "".join(f"<li>{_t(move)}</li>" for move in moves)
    body = (
        f"<ul>{items}</ul>" if moves else '<p class="dim">None: no move of pods would free a whole GPU.</p>'
    )
    return f'<h2 id="moves">Moves that would free a whole GPU</h2>{body}'


def node_text(node: NodeView) -> str:
    """What the filter looks for on a node, in small letters."""
    words = [node.name, *node.conditions]
    for gpu in node.gpus:
        words += [gpu.model, gpu.uuid, gpu.unhealthy, *map(str, gpu.holders)]
    return " ".join(dict.fromkeys(words)).lower()


def _nodes(nodes: Sequence[NodeView], matching: int, of: int) -> str:
    few = "" if matching == of else f"{matching} of "
    cards = "".join(map(_node_card, nodes)) or '<p class="dim">No node matches.</p>'
    return f'<h2 id="nodes">Nodes ({few}{of})</h2>{cards}'


def _node_card(node: NodeView) -> str:
    conditions = f' <span class="warn">{_t(", ".join(node.conditions))}</span>' if node.conditions else ""
    gpus = _t(models(gpu.model for gpu in node.gpus))
    title = f'<h3>{_t(node.name)} <span class="dim">{gpus}</span>{conditions}</h3>'
    rows = "".join(
        f"<tr><td>GPU{gpu.index}<td>{_t(gpu.model)}<td class=n>{format_bytes(gpu.free * gpu.slice_bytes)}"
        f"<td>{_t(', '.join(f'{one} {format_bytes(one.slices * gpu.slice_bytes)}' for one in gpu.holders) or '-')}"
        f"<td>{_t(gpu.unhealthy or 'healthy')}</tr>"
        for gpu in node.gpus
    )
    heads = "<th>GPU<th>Model<th class=n>Free<th>Held by<th>Health"
    table = (
        f'<details id="{_t(f"node-{node.name}")}"><summary>As a table</summary><div class="wide"><table><thead>'
        f"<tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )
    picture = node_svg(node) + table if node.gpus else ""
    return f'<article data-text="{_t(node_text(node))}">{title}{picture}</article>'


def _pager(query: PageQuery, page: int, pages: int) -> str:
    if pages == 1:
        return ""

    def link(number: int, word: str) -> str:
        address = "?" + urlencode({"q": query.text, "page": number})
        return f'<a href="{_t(address)}#nodes">{word}</a> '

    before = link(page - 1, "previous") if page else ""
    after = link(page + 1, "next") if page < pages - 1 else ""
    return f'<nav aria-label="pages of nodes">{before}page {page + 1} of {pages} {after}</nav>'


def _space_text(space: NamespaceTotals) -> str:
    return " ".join([space.namespace, *(f"{pod.pod} {pod.node}" for pod in space.pods)]).lower()


def _totals(spaces: Sequence[NamespaceTotals]) -> str:
    rows = "".join(map(_space_row, spaces))
    body = (
        '<div class="wide"><table><thead><tr><th>Namespace<th class=n>Pods<th class=n>GPU memory<th class=n>GPUs'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
        if rows
        else '<p class="dim">No pod holds any.</p>'
    )
    return f'<h2 id="holders">Who holds what</h2>{body}'


def _space_row(space: NamespaceTotals) -> str:
    name = space.namespace or "(pods that the cluster does not list)"
    pods = "".join(f"<li>{_key(space, pod.pod)}{_pod_total(pod)}</li>" for pod in space.pods[:_ROWS])
    opened = f'<details id="{_t(f"held-{space.namespace}")}"><summary>{_t(name)}</summary><ul>{pods}</ul></details>'
    return (
        f'<tr data-text="{_t(_space_text(space))}"><td>{opened}<td class=n>{len(space.pods)}'
        f"<td class=n>{format_bytes(space.size)}<td class=n>{space.gpus}</tr>"
    )


def _pod_total(pod: PodTotals) -> str:
    return _t(f"{pod.pod} on {pod.node}: {format_bytes(pod.size)}, {plural(pod.gpus, 'GPU')}")


def _key(space: NamespaceTotals, pod: str) -> str:
    fill = colour(space.namespace, pod)
    return f'<svg class="key" aria-hidden="true"><rect width="12" height="12" fill="{fill}"/></svg>'


def _classes(classes: Sequence[ClassView]) -> str:
    rows = "".join(
        f"<tr><td>{_t(row.name)}<td>{_t(row.selects)}<td class=n>{row.devices}<td class=n>{row.free}"
        f'<td class=n>{row.nodes}<td class="warn">{_t(row.problem)}</tr>'
        for row in classes
    )
    body = (
        '<div class="wide"><table><thead><tr><th>Class<th>Selects<th class=n>GPUs<th class=n>Free<th class=n>Nodes<th>'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
        if rows
        else '<p class="dim">None.</p>'
    )
    return f'<h2 id="classes">Classes</h2>{body}'


def _has(words: Iterable[str], text: str) -> bool:
    return all(word in text for word in words)


def _t(text: str) -> str:
    return escape(plain(text))
