# SPDX-License-Identifier: Apache-2.0
"""Edits in place: what stays is byte for byte what it was."""

from __future__ import annotations

import json
import textwrap

import pytest
import yaml

from gigaslice.core.errors import InputError
from gigaslice.core.rewrite.edits import Edit, Insert, Remove, Replace
from gigaslice.core.rewrite.gpu_request import RewriteSettings
from gigaslice.core.rewrite.manifest_text import rewrite_text
from gigaslice.core.rewrite.yaml_text import UnsafeEditError, YamlText


def lines(text: str) -> str:
    return textwrap.dedent(text).removeprefix("\n")


def edit(text: str, *edits: Edit) -> str:
    return YamlText(text).edited({0: edits})


BLOCK = lines("""
    # before
    kind: Pod   # a pod
    metadata:
        name:   x
        labels: { a: b,  c: d }
    spec:
    # among
      list:
      - one   # first
      - two:
          deep: 1   # behind

      # above three
      - 'three'
      text: |
        literal
          text

      last: "end"
      # below
    """)


@pytest.mark.parametrize(("its_edits", "before", "after"), [
    ((Replace(("kind",), "sort", "Pod"),), "kind: Pod   # a pod", "sort: Pod   # a pod"),
    ((Replace(("spec", "last"), "last", "x"),), '"end"', '"x"'),
    ((Replace(("metadata", "labels", "c"), "e", 5),), "c: d", "e: 5"),
    ((Remove(("kind",)),), "kind: Pod   # a pod\n", ""),
    ((Remove(("metadata", "labels", "a")),), "{ a: b,  c: d }", "{ c: d }"),
    ((Remove(("metadata", "labels", "c")),), "{ a: b,  c: d }", "{ a: b }"),
    ((Remove(("spec", "list", 0)),), "  - one   # first\n", ""),
    ((Remove(("spec", "list", 1)),), "  - two:\n      deep: 1   # behind\n", ""),
    ((Remove(("spec", "list", 2)),), "  - 'three'\n", ""),
    ((Remove(("spec", "text")),), "  text: |\n    literal\n      text\n", ""),
    ((Remove(("spec", "last")),), '  last: "end"\n', ""),
    ((Insert(("metadata", "annotations"), "k", "v"),), "c: d }\n",
     'c: d }\n    annotations:\n      k: "v"\n'),
    ((Insert(("metadata", "labels"), "k", "v"),), "c: d }", 'c: d, "k": "v" }'),
    ((Insert(("spec",), "k", 'a"b: #'),), '  last: "end"\n', '  last: "end"\n  k: "a\\"b: #"\n'),
])  # fmt: skip
def test_only_the_edit_is_different(its_edits: tuple[Edit, ...], before: str, after: str) -> None:
    assert edit(BLOCK, *its_edits) == BLOCK.replace(before, after, 1) != BLOCK


@pytest.mark.parametrize(("text", "its_edits", "result"), [
    ("spec:\n  a: 1\n", (Insert(("metadata", "annotations"), "k", "v"),),
     'metadata:\n  annotations:\n    k: "v"\nspec:\n  a: 1\n'),
    ("- metadata:\n  x: 1\n", (Insert((0, "metadata"), "k", "v"),), '- metadata:\n    k: "v"\n  x: 1\n'),
    ("a:   # why\nb: 1\n", (Insert(("a",), "k", "v"),), 'a:   # why\n  k: "v"\nb: 1\n'),
    ("a: null # why\nb: 1\n", (Insert(("a",), "k", "v"),), 'a:  # why\n  k: "v"\nb: 1\n'),
    ("a: {}\n", (Insert(("a",), "k", "v"),), 'a: {"k": "v"}\n'),
    ("a: 1", (Insert((), "k", "v"),), 'a: 1\nk: "v"'),
    ("a: 1\nb: 2", (Remove(("b",)),), "a: 1\n"),
    ("- a: 1\n  b: 2\n", (Remove((0, "a")),), "- b: 2\n"),
    ("- a: 1 # x\n  # on b\n  b: 2\n", (Remove((0, "a")),), "- \n  # on b\n  b: 2\n"),
    ("a: {b: 1}\n", (Remove(("a", "b")), Insert(("a",), "k", "v")), 'a: {"k": "v"}\n'),
    ("a: {b: 1, c: 2, d: 3}\n", (Remove(("a", "c")), Remove(("a", "d"))), "a: {b: 1}\n"),
    ("a: {b: 1, c: 2, d: 3}\n", (Remove(("a", "b")), Remove(("a", "c"))), "a: {d: 3}\n"),
    ("a:\r\n  b: 1\r\n  c: 2\r\n", (Remove(("a", "b")),), "a:\r\n  c: 2\r\n"),
    ("a: 'it'\n", (Replace(("a",), "a", "is"),), "a: 'is'\n"),
    ("a: it\n", (Replace(("a",), "a", "1"),), 'a: "1"\n'),
    ('{"a": 1, "b": null}', (Insert(("b",), "k", "v"),), '{"a": 1, "b": {"k": "v"}}'),
    ('{"a": {"x": 1}}', (Insert(("a", "c"), "k", "v"),), '{"a": {"x": 1, "c": {"k": "v"}}}'),
])  # fmt: skip
def test_forms_of_yaml_and_json(text: str, its_edits: tuple[Edit, ...], result: str) -> None:
    assert edit(text, *its_edits) == result


@pytest.mark.parametrize("indent", [1, 2, 4, "\t"])
def test_json_that_is_laid_out_stays_so(indent: int | str) -> None:
    document = {"metadata": {"name": "a"}, "spec": {"b": 1, "c": 2}}
    edits = [Insert(("metadata", "annotations"), "k", "v"), Remove(("spec", "c"))]
    result = {"metadata": {"name": "a", "annotations": {"k": "v"}}, "spec": {"b": 1}}
    assert edit(json.dumps(document, indent=indent), *edits) == json.dumps(result, indent=indent)


def test_documents_are_edited_by_themselves_and_lines_are_the_files() -> None:
    text = YamlText("a: 1\n---\n# two\nb:\n  c: 2\n--- \nd: 3\n")
    assert text.documents == ({"a": 1}, {"b": {"c": 2}}, {"d": 3})
    assert [text.line(1, path) for path in ((), ("b",), ("b", "c"), ("b", "missing"))] == [4, 4, 5, 4]
    assert text.edited({1: [Replace(("b", "c"), "x", 5)]}) == "a: 1\n---\n# two\nb:\n  x: 5\n--- \nd: 3\n"


def test_what_aliases_share_is_edited_where_it_means_the_same_for_all() -> None:
    shared = "a: &x {b: 1}\nc: *x\n"
    assert edit(shared, Replace(("a", "b"), "d", 2), Replace(("c", "b"), "d", 2)) == "a: &x {d: 2}\nc: *x\n"
    with pytest.raises(UnsafeEditError):
        edit(shared, Replace(("a", "b"), "d", 2))
    with pytest.raises(UnsafeEditError):
        edit(shared, Insert(("c",), "k", "v"))
    with pytest.raises(UnsafeEditError):
        edit("a: &x 1\nc: *x\n", Replace(("c",), "c", 2))


def test_merge_keys_are_read() -> None:
    text = "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n"
    assert YamlText(text).documents == ({"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}},)
    with pytest.raises(UnsafeEditError):
        edit(text, Remove(("use", "x")))


def test_a_key_that_is_there_twice_is_not_edited() -> None:
    with pytest.raises(UnsafeEditError):
        edit("a: 1\na: 2\n", Remove(("a",)))


@pytest.mark.parametrize(("text", "says"), [
    ("a: [1\nb: 2\n", "line 2: is no YAML"),
    ("a: {{ .Values.x }}\n", "line 1: .* a key must be a text"),
    ("a: \x00", "is no YAML"),
    ("a: &a [*a]\n", "no manifest"),
    ("[" * 1200, "too deeply"),
    ("a: *none\n", "line 1: is no YAML"),
])  # fmt: skip
def test_what_is_no_yaml_is_said_with_its_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        YamlText(text)


def test_values_are_those_of_yaml() -> None:
    (document,) = YamlText("a: 0x10\nb: yes\nc: .nan\nd: 1.5\ne: 2026-01-01\nf: !x y\n1: z\n").documents
    assert document == {"a": 16, "b": True, "c": ".nan", "d": 1.5, "e": "2026-01-01", "f": "y", "1": "z"}


def test_a_pod_in_anchors_that_differ_is_left() -> None:
    text = lines("""
        kind: List
        items:
        - kind: Pod
          metadata: &meta {name: a}
          spec:
            containers:
            - name: a
              resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1024, nvidia.com/gpucores: 10}}
        - kind: Pod
          metadata: *meta
          spec:
            containers:
            - name: a
              resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1024, nvidia.com/gpucores: 20}}
        """)
    rewrite = rewrite_text(text, RewriteSettings())
    assert rewrite.text == text
    assert (rewrite.pods, rewrite.left) == (0, 2)
    assert "explode" in rewrite.notes[0].text
    assert yaml.safe_load(text)
