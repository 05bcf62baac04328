# SPDX-License-Identifier: Apache-2.0
"""CEL as the API server evaluates it: a ValidatingAdmissionPolicy on one request, and single expressions."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest

cel = pytest.importorskip("cel_expr_python.cel", reason="cel-expr-python needs Python 3.11")
ext_strings = pytest.importorskip("cel_expr_python.ext.ext_strings")
ext_optional = pytest.importorskip("cel_expr_python.ext.ext_optional")

Document = dict[str, Any]
_NAMES = ("object", "oldObject", "request", "namespaceObject", "params", "variables", "self")


@dataclass(frozen=True)
class Request:
    """A request about an object.

    subresource: "" or one below the resource; labels: of the namespace; user: who asks; node_name: of the pod whose
    token asks, "" where the token names none.
    """

    operation: str
    new: Document | None
    old: Document | None = None
    subresource: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    user: str = "tenant"
    resource: str = "pods"
    node_name: str = ""


class Policy:
    """The policy of DOCUMENT: expressions are compiled once."""

    def __init__(self, document: Document) -> None:
        environment = _environment()
        spec = document["spec"]
        self._rules = spec["matchConstraints"]["resourceRules"]
        self._conditions, self._variables = (
            [(one["name"], environment.compile(one["expression"])) for one in spec.get(field, ())]
            for field in ("matchConditions", "variables")
        )
        self._validations = [
            (environment.compile(one["expression"]), one["message"]) for one in spec["validations"]
        ]

    def refusals(self, request: Request) -> list[str]:
        """The messages of the rules that the request breaks. Raises AssertionError for an expression that fails."""
        if not self.matches(request):
            return []
        known = self._known(request)
        if not all(_value(condition, known) is True for _, condition in self._conditions):
            return []
        variables: dict[str, Any] = {}
        for name, expression in self._variables:
            variables[name] = _value(expression, {**known, "variables": variables})
        known["variables"] = variables
        return [message for expression, message in self._validations if _value(expression, known) is not True]

    def matches(self, request: Request) -> bool:
        """Whether the API server asks the policy about such a request at all."""
        resources = {"/".join(filter(None, (request.resource, request.subresource)))}
        if request.subresource:
            resources.add(f"{request.resource}/*")
        return any(
            not resources.isdisjoint(rule["resources"])
            and not {request.operation, "*"}.isdisjoint(rule["operations"])
            for rule in self._rules
        )

    @staticmethod
    def _known(request: Request) -> Document:
        user: Document = {"username": request.user}
        if request.node_name:
            user["extra"] = {"authentication.kubernetes.io/node-name": [request.node_name]}
        return {
            "object": request.new,
            "oldObject": request.old,
            "request": {
                "operation": request.operation,
                "subResource": request.subresource,
                "userInfo": user,
            },
            "namespaceObject": {"metadata": {"name": "team", "labels": dict(request.labels)}},
            "variables": {},
        }


def value_of(expression: str, known: Document) -> Any:
    """The value of one EXPRESSION, with what is KNOWN by the names that policies and definitions have."""
    return _value(_compiled(expression), known)


@functools.cache
def _compiled(expression: str) -> Any:
    return _environment().compile(expression)


@functools.cache
def _environment() -> Any:
    return cel.NewEnv(
        variables=dict.fromkeys(_NAMES, cel.Type.DYN),
        extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()],
    )


def _value(expression: Any, known: Document) -> Any:
    """Of a map or a list as Python's own: what is put in again must be one."""
    found = expression.eval(data=known)
    assert "ERROR" not in str(found.type()), found.value()
    return found.plain_value()
