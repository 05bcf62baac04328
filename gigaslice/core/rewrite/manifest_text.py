# SPDX-License-Identifier: Apache-2.0
"""The text of a manifest, rewritten: the one entry to this package. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gigaslice.core.rewrite.document import DocumentRewrite, rewrite_document
from gigaslice.core.rewrite.edits import Edit
from gigaslice.core.rewrite.gpu_request import RewriteSettings
from gigaslice.core.rewrite.yaml_text import UnsafeEditError, YamlText

__all__ = ["LineNote", "ManifestRewrite", "rewrite_text"]

_UNSAFE = (
    "it is written in a way that cannot be changed in place, such as anchors that several pods share; write it out "
    "plainly (yq 'explode(.)') and try again"
)


@dataclass(frozen=True, slots=True, order=True)
class LineNote:
    """One sentence about a line, from 1. left: whether something is left to the author."""

    line: int
    text: str
    left: bool = False


@dataclass(frozen=True, slots=True)
class ManifestRewrite:
    """What becomes of a manifest. text: the whole of it; notes: by line; pods, left: as of its documents."""

    text: str
    notes: tuple[LineNote, ...] = ()
    pods: int = 0
    left: int = 0


def rewrite_text(text: str, settings: RewriteSettings) -> ManifestRewrite:
    """Rewrites the documents of a manifest.

    Raises:
        InputError: It is neither YAML nor JSON.
    """
    source = YamlText(text)
    rewrites = [rewrite_document(document, settings) for document in source.documents]
    edits = {position: rewrite.edits for position, rewrite in enumerate(rewrites) if rewrite.edits}
    unsafe = _unsafe(source, edits)
    notes = [
        LineNote(source.line(position, note.path), note.text, note.left)
        for position, rewrite in enumerate(rewrites)
        for note in rewrite.notes
        if position not in unsafe or note.left
    ]
    notes += [LineNote(source.line(position, ()), _UNSAFE, left=True) for position in unsafe]
    safe = {position: its_edits for position, its_edits in edits.items() if position not in unsafe}
    return ManifestRewrite(
        source.edited(safe) if safe else text,
        tuple(sorted(dict.fromkeys(notes))),
        sum(rewrite.pods for position, rewrite in enumerate(rewrites) if position not in unsafe),
        sum(_left(rewrite, position in unsafe) for position, rewrite in enumerate(rewrites)),
    )


def _left(rewrite: DocumentRewrite, unsafe: bool) -> int:
    return rewrite.left + rewrite.pods if unsafe else rewrite.left


def _unsafe(source: YamlText, edits: dict[int, tuple[Edit, ...]]) -> frozenset[int]:
    """The documents whose edits cannot be done in place; each is tried by itself only where not all can be."""
    if not edits or _can_be_done(source, edits):
        return frozenset()
    unsafe = frozenset(
        position for position in edits if not _can_be_done(source, {position: edits[position]})
    )
    return unsafe or frozenset(edits)


def _can_be_done(source: YamlText, edits: Mapping[int, Sequence[Edit]]) -> bool:
    try:
        source.edited(edits)
    except UnsafeEditError:
        return False
    return True
