# SPDX-License-Identifier: Apache-2.0
"""Checks objects against the definitions that we ship as an API server does: schema first, then the CEL rules.

What the real API server makes of the same objects is tested in tests/cluster. Where CEL cannot be evaluated, under
Python 3.10, a test whose object gets past the schema is skipped.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jsonschema
import yaml

FOLDER = Path(__file__).resolve().parents[5] / "deploy/helm/gigaslice/files/crds"
Document = dict[str, Any]


@functools.cache
def definition(plural: str) -> Document:
    (path,) = FOLDER.parent.glob(f"crds*/{plural}.gigaslice.io.yaml")
    found: Document = yaml.safe_load(path.read_text())
    return found


def schema(plural: str) -> Document:
    found: Document = definition(plural)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def mistakes(plural: str, document: Document) -> list[str]:
    """What an API server would refuse DOCUMENT for under the definition of today: see `mistakes_under`."""
    return _mistakes(_validator(plural), schema(plural), document)


def mistakes_under(schema: Document, document: Document) -> list[str]:
    """What an API server would refuse DOCUMENT for: the schema's messages, and only without any the rules'."""
    return _mistakes(jsonschema.Draft202012Validator(_strict(schema)), schema, document)


def _mistakes(validator: jsonschema.Draft202012Validator, schema: Document, document: Document) -> list[str]:
    found = [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in validator.iter_errors(document)
    ]
    return found or _rules(schema, document)


@functools.cache
def _validator(plural: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(_strict(schema(plural)))


def _strict(node: Any) -> Any:
    """The schema as JSON Schema: unknown fields are mistakes, as for kubectl; integers or texts are both."""
    if isinstance(node, list):
        return [_strict(one) for one in node]
    if not isinstance(node, dict):
        return node
    found = {key: _strict(value) for key, value in node.items() if not key.startswith("x-")}
    if node.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    if "properties" in node and isinstance(node.get("type"), str):
        found["additionalProperties"] = False
    return found


def _rules(node: dict[str, Any], value: Any) -> list[str]:
    found = []
    for rule in node.get("x-kubernetes-validations", ()):
        if evaluate(rule["rule"], value) is not True:
            text = rule.get("messageExpression")
            found.append(evaluate(text, value) if text else rule["message"])
    if isinstance(value, dict):
        for key, one in value.items():
            below = node.get("properties", {}).get(key) or node.get("additionalProperties")
            found += _rules(below, one) if isinstance(below, dict) else []
    if isinstance(value, list):
        for one in value:
            found += _rules(node["items"], one)
    return found


def evaluate(expression: str, value: Any) -> Any:
    """The value of a CEL EXPRESSION for VALUE as self."""
    from tests.unit.manifests.cel import (
        value_of,
    )  # here: it skips the test that comes to it under Python 3.10

    return value_of(expression, {"self": value})
