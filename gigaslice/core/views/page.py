# SPDX-License-Identifier: Apache-2.0
"""The web page of the cluster: one document, made anew for every request, that only shows.

It works without its program: the filter is then a form, and every explanation can be opened by keyboard. The program
filters while one types and fetches the page again every few seconds. Of a large cluster the page shows a part, so that
a browser has no ten thousand pictures to draw; the filter is of the whole cluster where it is sent as a form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from urllib.parse import urlencode

from gigaslice.core.views.cluster_picture import ClusterPicture
from gigaslice.core.views.headroom import headline
from gigaslice.core.views.html import has_words, section, text
from gigaslice.core.views.page_assets import HEADERS, SCRIPT, STYLE
from gigaslice.core.views.page_nodes import node_card, node_legend, node_text
from gigaslice.core.views.page_sums import sums_of
from gigaslice.core.views.page_tables import classes_table, space_text, totals_table, waiting_table
from gigaslice.core.views.svg import PATTERN
from gigaslice.core.views.totals import totals

__all__ = ["HEADERS", "PageQuery", "render"]

_NODES = 100  # on one page
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


def render(view: ClusterPicture, query: PageQuery = PageQuery(), now: float = 0.0) -> str:
    """The page as HTML; send it with `HEADERS`. now: when the picture was taken, in Unix time."""
    words = query.text.lower().split()
    waiting = [pod for pod in view.waiting if has_words(words, f"{pod} {pod.why} {pod.asks}".lower())]
    parts = [
        f'<p class="warn" role="alert">{text(view.note)}</p>' if view.note else "",
        _overview(view),
        section(
            "waiting",
            f"Waiting pods ({len(waiting)})" if waiting else "Waiting pods",
            waiting_table(waiting, now),
        ),
        section("moves", "Moves that would free a whole GPU", _moves(view.moves)),
        _nodes(view, query, words),
        section(
            "holders",
            "Who holds what",
            totals_table([space for space in totals(view) if has_words(words, space_text(space))]),
        ),
        section("classes", "Classes", classes_table(view.classes)),
    ]
    return _document(query, now, "\n".join(part for part in parts if part))


def _document(query: PageQuery, now: float, main: str) -> str:
    moment = datetime.fromtimestamp(now, timezone.utc)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>GPUs of the cluster</title><link rel="icon" href="data:,"><style>{STYLE}</style></head><body>
<a class="skip" href="#main">to the content</a>
<header><h1>GPUs of the cluster</h1>
<nav aria-label="parts of the page"><a href="#waiting">Waiting pods</a> <a href="#moves">Moves</a>
<a href="#nodes">Nodes</a> <a href="#holders">Who holds what</a> <a href="#classes">Classes</a></nav>
<form method="get" role="search"><label for="q">Filter</label>
<input type="search" id="q" name="q" value="{text(query.text)}" placeholder="node, model, namespace, pod"
autocomplete="off">
<button>Filter</button><label class="js" hidden><input type="checkbox" id="live" checked> refresh</label>
<span class="dim" id="said" role="status"></span></form>
<p class="dim" id="at">as of <time datetime="{moment:%Y-%m-%dT%H:%M:%SZ}">{moment:%H:%M:%S} UTC</time></p></header>
<main id="main" tabindex="-1">
{main}
</main>
<svg width="0" height="0" aria-hidden="true"><defs>{PATTERN}</defs></svg>
<script>{SCRIPT}</script></body></html>
"""


def _overview(view: ClusterPicture) -> str:
    return (
        '<section id="overview" aria-label="Overview">'
        f'<p class="lead">{text(headline(view))}</p>{sums_of(view)}</section>'
    )


def _moves(moves: Sequence[str]) -> str:
    if not moves:
        return '<p class="dim">None: no move of pods would free a whole GPU.</p>'
    return f"<ul>{''.join(f'<li>{text(move)}</li>' for move in moves)}</ul>"


def _nodes(view: ClusterPicture, query: PageQuery, words: Sequence[str]) -> str:
    nodes = [node for node in view.nodes if has_words(words, node_text(node))]
    pages = max(1, -(-len(nodes) // _NODES))
    page = min(query.page, pages - 1)
    shown = nodes[page * _NODES : (page + 1) * _NODES]
    cards = "".join(map(node_card, shown)) or '<p class="dim">No node matches.</p>'
    few = "" if len(nodes) == len(view.nodes) else f"{len(nodes)} of "
    body = node_legend(shown) + cards + _pager(query, page, pages)
    return section("nodes", f"Nodes ({few}{len(view.nodes)})", body)


def _pager(query: PageQuery, page: int, pages: int) -> str:
    if pages == 1:
        return ""

    def link(number: int, word: str) -> str:
        address = "?" + urlencode({"q": query.text, "page": number})
        return f'<a href="{text(address)}#nodes">{word}</a> '

    before = link(page - 1, "previous") if page else ""
    after = link(page + 1, "next") if page < pages - 1 else ""
    return f'<nav aria-label="pages of nodes">{before}page {page + 1} of {pages} {after}</nav>'
