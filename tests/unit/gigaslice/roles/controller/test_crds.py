# SPDX-License-Identifier: Apache-2.0
"""The definitions of our kinds: what they take, and the sentences with which they refuse the rest."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.classes.resource_class import ClassError, parse_resource_class
from gigaslice.core.cluster import names
from gigaslice.core.errors import SizeError
from gigaslice.core.units import parse_bytes
from tests.unit.gigaslice.roles.controller.crd_schema import FOLDER, definition, evaluate, mistakes, schema

POLICIES = (FOLDER.parents[1] / "templates" / "completion.yaml").read_text()
PLURALS = (names.RESOURCE_CLASSES, names.EXTENDED_RESOURCES)


def class_of(selector: Any = None, name: str = "nvidia.h100", **spec: Any) -> dict[str, Any]:
    if selector is not None:
        spec["selector"] = selector
    metadata = {"name": name}
    return {
        "apiVersion": "gigaslice.io/v1alpha1",
        "kind": "ResourceClass",
        "metadata": metadata,
        "spec": spec,
    }


def expression(operator: str, *values: str, key: str = "memory") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_there_is_a_file_for_each_kind_and_no_other():
    assert sorted(path.name for path in FOLDER.iterdir()) == [
        f"{one}.gigaslice.io.yaml" for one in sorted(PLURALS)
    ]


@pytest.mark.parametrize("plural", PLURALS)
@pytest.mark.parametrize("version", ["1.29", "1.32", "1.36"])
def test_kubernetes_takes_the_definitions(plural: str, version: str):
    kubernetes_validate.validate(definition(plural), version, strict=True)


@pytest.mark.parametrize("plural", PLURALS)
def test_the_definitions_have_our_names(plural: str):
    found = definition(plural)
    assert found["metadata"]["name"] == f"{plural}.{names.GROUP}"
    assert (found["spec"]["group"], found["spec"]["names"]["plural"]) == (names.GROUP, plural)
    assert [one["name"] for one in found["spec"]["versions"]] == [names.VERSION]
    assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize("plural", PLURALS)
def test_lists_and_texts_with_rules_are_bounded(plural: str):
    """The API server refuses a definition whose rules could cost too much; it assumes the longest values."""

    def unbounded(node: Any, path: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        lacking = {"array": "maxItems", "string": "maxLength"}.get(str(node.get("type")))
        known = "enum" in node or "format" in node or path in (".apiVersion", ".kind")
        found = [path] if lacking and lacking not in node and not known else []
        for key, one in node.get("properties", {}).items():
            found += unbounded(one, f"{path}.{key}")
        return (
            found
            + unbounded(node.get("items"), f"{path}[]")
            + unbounded(node.get("additionalProperties"), f"{path}{{}}")
        )

    assert unbounded(schema(plural), "") == []


@pytest.mark.parametrize(
    "document",
    [
        class_of(),
        class_of({}),
        class_of({"matchLabels": {"model": "NVIDIA Tesla K80"}}),
        class_of({"matchLabels": {"vendor": "NVIDIA"}, **expression("Gt", "10GiB")}),
        class_of({"terms": [{"matchLabels": {"model": "Tesla T4"}}, expression("Gt", "15GiB")]}),
        class_of(expression("Lt", "1.5e3")),
        class_of(expression("Gt", "10G")),
        class_of(expression("In", "a", "b")),
        class_of(expression("NotIn", "a")),
        class_of(expression("Exists")),
        class_of({"matchExpressions": [{"key": "clock", "operator": "DoesNotExist"}]}),
        class_of(share={"memory": "8GiB"}),
        class_of(share={"memory": "8Gi", "cores": 30}),
        class_of(share={"memory": 8 << 30}),
        class_of(share={"memory": 8}),
        class_of(share={"memory": "7.5"}),
        class_of(share={"memory": "1.5GiB", "cores": 100}),
        class_of(name="x" * 63),
    ],
)
def test_valid_classes_are_taken(document: dict[str, Any]):
    assert mistakes("resourceclasses", document) == []


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (
            class_of({"terms": [{}], "matchLabels": {}}),
            "write either terms, which are ORed, or matchLabels and matchExpressions",
        ),
        (class_of(expression("In")), "In takes one value or more"),
        (
            class_of({"matchExpressions": [{"key": "k", "operator": "NotIn"}]}),
            "NotIn takes one value or more",
        ),
        (class_of(expression("Exists", "a")), "Exists takes no values; leave them out"),
        (class_of(expression("DoesNotExist", "a")), "DoesNotExist takes no values; leave them out"),
        (class_of(expression("Gt")), "Gt takes exactly one amount, such as 10GiB"),
        (class_of({"terms": [expression("Lt", "1", "2")]}), "Lt takes exactly one amount, such as 10GiB"),
        (
            class_of(expression("Gt", "ten")),
            "Gt takes exactly one amount, such as 10GiB",
        ),
        (
            class_of(expression("Lt", "10 GiB")),
            "Lt takes exactly one amount, such as 10GiB",
        ),
        (
            class_of(share={"memory": "much"}),
            "write a size above 0, such as 8GiB; 8G and 8 are 8GiB, and 8GB is refused",
        ),
        (
            class_of(share={"memory": "0Gi"}),
            "write a size above 0, such as 8GiB; 8G and 8 are 8GiB, and 8GB is refused",
        ),
        (
            class_of(share={"memory": "2000000KB"}),
            "write a size above 0, such as 8GiB; 8G and 8 are 8GiB, and 8GB is refused",
        ),
        (class_of(expression("Gt", "10GB")), "Gt takes exactly one amount, such as 10GiB"),
        *(
            (
                class_of(share={"memory": size}),
                "write a size above 0, such as 8GiB; 8G and 8 are 8GiB, and 8GB is refused",
            )
            for size in (10000, (1 << 20) - 1, "10000", "1048575")
        ),
        (
            class_of(share={"memory": 0}),
            "write a size above 0, such as 8GiB; 8G and 8 are 8GiB, and 8GB is refused",
        ),
        (
            class_of(name="x" * 64),
            "the name is what pods write after gpuclass.gigaslice.io/, so it can have 63 characters at most",
        ),
    ],
)
def test_wrong_classes_are_refused_with_a_sentence(document: dict[str, Any], sentence: str):
    assert mistakes("resourceclasses", document) == [sentence]


@pytest.mark.parametrize(
    "document",
    [
        class_of(expression("Like", "a")),
        class_of([{"matchLabels": {"model": "Tesla T4"}}]),
        class_of({"matchlabels": {"model": "Tesla T4"}}),
        class_of({"matchLabels": {"numa": 1}}),
        class_of({"terms": []}),
        class_of(share={}),
        class_of(share={"cores": 10}),
        class_of(share={"memory": "8Gi", "cores": 101}),
        class_of(expression("Exists", key="")),
        {key: value for key, value in class_of().items() if key != "spec"},
    ],
)
def test_the_schema_refuses_what_is_no_class(document: dict[str, Any]):
    assert mistakes("resourceclasses", document)


@given(
    st.one_of(
        st.from_regex(r"[0-9]{1,9}([.][0-9]{0,4})?[kKmMgGtTpP]?[iI]?[bB]?", fullmatch=True),
        st.integers(1, 1 << 21).map(str),
    )
)
def test_a_share_is_a_size_to_the_definition_the_policy_and_the_parser(text: str):
    """The policy's expression is the pattern of the definition, so what it cannot read is never stored."""
    (taken,) = [
        rule["rule"]
        for rule in schema("resourceclasses")["properties"]["spec"]["properties"]["share"][
            "x-kubernetes-validations"
        ]
    ]
    pattern = taken.split('matches("')[-1].partition('"))')[0]
    assert f'matches("{pattern}")' in POLICIES
    try:
        parse_bytes(text)
    except SizeError:
        # Nothing, parts of a byte and more than 128 TiB are sizes to a pattern.
        assert not re.search(pattern, text) or not re.fullmatch(r"[1-9][0-9]?[a-zA-Z]*|[1-9][0-9]*", text)
    else:
        assert re.search(pattern, text)


def test_the_evaluator_tells_true_from_false():
    assert evaluate('!has(self.a) || size(self.a) == 2 && self.a[1].matches("^x$")', {"a": ["", "x"]})
    assert not evaluate('has(self.b) || self.a in ["p", "q"]', {"a": "r"})
    assert evaluate('"operator " + self.a', {"a": "In"}) == "operator In"


_VALUES = st.sampled_from(
    [
        "a",
        "10GiB",
        "10Gi",
        "10G",
        "8gb",
        "8g",
        "1.5Ki",
        "1.3Ki",
        "1.5e3",
        "10KB",
        "1kB",
        "1K",
        "10 Gi",
        "",
        "-1",
        "0",
        ".5",
        "5.",
        "1e100",
        "0Gi",
        "m",
    ]
)
_CONDITIONS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["memory", "model", ""]),
        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Is"]),
    },
    optional={"values": st.lists(_VALUES, max_size=2)},
)
_TERMS = st.fixed_dictionaries(
    {},
    optional={
        "matchLabels": st.dictionaries(st.sampled_from(["model", "vendor"]), st.sampled_from(["", "a"])),
        "matchExpressions": st.lists(_CONDITIONS, max_size=2),
    },
)
_SELECTORS = _TERMS | st.tuples(_TERMS, st.lists(_TERMS, max_size=2)).map(
    lambda pair: {**pair[0], "terms": pair[1]}
)
_SHARES = st.fixed_dictionaries(
    {}, optional={"memory": _VALUES | st.integers(-1, 9), "cores": st.sampled_from([-1, 0, 100, 101])}
)


@given(_SELECTORS, st.none() | _SHARES)
def test_the_definition_takes_what_the_parser_takes(selector: dict[str, Any], share: dict[str, Any] | None):
    document = class_of(selector, **({} if share is None else {"share": share}))
    try:
        parse_resource_class(document)
    except ClassError as error:
        if re.fullmatch(r"[0-9]+[.][0-9]+[a-zA-Z]*", str((share or {}).get("memory", ""))):
            return  # parts of a byte, which no pattern finds: the class is not valid then by its status
        found = mistakes("resourceclasses", document)
        assert found, str(error)
    else:
        assert mistakes("resourceclasses", document) == []


@given(_SELECTORS, st.none() | _SHARES)
def test_a_rule_says_what_the_parser_says(selector: dict[str, Any], share: dict[str, Any] | None):
    """Where a rule refuses: the schema has its own words."""
    document = class_of(selector, **({} if share is None else {"share": share}))
    sentences = [one for one in mistakes("resourceclasses", document) if ": " not in one]
    if not sentences:
        return
    with pytest.raises(ClassError) as raised:
        parse_resource_class(document)
    assert str(raised.value).partition(": ")[2] in sentences
