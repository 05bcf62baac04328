# SPDX-License-Identifier: Apache-2.0
"""Selectors and amounts: every vector, and what is refused."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.classes.amounts import amount_of
from gigaslice.core.classes.resource_class import ClassShare, parse_resource_class
from gigaslice.core.classes.selector import ClassError, parse_selector
from gigaslice.core.errors import SizeError
from gigaslice.core.units import parse_bytes

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "vectors.json").read_text(encoding="utf-8")
)["resource_class"]
GIB = 1 << 30


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["id"] for vector in VECTORS])
def test_vectors(vector: dict[str, Any]) -> None:
    selector = parse_selector(vector["selector"])
    assert [selector.matches(properties) for properties in vector["props"]] == vector["match"]
    again = parse_selector(selector.document())
    assert [again.matches(properties) for properties in vector["props"]] == vector["match"]


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0), ("875", 875), ("10Gi", 10 * GIB), ("10GiB", 10 * GIB), ("11441MiB", 11441 << 20), ("1.5KiB", 1536),
        ("10GB", None), ("10G", 10 * GIB), ("1kB", None), ("1k", 1024), ("100m", Fraction(1, 10)), ("-1", -1),
        ("1e3", 1000), ("1E-1", Fraction(1, 10)), ("2E", 2 << 60), ("1Ei", 1 << 60), (".5", Fraction(1, 2)),
        ("", None), ("Gi", None), ("10 GiB", None), ("10gib", None), ("0x10", None), ("1/2", None),
        ("1K", 1024), ("1KB", None), ("٣", None), ("nan", None), ("1" * 65, None),
    ],
)  # fmt: skip
def test_amounts(text: str, amount: Fraction | int | None) -> None:
    assert amount_of(text) == amount


@given(st.from_regex(r"[0-9]{1,6}([.][0-9]{1,4})?([KMGTk]i?B?|B)", fullmatch=True))
def test_an_amount_is_no_other_size_than_an_annotations(text: str) -> None:
    """What is a size with a unit in both is the same number in both, and what is refused for being two numbers is none
    here. A number alone is just that in a selector, since not every property is a size.
    """
    try:
        size = parse_bytes(text)
    except SizeError:
        assert text[-2:] not in ("KB", "kB", "MB", "GB", "TB") or amount_of(text) is None
    else:
        assert amount_of(text) in (size, None)
        assert amount_of(text) is not None or text.endswith(("B", "ki")), "kiB, kB and B are sizes alone"


def holds(operator: str, values: list[str], **properties: str) -> bool:
    return parse_selector(
        {"matchExpressions": [{"key": "key", "operator": operator, "values": values}]}
    ).matches(properties)


def test_operators() -> None:
    assert holds("NotIn", ["a"]) and holds("NotIn", ["a"], key="b") and not holds("NotIn", ["a"], key="a")
    assert holds("DoesNotExist", []) and not holds("DoesNotExist", [], key="")
    assert holds("Exists", [], key="") and not holds("Exists", [])
    assert holds("Lt", ["1Gi"], key="1023Mi") and not holds("Lt", ["1Gi"], key="1024Mi")
    assert not holds("Lt", ["1Gi"]) and not holds("Gt", ["1Gi"], key="much")
    assert not holds("In", ["10Gi"], key="10240Mi"), "In compares texts"


@pytest.mark.parametrize("selector", [None, {}, [], [{}], {"matchLabels": {}, "matchExpressions": []}])
def test_nothing_selects_everything(selector: object) -> None:
    assert parse_selector(selector).matches({})


@pytest.mark.parametrize(
    ("selector", "sentence"),
    [
        ("gpu", "write a list"),
        ([3], "write an object with matchLabels"),
        ({"matchLabel": {}}, "matchLabel: write matchLabels or matchExpressions"),
        ({"matchLabels": {"memory": 1}}, 'such as "1" in place of 1'),
        ({"matchLabels": []}, "write properties with their values"),
        ({"matchExpressions": {}}, "write a list"),
        ({"matchExpressions": [{"operator": "In", "values": ["a"]}]}, "name of a property"),
        ({"matchExpressions": [{"key": "a", "operator": "Equals", "values": ["a"]}]}, "one of In, NotIn"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}, "one value or more"),
        ({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1", "2"]}]}, "exactly one amount"),
        ({"matchExpressions": [{"key": "a", "operator": "Lt", "values": ["big"]}]}, "exactly one amount"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["1"]}]}, "takes no values"),
    ],
)
def test_refused_selectors(selector: object, sentence: str) -> None:
    with pytest.raises(ClassError) as caught:
        parse_selector(selector)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def a_class(name: object = "nvidia.h100", **spec: object) -> dict[str, object]:
    return {"metadata": {"name": name}, "spec": spec}


def test_a_class_with_a_share() -> None:
    found = parse_resource_class(a_class(share={"memory": "8Gi", "cores": 30}, selector={}))
    assert (found.name, found.share, found.managed) == ("nvidia.h100", ClassShare(8 * GIB, 30), False)
    assert parse_resource_class(a_class()).share is None
    labelled = {"metadata": {"name": "a", "labels": {"app.kubernetes.io/managed-by": "gigaslice-controller"}}}
    assert parse_resource_class(labelled).managed


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (a_class("NVIDIA"), "metadata.name"),
        (a_class("a" * 64), "metadata.name"),
        (a_class(None), "metadata.name"),
        ({"metadata": {"name": "a"}, "spec": 3}, "spec: write an object"),
        (a_class(share=8), "spec.share: write an object"),
        (a_class(share={"cores": 30}), "spec.share.memory"),
        (a_class(share={"memory": "0"}), "spec.share.memory"),
        (a_class(share={"memory": "much"}), "spec.share.memory"),
        (a_class(share={"memory": True}), "spec.share.memory"),
        (
            a_class(share={"memory": "2000000KB"}),
            "spec.share.memory: write a size above 0, such as 8GiB; 8G and 8 are 8GiB, and",
        ),
        (a_class(share={"memory": "8GB"}), "spec.share.memory"),
        (a_class(share={"memory": "8e9"}), "spec.share.memory"),
        (a_class(share={"memory": -1}), "spec.share.memory"),
        (a_class(share={"memory": 1.5}), "spec.share.memory"),
        (a_class(share={"memory": "128T"}), "spec.share.memory"),
        (a_class(share={"memory": "8Gi", "cores": 101}), "spec.share.cores"),
        (a_class(share={"memory": "8Gi", "cores": "30"}), "spec.share.cores"),
    ],
)
def test_refused_classes(document: dict[str, object], sentence: str) -> None:
    with pytest.raises(ClassError, match=sentence):
        parse_resource_class(document)


def test_terms_of_an_object_are_a_list_of_terms() -> None:
    terms = [{"matchLabels": {"model": "a"}}, {"matchLabels": {"model": "b"}}]
    assert parse_selector({"terms": terms}) == parse_selector(terms)
    assert parse_selector({"terms": None, "matchLabels": {"model": "a"}}) == parse_selector(terms[0])
    with pytest.raises(ClassError, match="write either terms, which are ORed, or matchLabels"):
        parse_selector({"terms": terms, "matchLabels": {}})
    with pytest.raises(ClassError, match=r"spec\.selector\.terms: write one term or more"):
        parse_selector({"terms": []})
    with pytest.raises(ClassError, match=r"spec\.selector\.terms\[0\]\.matchExpressions\[0\]\.operator"):
        parse_selector({"terms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]})
