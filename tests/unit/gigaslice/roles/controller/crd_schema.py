# SPDX-License-Identifier: Apache-2.0
"""Checks objects against the definitions that we ship as an API server does: schema first, then the CEL rules.

CEL is evaluated for the small part of it that our rules use, by rewriting an expression as Python. What the real API
server makes of the same objects is tested in tests/cluster.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from types import CodeType
from typing import Any

import jsonschema
import yaml

FOLDER = Path(__file__).resolve().parents[5] / "deploy/helm/gigaslice/files/crds"
_WORDS = {"&&": " and ", "||": " or ", "true": "True", "false": "False"}
_TOKEN = re.compile(
    r'"[^"]*"|&&|\|\||!=|!|has\((?P<of>[\w.]+)\.(?P<key>\w+)\)|self(?:\.(?!matches|startsWith|contains)\w+)*|\w+|.'
)


class _Text(str):
    def matches(self, pattern: str) -> bool:
        return re.search(pattern, self) is not None

    def startsWith(self, text: str) -> bool:  # noqa: N802  (CEL's name)
        return self.startswith(text)

    def contains(self, text: str) -> bool:
        return text in self


@functools.cache
def definition(plural: str) -> dict[str, Any]:
    (path,) = FOLDER.parent.glob(f"crds*/{plural}.gigaslice.io.yaml")
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def schema(plural: str) -> dict[str, Any]:
    found: dict[str, Any] = definition(plural)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def mistakes(plural: str, document: dict[str, Any]) -> list[str]:
    """What an API server would refuse DOCUMENT for: the schema's messages, and only without any the rules'."""
    found = [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in _validator(plural).iter_errors(document)
    ]
    return found or _rules(schema(plural), document)


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
        if not evaluate(rule["rule"], value):
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
    value = _Text(value) if isinstance(value, str) else value
    names = {"self": value, "size": len, "int": int, "string": _Text, "type": _type, "get": _get, "has": _has}
    return eval(_compiled(expression), {"__builtins__": {}}, names)


@functools.cache
def _compiled(expression: str) -> CodeType:
    return compile(_python(expression).strip(), expression, "eval")


def _python(expression: str) -> str:
    parts = []
    for token in _TOKEN.finditer(" ".join(expression.split())):
        text = token[0]
        if token["key"]:
            parts.append(f"has({_path(token['of'])}, {token['key']!r})")
        elif text.startswith("self"):
            parts.append(_path(text))
        elif text == "!":
            parts.append(" not ")
        else:
            parts.append(_WORDS.get(text, text))
    return "".join(parts)


def _path(text: str) -> str:
    found, *keys = text.split(".")
    for key in keys:
        found = f"get({found}, {key!r})"
    return found


def _get(value: Any, key: str) -> Any:
    found = value[key]
    if isinstance(found, list):
        return [_Text(one) if isinstance(one, str) else one for one in found]
    return _Text(found) if isinstance(found, str) else found


def _has(value: Any, key: str) -> bool:
    return key in value


def _type(value: Any) -> Any:
    return _Text if isinstance(value, str) else type(value)
