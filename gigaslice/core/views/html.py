# SPDX-License-Identifier: Apache-2.0
"""Pieces of HTML that the parts of the page share: escaped text, tables with a caption and headings, swatches. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gigaslice.core.text import plain

__all__ = ["has_words", "section", "swatch", "table", "text"]


def text(content: str) -> str:
    """CONTENT as it may stand in an element or an attribute in quotes, whoever has written it."""
    return escape(plain(content))


def section(name: str, title: str, body: str) -> str:
    """A part of the page; BODY is HTML."""
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{text(title)}</h2>'
        f"{body}</section>"
    )


def table(caption: str, heads: Sequence[str], rows: Iterable[str]) -> str:
    """A table that a narrow window scrolls, by keyboard too. ROWS are HTML; a head with ">" before it is of numbers."""
    cells = "".join(
        f'<th scope="col"{" class=n" if head.startswith(">") else ""}>{text(head.removeprefix(">"))}</th>'
        for head in heads
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table>'
        f'<caption class="unseen">{text(caption)}</caption><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def swatch(fill: str, over: str = "") -> str:
    """A small square of one filling, beside which its meaning is written; OVER are attributes of what lies on it."""
    upper = f'<rect y="7" width="12" height="5" {over}/>' if over else ""
    return (
        '<svg class="key" width="12" height="12" aria-hidden="true">'
        f'<rect width="12" height="12" fill="{fill}"/>{upper}'
        '<rect x=".5" y=".5" width="11" height="11" fill="none" stroke="currentColor" stroke-opacity=".5"/></svg>'
    )


def has_words(words: Iterable[str], content: str) -> bool:
    """Whether all WORDS, in small letters, are in CONTENT."""
    return all(word in content for word in words)
