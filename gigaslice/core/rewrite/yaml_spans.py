# SPDX-License-Identifier: Apache-2.0
"""Which characters of a text of YAML an edit exchanges, by the places that the parser gave its nodes. Pure.

Block style goes by lines: an entry that goes takes its lines and what stands behind it on them. Flow style, and so
JSON, goes by entries and their commas. What is in neither of these forms is an UnsafeEditError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import yaml

from gigaslice.core.rewrite.edits import Edit, Insert, Path, Remove, Replace

__all__ = ["Span", "UnsafeEditError", "WrittenText", "entries_of", "spans_of"]

_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"
_STEP = 2
_PLAIN = re.compile(r"[A-Za-z][-A-Za-z0-9_.]*(/[-A-Za-z0-9_.]+)?")  # what a key may be without quotes
_Entry = tuple[yaml.Node | None, yaml.Node]


class UnsafeEditError(Exception):
    """An edit cannot be done in the text, or not without changing anything else."""


class WrittenText(NamedTuple):
    """A text, and whether it is JSON."""

    text: str
    is_json: bool


class Span(NamedTuple):
    """Characters from start to before end, and what is written in their place."""

    start: int
    end: int
    text: str


def entries_of(node: yaml.Node) -> dict[str | int, _Entry]:
    """The nodes of key and value by the key's text, those of merge keys included; of a list by the position."""
    if isinstance(node, yaml.SequenceNode):
        return {position: (None, value) for position, value in enumerate(node.value)}
    if not isinstance(node, yaml.MappingNode):
        return {}
    own: dict[str | int, _Entry] = {}
    merged: dict[str | int, _Entry] = {}
    for key, value in node.value:
        if key.tag == _MERGE:
            for mapping in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                merged = {**entries_of(mapping), **merged} if mapping is not node else merged
        else:
            own[key.value if isinstance(key, yaml.ScalarNode) else str(key)] = (key, value)
    return {**merged, **own}


def spans_of(source: WrittenText, root: yaml.Node, edits: Sequence[Edit]) -> Iterator[Span]:
    """The characters that edits of one document exchange. Raises UnsafeEditError."""
    removed = {edit.path for edit in edits if isinstance(edit, Remove)}
    added: dict[Path, dict[str, str]] = {}
    for edit in edits:
        if isinstance(edit, Replace):
            yield from _replaced(source.text, root, edit)
        elif isinstance(edit, Insert):
            added.setdefault(edit.mapping, {})[edit.key] = edit.value
    for path in removed:
        yield _removed(source.text, _node_at(root, path[:-1]), path, removed)
    for path, texts in added.items():
        yield _inserted(source, root, path, texts, removed)


def _node_at(root: yaml.Node, path: Path) -> yaml.Node:
    node = root
    for step in path:
        node = _entry(node, step)[1]
    return node


def _entry(node: yaml.Node, step: str | int) -> _Entry:
    entry = entries_of(node).get(step)
    if entry is None:
        raise UnsafeEditError
    return entry


def _replaced(text: str, root: yaml.Node, edit: Replace) -> Iterator[Span]:
    key, value = _entry(_node_at(root, edit.path[:-1]), edit.path[-1])
    if key is None or not isinstance(value, yaml.ScalarNode) or value.start_mark.index < key.start_mark.index:
        raise UnsafeEditError
    yield Span(key.start_mark.index, key.end_mark.index, _key_like(text, key, edit.key))
    if value.value != str(edit.value):
        yield Span(value.start_mark.index, value.end_mark.index, _like(text, value, edit.value))


def _like(text: str, node: yaml.Node, value: str | int) -> str:
    """A value written as the one that was there: in the same quotes, or in none where it needs none."""
    quote = text[node.start_mark.index]
    if quote == "'" and "'" not in str(value):
        return f"'{value}'"
    if quote in "\"'":
        return json.dumps(str(value), ensure_ascii=False)
    return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)


def _key_like(text: str, key: yaml.Node, name: str) -> str:
    return (
        name if text[key.start_mark.index] not in "\"'" and _PLAIN.fullmatch(name) else _like(text, key, name)
    )


def _start(text: str, key: yaml.Node | None, value: yaml.Node) -> int:
    """Where an entry begins: its key, or in block style the dash before an item."""
    if key is not None:
        return int(key.start_mark.index)
    dash = text.rfind("-", 0, value.start_mark.index)
    if dash < 0 or text[dash + 1 : value.start_mark.index].strip():
        raise UnsafeEditError
    return dash


def _end(text: str, key: yaml.Node | None, value: yaml.Node) -> int:
    """Behind the last character of an entry. The mark of a block is behind what follows, so its last part counts."""
    if (
        key is not None and value.start_mark.index < key.start_mark.index
    ):  # an alias: the mark is that of the anchor
        return _line_end(text, key.end_mark.index)
    if isinstance(value, yaml.CollectionNode) and not value.flow_style and value.value:
        last = value.value[-1]
        return _end(text, *last) if isinstance(value, yaml.MappingNode) else _end(text, None, last)
    end = len(text[: value.end_mark.index].rstrip())
    return max(end, key.end_mark.index + 1) if key is not None else end


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end


def _removed(text: str, parent: yaml.Node, path: Path, removed: set[Path]) -> Span:
    if not isinstance(parent, yaml.CollectionNode):
        raise UnsafeEditError
    entries = list(entries_of(parent).items())
    position = [step for step, _ in entries].index(path[-1])
    key, value = entries[position][1]
    following = entries[position + 1][1] if position + 1 < len(entries) else None
    if parent.flow_style:
        if following is not None:
            return Span(_flow_start(key, value), _flow_start(*following), "")
        before = [entry for step, entry in entries[:position] if (*path[:-1], step) not in removed]
        end = int(value.end_mark.index)
        return Span(int(before[-1][1].end_mark.index) if before else _flow_start(key, value), end, "")
    start, end = _start(text, key, value), _end(text, key, value)
    if text[_line_start(text, start) : start].strip():
        if following is None:
            raise UnsafeEditError
        begin = _start(text, *following)
        between = text[_line_end(text, end) : begin]
        # Comments about the next entry stay: the dash then has a line of its own.
        return Span(start, begin, f"{between.lstrip(' ')}" if between.strip() else "")
    rest = text[end : _line_end(text, end)].strip()
    if rest and not rest.startswith("#"):
        raise UnsafeEditError
    return Span(_line_start(text, start), min(_line_end(text, end) + 1, len(text)), "")


def _flow_start(key: yaml.Node | None, value: yaml.Node) -> int:
    return int((key or value).start_mark.index)


def _inserted(
    source: WrittenText, root: yaml.Node, path: Path, texts: dict[str, str], removed: set[Path]
) -> Span:
    """Adds texts to the mapping at a path; the part of the path that is missing is made, too."""
    node, depth = root, 0
    key: yaml.Node | None = None
    while depth < len(path) and path[depth] in (entries := entries_of(node)):
        key, node = entries[path[depth]]
        depth += 1
    content: dict[str, object] = dict(texts)
    for step in reversed(path[depth:]):
        content = {str(step): content}
    if isinstance(node, yaml.ScalarNode) and node.tag == _NULL and key is not None:
        return _in_place_of_nothing(source, key, node, content)
    if not isinstance(node, yaml.MappingNode) or (
        key is not None and node.start_mark.index < key.start_mark.index
    ):
        raise UnsafeEditError
    entries = entries_of(node)
    kept = [entry for step, entry in entries.items() if (*path[:depth], step) not in removed]
    if node.flow_style:
        return _in_flow(source, node, content, kept)
    return _in_block(source.text, node, content, first=path[depth:][:1] == ("metadata",))


def _in_place_of_nothing(
    source: WrittenText, key: yaml.Node, node: yaml.ScalarNode, content: dict[str, object]
) -> Span:
    text = source.text
    if source.is_json:
        return Span(node.start_mark.index, node.end_mark.index, json.dumps(content, ensure_ascii=False))
    end = _line_end(text, max(key.end_mark.index, node.end_mark.index))
    kept = text[node.end_mark.index : end] if node.value else text[key.end_mark.index + 1 : end]
    start = node.start_mark.index if node.value else key.end_mark.index + 1
    return Span(start, end, kept + "\n" + _block(content, key.start_mark.column + _STEP).removesuffix("\n"))


def _in_flow(
    source: WrittenText, node: yaml.MappingNode, content: dict[str, object], kept: list[_Entry]
) -> Span:
    text = source.text
    entries = list(entries_of(node).values())
    inside = json.dumps(content, ensure_ascii=False)[1:-1]
    if not entries:
        return Span(node.start_mark.index + 1, node.start_mark.index + 1, inside)
    key, value = entries[-1]
    end = int(value.end_mark.index)
    start = _flow_start(key, value)
    margin = text[_line_start(text, start) : start]
    if source.is_json and not margin.strip() and _line_start(text, start) > node.start_mark.index:
        step = margin.removeprefix(_margin(text, node.start_mark.index)) or " " * _STEP
        lines = json.dumps(content, indent=step, ensure_ascii=False).splitlines()[1:-1]
        inside = "\n".join(margin + line.removeprefix(step) for line in lines)
        return Span(end, end, f",\n{inside}" if kept else inside.lstrip())
    return Span(end, end, f", {inside}" if kept else inside)


def _margin(text: str, index: int) -> str:
    line = text[_line_start(text, index) :]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _in_block(text: str, node: yaml.MappingNode, content: dict[str, object], first: bool) -> Span:
    """Behind the last entry; metadata stands before all others, where a line begins there."""
    entries = node.value
    column = entries[0][0].start_mark.column
    block = _block(content, column)
    top = _line_start(text, entries[0][0].start_mark.index)
    if first and not text[top : entries[0][0].start_mark.index].strip():
        return Span(top, top, block)
    end = _line_end(text, _end(text, *entries[-1]))
    if end == len(text):
        return Span(end, end, "\n" + block.removesuffix("\n"))
    return Span(end + 1, end + 1, block)


def _block(content: dict[str, object], column: int) -> str:
    lines = ""
    for key, value in content.items():
        if isinstance(value, dict):
            lines += f"{' ' * column}{key}:\n{_block(value, column + _STEP)}"
        else:
            lines += f"{' ' * column}{key}: {json.dumps(value, ensure_ascii=False)}\n"
    return lines
