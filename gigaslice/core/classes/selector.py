# SPDX-License-Identifier: Apache-2.0
"""Selectors over the properties of a GPU: terms of conditions, in the grammar of node selectors. Pure.

A selector is one disjunction of conjunctions, whatever way it was written: `matchLabels` is a condition `In` with one
value. There is nothing else in it, so it can be compiled to another language condition by condition. A property that is
absent, or no amount where one is compared, is no match and no error; a selector that can never be meant is refused with
the sentence of what to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gigaslice.core.classes.amounts import amount_of
from gigaslice.core.errors import InputError

__all__ = ["ClassError", "Operator", "Requirement", "Selector", "Term", "parse_selector"]

_MOST = 64  # terms, conditions, values
_LONGEST = 256  # characters of a key or value


class ClassError(InputError):
    """A resource class that cannot be used; the text says what to write instead."""


class Operator(Enum):
    """How a property is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


_NO_VALUES = (Operator.EXISTS, Operator.DOES_NOT_EXIST)
_ONE_VALUE = (Operator.GT, Operator.LT)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One property compared with values: none for Exists and DoesNotExist, one for Gt and Lt, else one or more."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, properties: Mapping[str, str]) -> bool:
        """Whether the properties of a GPU meet it."""
        value = properties.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
        have, bound = amount_of(value or ""), amount_of(self.values[0])
        if have is None or bound is None:
            return False
        return have > bound if self.operator is Operator.GT else have < bound


@dataclass(frozen=True, slots=True)
class Term:
    """Conditions that must all hold; none holds for every GPU."""

    conditions: tuple[Requirement, ...] = ()

    def holds(self, properties: Mapping[str, str]) -> bool:
        """Whether the properties of a GPU meet all of its conditions."""
        return all(condition.holds(properties) for condition in self.conditions)


@dataclass(frozen=True, slots=True)
class Selector:
    """Terms of which one must hold. No term at all selects every GPU."""

    terms: tuple[Term, ...] = ()

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether it selects a GPU with these properties."""
        return not self.terms or any(term.holds(properties) for term in self.terms)

    @property
    def keys(self) -> frozenset[str]:
        """The properties that it looks at."""
        return frozenset(condition.key for term in self.terms for condition in term.conditions)

    def document(self) -> list[dict[str, Any]]:
        """Returns it as an API object writes it, as a list of terms."""
        return [
            {
                "matchExpressions": [
                    {
                        "key": condition.key,
                        "operator": condition.operator.value,
                        "values": list(condition.values),
                    }
                    for condition in term.conditions
                ]
            }
            for term in self.terms
        ]


def parse_selector(document: object) -> Selector:
    """Reads a selector: a term, or several as `terms` of an object, which is what the API takes, or as a bare list.

    Raises:
        ClassError: It is none.
    """
    if document is None:
        return Selector()
    if isinstance(document, Mapping) and document.get("terms") is None:
        term = _term("spec.selector", {key: document[key] for key in document if key != "terms"})
        return Selector((term,)) if term.conditions else Selector()
    where, terms = "spec.selector", document
    if isinstance(document, Mapping):
        where, terms = "spec.selector.terms", document["terms"]
        if len(document) > 1:
            raise ClassError(
                "spec.selector: write either terms, which are ORed, or matchLabels and matchExpressions"
            )
        if not _list(where, terms):
            raise ClassError(f"{where}: write one term or more")
    return Selector(tuple(_term(f"{where}[{i}]", term) for i, term in enumerate(_list(where, terms))))


def _term(where: str, document: object) -> Term:
    if not isinstance(document, Mapping):
        raise ClassError(f"{where}: write an object with matchLabels or matchExpressions")
    unknown = sorted(str(key) for key in document if key not in ("matchLabels", "matchExpressions"))
    if unknown:
        raise ClassError(f"{where}.{unknown[0][:60]}: write matchLabels or matchExpressions")
    labels = document.get("matchLabels")
    if labels is None:
        labels = {}
    if not isinstance(labels, Mapping):
        raise ClassError(
            f'{where}.matchLabels: write properties with their values, such as model: "Tesla T4"'
        )
    requirements = [
        Requirement(_key(f"{where}.matchLabels", key), Operator.IN, (_value(f"{where}.matchLabels", value),))
        for key, value in labels.items()
    ]
    expressions = document.get("matchExpressions")
    if expressions is not None:
        name = f"{where}.matchExpressions"
        requirements += [
            _condition(f"{name}[{i}]", expression) for i, expression in enumerate(_list(name, expressions))
        ]
    if len(requirements) > _MOST:
        raise ClassError(f"{where}: write at most {_MOST} conditions")
    return Term(tuple(requirements))


def _condition(where: str, document: object) -> Requirement:
    if not isinstance(document, Mapping):
        raise ClassError(f"{where}: write an object with key, operator and values")
    key = _key(where, document.get("key"))
    try:
        operator = Operator(document.get("operator"))
    except ValueError:
        names = ", ".join(operator.value for operator in Operator)
        raise ClassError(f"{where}.operator: write one of {names}") from None
    values = tuple(
        _value(f"{where}.values", text) for text in _list(f"{where}.values", document.get("values") or ())
    )
    if operator in _NO_VALUES and values:
        raise ClassError(f"{where}.values: {operator.value} takes no values; leave them out")
    if operator in _ONE_VALUE and (len(values) != 1 or amount_of(values[0]) is None):
        raise ClassError(f"{where}.values: {operator.value} takes exactly one amount, such as 10GiB")
    if operator in (Operator.IN, Operator.NOT_IN) and not values:
        raise ClassError(f"{where}.values: {operator.value} takes one value or more")
    return Requirement(key, operator, values)


def _list(where: str, document: object) -> Sequence[object]:
    if not isinstance(document, Sequence) or isinstance(document, str | bytes) or len(document) > _MOST:
        raise ClassError(f"{where}: write a list of at most {_MOST}")
    return document


def _key(where: str, key: object) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST:
        raise ClassError(f"{where}: write the name of a property as key, such as model or memory")
    return key


def _value(where: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ClassError(f'{where}: write values as texts, such as "1" in place of 1')
    return value
