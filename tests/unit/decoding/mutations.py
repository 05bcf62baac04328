# SPDX-License-Identifier: Apache-2.0
"""Damaged objects: one place or several changed as a mistake, another version or malice would."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

__all__ = ["Damage"]

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3.5, -0.0, 1e308, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30,
    "", " ", "x", "0", "-1", "1e99", "8Gi", "99999999999999999999999", "null", "{}", "[", "\x00", "\x1b[31m", "\n",
    "\ud800", "a\udfffb", "\u202e", "é" * 50, "y" * 5000, "../..", "a/b", "Always", "True", "s3://", "²",
    [], {}, [[]], [None], [{}], ["x"], [1, "a"], {"": ""}, {"x": 1}, {"\ud800": "\udc00"}, {"a": {"b": {"c": []}}},
)  # fmt: skip
_NAMES = tuple(one for one in ODD if isinstance(one, str))
_DEEP = 3000


class Damage:
    """Changes made by chance. The same SEED makes the same ones."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)

    def choice(self, seeds: tuple[Any, ...]) -> Any:
        """Returns one of the seeds."""
        return self._chance.choice(seeds)

    def document(self, seed: Any) -> Any:
        """Returns a damaged copy of a document; what is at its root stays of its type."""
        document = copy.deepcopy(seed)
        for _ in range(self._chance.choice((1, 1, 1, 2, 3, 5))):
            self._change(document)
        return document

    def texts(self, seed: dict[str, str]) -> dict[str, str]:
        """Returns a damaged copy of texts by name."""
        found = dict(seed)
        for _ in range(self._chance.choice((1, 1, 2, 3))):
            key = self._chance.choice(tuple(found) or ("",))
            way = self._chance.randrange(4)
            if way == 0:
                found.pop(key, None)
            elif way == 1:
                found[self._text(key)] = found.get(key, "")
            else:
                found[key] = self._text(found.get(key, ""))
        return found

    def text(self, seed: str) -> str:
        """Returns a damaged text; one that is JSON is damaged as such or letter by letter."""
        if self._chance.random() < 0.6:
            return self._json(seed)
        return self._text(seed)

    def octets(self, seed: bytes) -> bytes:
        """Returns damaged bytes; those that are JSON are damaged as such or byte by byte."""
        try:
            if self._chance.random() < 0.6 and seed[:1] in b"{[":
                return self._json(seed.decode()).encode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            pass
        found = bytearray(seed)
        for _ in range(self._chance.choice((1, 1, 2, 4))):
            at = self._chance.randrange(len(found) + 1)
            end = min(len(found), at + self._chance.choice((1, 2, 8, 64)))
            piece = bytes(found[at:end])
            found[at:end] = self._chance.choice(
                (
                    b"",
                    b"\x00",
                    b"\xff",
                    b"\xed\xa0\x80",
                    b"\\ud800",
                    b'"',
                    b"}",
                    b"[",
                    piece * 2,
                    b"NaN",
                    b"1e999",
                    piece[::-1],
                    b"9" * 40,
                )
            )
        return bytes(
            found[: self._chance.randrange(len(found) + 1)] if self._chance.random() < 0.1 else found
        )

    # --- parts --------------------------------------------------------------------------------------------------

    def _json(self, seed: str) -> str:
        try:
            document = json.loads(seed)
        except ValueError:
            return self._text(seed)
        if not isinstance(document, dict | list):
            return self._text(seed)
        if self._chance.random() < 0.01:
            return '{"a":' * _DEEP + seed + "}" * _DEEP
        if self._chance.random() < 0.02:
            return json.dumps(self._odd())
        return json.dumps(self.document(document), ensure_ascii=self._chance.random() < 0.5)

    def _change(self, document: Any) -> None:
        everywhere = _places(document)
        if not everywhere:
            return
        holder, key = self._chance.choice(everywhere)
        value = holder[key]
        ways: tuple[Callable[[], Any], ...] = (
            self._odd,
            self._odd,
            lambda: copy.deepcopy(_get(self._chance.choice(everywhere))),
            lambda: [value],
            lambda: {"x": value},
            lambda: self._near(value),
            lambda: self._near(value),
        )
        way = self._chance.randrange(len(ways) + 3)
        if way < len(ways):
            holder[key] = ways[way]()
        elif way == len(ways) or isinstance(holder, list):
            del holder[key]
        else:
            holder[self._text(key) if way == len(ways) + 1 else self._chance.choice(_NAMES)] = holder.pop(key)

    def _near(self, value: Any) -> Any:
        """What is nearly VALUE, and of its type where it has one."""
        if isinstance(value, str):
            return self._json(value) if value[:1] in ("{", "[") else self._text(value)
        if isinstance(value, bool) or value is None:
            return self._odd()
        if isinstance(value, int | float):
            return self._chance.choice((-value, value + 1, value * 2**40, value * 1.5, str(value), not value))
        if isinstance(value, list):
            return self._chance.choice(
                (value * 2, value[::-1], value[:-1], dict.fromkeys(map(str, value)), None)
            )
        return self._chance.choice((list(value), list(value.values()), {**value, **value}, None))

    def _text(self, text: str) -> str:
        at = self._chance.randrange(len(text) + 1)
        end = self._chance.randrange(at, len(text) + 1)
        piece = self._chance.choice((text[at:end] * 2, text[at:end].upper(), "", *_NAMES))
        return text[:at] + piece + text[end:]

    def _odd(self) -> Any:
        return copy.deepcopy(self._chance.choice(ODD))


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every value of a document, as what holds it and the key there."""
    found: list[tuple[Any, Any]] = []
    holders = [document]
    while holders:
        holder = holders.pop()
        inside = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in inside:
            found.append((holder, key))
            if isinstance(value, dict | list):
                holders.append(value)
    return found


def _get(place: tuple[Any, Any]) -> Any:
    return place[0][place[1]]
