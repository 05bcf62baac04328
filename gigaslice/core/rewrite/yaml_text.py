# SPDX-License-Identifier: Apache-2.0
"""A text of YAML or JSON documents, edited in place: what is not changed stays as it was written, byte for byte. Pure.

The parser (PyYAML) says where every key and value stands, and only those characters are exchanged. To write the
documents anew, as libraries for round trips do, would lay out anew what nobody asked to have changed, and lose comments
that stand behind an entry that goes (ADR 0122). The result is parsed again and must be what was decided; an edit that
is not certain to be that edit alone, such as one behind an alias, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gigaslice.core.errors import InputError
from gigaslice.core.rewrite.edits import Edit, Path, edited
from gigaslice.core.rewrite.yaml_spans import Span, UnsafeEditError, WrittenText, entries_of, spans_of

__all__ = ["UnsafeEditError", "YamlText"]

_DEEPEST = 100
_MOST_VALUES = 300_000
_TAG = "tag:yaml.org,2002:"


class YamlText:
    """A text with its documents.

    Raises:
        InputError: It is neither YAML nor JSON; the sentence begins with the line, if there is one.
    """

    def __init__(self, text: str) -> None:
        # JSON may be indented by tabs, YAML may not. In JSON a tab is never a part of a text, and places stay the same.
        is_json = text.lstrip()[:1] in ("{", "[")
        self._source = WrittenText(text, is_json)
        try:
            self._nodes, self.documents = _parsed(text.replace("\t", " ") if is_json else text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise InputError(
                f"line {mark.line + 1 if mark else 1}: is no YAML: {error.problem or error}"
            ) from error
        except yaml.YAMLError as error:
            raise InputError(f"is no YAML: {' '.join(str(error).split())}") from error
        except RecursionError:
            raise InputError("is nested too deeply to be a manifest") from None

    def line(self, document: int, path: Path) -> int:
        """The line of what stands at a path of a document, from 1; of what it stands in where that is missing."""
        node = self._nodes[document]
        line = node.start_mark.line
        for step in path:
            key, value = entries_of(node).get(step, (None, None))
            if value is None:
                break
            line, node = (key or value).start_mark.line, value
        return int(line) + 1

    def edited(self, edits: Mapping[int, Sequence[Edit]]) -> str:
        """The text with edits done, by the number of the document.

        Raises:
            UnsafeEditError: They cannot be done in place.
        """
        spans: list[Span] = []
        for document, its_edits in edits.items():
            spans += spans_of(self._source, self._nodes[document], its_edits)
        text = _exchanged(self._source.text, spans)
        try:
            documents = YamlText(text).documents
        except InputError as error:
            raise UnsafeEditError from error
        decided = tuple(
            edited(document, edits.get(position, ())) for position, document in enumerate(self.documents)
        )
        if documents != decided:
            raise UnsafeEditError
        return text


def _exchanged(text: str, spans: Sequence[Span]) -> str:
    """The text with each span exchanged. One that is within another goes with it, if both are taken out."""
    parts, end = [], 0
    for span in sorted(
        dict.fromkeys(spans), key=lambda span: (span.start, -span.end if span.start != span.end else 0)
    ):
        if span.start < end:
            if span.end <= end and not span.text and span.start != span.end:
                continue
            raise UnsafeEditError
        parts += [text[end : span.start], span.text]
        end = span.end
    return "".join([*parts, text[end:]])


def _parsed(text: str) -> tuple[list[yaml.Node], tuple[Any, ...]]:
    """The documents of a text as nodes and as values. Raises yaml.YAMLError, InputError and RecursionError."""
    loader = yaml.SafeLoader(text)
    try:
        nodes: list[yaml.Node] = []
        while loader.check_node():
            node = loader.get_node()
            nodes += [node] if node is not None else []
        return nodes, tuple(_Values(loader).of(node) for node in nodes)
    finally:
        loader.dispose()


class _Values:
    """Makes values of nodes. Keys are texts; merge keys are resolved, and aliases written out."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self._count = 0

    def of(self, node: yaml.Node, depth: int = 0) -> Any:
        """The value of a node.

        Raises:
            InputError: There are too many, or they are nested too deeply.
        """
        self._count += 1
        if self._count > _MOST_VALUES or depth > _DEEPEST:
            raise InputError(
                f"line {node.start_mark.line + 1}: has more than {_MOST_VALUES} values, or more than {_DEEPEST} within "
                "each other, and is no manifest"
            )
        if isinstance(node, yaml.MappingNode):
            if any(not isinstance(key, yaml.ScalarNode) for key, _ in node.value):
                raise InputError(
                    f"line {node.start_mark.line + 1}: is no YAML of Kubernetes: a key must be a text"
                )
            return {step: self.of(value, depth + 1) for step, (_, value) in entries_of(node).items()}
        if isinstance(node, yaml.SequenceNode):
            return [self.of(value, depth + 1) for value in node.value]
        return self._scalar(node) if isinstance(node, yaml.ScalarNode) else None

    def _scalar(self, node: yaml.ScalarNode) -> object:
        make = {
            "null": lambda _: None,
            "bool": self._loader.construct_yaml_bool,
            "int": self._loader.construct_yaml_int,
            "float": self._loader.construct_yaml_float,
        }.get(node.tag.removeprefix(_TAG))
        try:
            value = make(node) if make else node.value
        except (ValueError, KeyError):
            return node.value
        is_nan = isinstance(value, float) and math.isnan(value)  # which is equal to nothing, itself included
        return node.value if is_nan else value
