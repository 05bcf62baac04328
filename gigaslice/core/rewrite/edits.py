# SPDX-License-Identifier: Apache-2.0
"""Edits of a document and notes for its author, as values; and what a document is after them. Pure.

A path names a place in a document: keys of mappings and positions in lists, from the root. Whoever has the document as
a text applies the same edits there (`gigaslice.core.rewrite.yaml_text`), and compares the result with `edited`: what
is printed is what was decided, or nothing is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Edit",
    "Insert",
    "Note",
    "Path",
    "Remove",
    "Replace",
    "edited",
    "number_like",
    "value_at",
    "with_emptied",
]

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Replace:
    """An entry of a mapping gets another key and another value, in its place."""

    path: Path
    key: str
    value: str | int


@dataclass(frozen=True, slots=True)
class Remove:
    """An entry of a mapping or of a list goes."""

    path: Path


@dataclass(frozen=True, slots=True)
class Insert:
    """A text is added to the mapping at a path, which is made where it is missing. mapping: its path."""

    mapping: Path
    key: str
    value: str


Edit = Replace | Remove | Insert


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence for the author of a manifest.

    Attributes:
        path: What it is about.
        text: The sentence, without a full stop.
        left: Whether something is left for the author to do. Else it says what the rewritten manifest means.
    """

    path: Path
    text: str
    left: bool = False


def value_at(document: object, path: Sequence[str | int]) -> Any:
    """What stands at a path; None where nothing does."""
    value: Any = document
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def number_like(there: object, number: int) -> str | int:
    """A number as the one in whose place it comes was written: as a text or as a number."""
    return str(number) if isinstance(there, str) else number


def with_emptied(document: object, edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """The same edits, where a mapping or list of which nothing would be left goes as a whole."""
    kept = list(dict.fromkeys(edits))
    filled = {
        edit.mapping if isinstance(edit, Insert) else edit.path[:-1]
        for edit in kept
        if not isinstance(edit, Remove)
    }
    while True:
        removed = {edit.path for edit in kept if isinstance(edit, Remove)}
        parents = {path[:-1] for path in removed if len(path) > 1}
        emptied = {
            parent
            for parent in parents - filled
            if sum(path[:-1] == parent for path in removed) == len(value_at(document, parent))
        }
        if not emptied:
            return tuple(kept)
        kept = [edit for edit in kept if not (isinstance(edit, Remove) and edit.path[:-1] in emptied)]
        kept += [Remove(path) for path in sorted(emptied, key=str)]


def edited(document: object, edits: Sequence[Edit]) -> Any:
    """A copy of a document with the edits done. Places are those of the document before all of them."""
    result = copy.deepcopy(document)
    for edit in edits:
        if isinstance(edit, Insert):
            _mapping(result, edit.mapping)[edit.key] = edit.value
    for edit in edits:
        if isinstance(edit, Replace):
            parent = value_at(result, edit.path[:-1])
            entries = [
                (edit.key, edit.value) if key == edit.path[-1] else (key, value)
                for key, value in parent.items()
            ]
            parent.clear()
            parent.update(entries)
    removals = [edit.path for edit in edits if isinstance(edit, Remove)]
    for path in sorted(
        removals, key=lambda path: [step if isinstance(step, int) else -1 for step in path], reverse=True
    ):
        parent = value_at(result, path[:-1])
        if parent is not None:
            del parent[path[-1]]
    return result


def _mapping(document: Any, path: Path) -> dict[str, Any]:
    for step in path:
        if isinstance(document, dict) and document.get(str(step)) is None and isinstance(step, str):
            document[step] = {}
        document = document[step]
    mapping: dict[str, Any] = document
    return mapping
