# SPDX-License-Identifier: Apache-2.0
"""Writes gigaslice/README.md beside this file: what the chart's values are, from values.yaml and its schema.

    python -m deploy.helm.readme            the file anew
    python -m deploy.helm.readme --check    whether it is what this program makes

A block of values.yaml (what stands between two empty lines) is a section: the comment above it, and a row for each
value with its default and the comment behind it. helm-docs wants a mark in each comment, and knows no schema.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.generated import write_or_check

HERE = Path(__file__).resolve().parent
CHART = HERE / "gigaslice"
FILE = CHART / "README.md"
_HEAD = HERE / "readme.md"
_BESIDE = 12
"""The column from which on a line with nothing but a comment goes on with the one behind the value above it."""
_WORDS = 8
"""The most words of a choice that are listed; a longer list stands in the reference of settings."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its path, its default as YAML in one line, and what the comments say of it."""

    path: str
    default: str
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """A section: what stands above its values, as paragraphs and examples of Markdown, and the values."""

    intro: str
    values: tuple[Value, ...]


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a file of values, without its first comment where no value follows that.

    Raises:
        ValueError: The file is not one mapping.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("values.yaml is no mapping")
    lines = text.splitlines()
    starts = [0, *(number + 1 for number, line in enumerate(lines) if not line.strip())]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        inside = [pair for pair in root.value if start <= pair[0].start_mark.line < end]
        if inside:
            first = inside[0][0].start_mark.line
            rows = tuple(
                row
                for number, (key, value) in enumerate(inside)
                for row in _rows(lines, key, value, "", own=number > 0)
            )
            yield Block(_prose(lines[start:first]), rows)


def _rows(lines: list[str], key: yaml.Node, value: yaml.Node, above: str, own: bool) -> Iterator[Value]:
    """The rows of one key. OWN: whether the comment above it is its own and not that of its block."""
    path = f"{above}{key.value}"
    comment = _comment_above(lines, key.start_mark.line) if own else ""
    block_style = isinstance(value, yaml.CollectionNode) and bool(value.value) and not value.flow_style
    if block_style and isinstance(value, yaml.MappingNode):
        if comment:
            yield Value(path, "", comment)
        for inner, below in value.value:
            yield from _rows(lines, inner, below, f"{path}.", own=True)
    elif block_style:
        yield Value(path, json.dumps(yaml.safe_load(yaml.serialize(value))), comment)
    else:
        line, column = value.end_mark.line, value.end_mark.column
        default = lines[line][value.start_mark.column : column]
        yield Value(path, default, _behind(lines, line, column) or comment)


def _behind(lines: list[str], number: int, column: int) -> str:
    """The comment behind a value, with the lines that go on beside the values."""
    rest = lines[number][column:]
    if not rest.strip().startswith("#"):
        return ""
    parts = [rest.strip().removeprefix("#").strip()]
    for line in lines[number + 1 :]:
        if not line.strip().startswith("#") or line.index("#") < _BESIDE:
            break
        parts.append(line.strip().removeprefix("#").strip())
    return " ".join(parts)


def _comment_above(lines: list[str], number: int) -> str:
    """The comment directly above line NUMBER, at its own depth."""
    indent = len(lines[number]) - len(lines[number].lstrip())
    parts: list[str] = []
    while number and lines[number - 1].startswith(" " * indent + "#"):
        number -= 1
        parts.insert(0, lines[number].strip().removeprefix("#").strip())
    return " ".join(parts)


def _prose(comment: list[str]) -> str:
    """Lines of a comment as Markdown: what is indented in it is an example."""
    text: list[str] = []
    example: list[str] = []
    for line in comment:
        words = line.removeprefix("#").removeprefix(" ")
        (example if words.startswith("  ") else text).append(words)
    code = (
        ["", "```yaml" if ":" in example[0] else "```sh", *(line[2:] for line in example), "```"]
        if example
        else []
    )
    return "\n".join([*text, *code])


def taken(schema: Mapping[str, Any], path: str) -> str:
    """What the schema says of the value at PATH, in a word or the words of a choice."""
    found: Any = schema
    for key in path.split("."):
        found = found.get("properties", {}).get(key, {})
    if "enum" in found:
        words = [json.dumps(word) if isinstance(word, bool) else str(word) for word in found["enum"]]
        return ", ".join(f"`{word}`" for word in words[:_WORDS])
    kinds = found.get("type", "")
    return " or ".join([kinds] if isinstance(kinds, str) else kinds)


def made(chart: Path = CHART, head: Path = _HEAD) -> str:
    """The text of the page.

    Raises:
        ValueError: values.yaml cannot be used.
    """
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    parts = [head.read_text(encoding="utf-8").rstrip()]
    for block in blocks((chart / "values.yaml").read_text(encoding="utf-8")):
        tops = dict.fromkeys(value.path.partition(".")[0] for value in block.values)
        parts.append("### " + ", ".join(f"`{top}`" for top in tops))
        if block.intro:
            parts.append(block.intro)
        rows = ["| value | takes | default | |", "| --- | --- | --- | --- |"]
        for value in block.values:
            default = f"`{value.default}`" if value.default else ""
            cells = (f"`{value.path}`", taken(schema, value.path), default, value.text)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(lambda: {FILE: made()}, "chart-readme", __doc__))
