# SPDX-License-Identifier: Apache-2.0
"""Events as documents, and which of many repetitions are worth one. Pure: the time is an argument.

The agent reports on pods of its node, the cluster's roles on any object; both write core/v1 Events, which every
version of the API takes and `kubectl describe` shows.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from gigaslice.core.text import plain

__all__ = ["Regarding", "Throttle", "event_document", "event_name", "event_text", "remember"]

_REMEMBERED = 2048  # reports; the oldest are forgotten first
_INTERVALS = (10.0, 60.0, 300.0)  # seconds between the first and second time, second and third, and so on
_OBJECT_BURST, _OBJECT_REFILL = 20.0, 60.0  # events of one object at once; seconds for another one
_BURST, _REFILL = 50.0, 1.0
_MAX_TEXT = 1000  # bytes; the API server takes 1,024
_CLUSTER_SCOPED = "default"  # the namespace of events of objects without one


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that an event is about. field: the part of it, such as spec.containers{main}."""

    kind: str
    namespace: str
    name: str
    uid: str
    api: str = "v1"
    field: str = ""

    @property
    def event_namespace(self) -> str:
        """Where its events are; the API server refuses any other."""
        return self.namespace or _CLUSTER_SCOPED

    def document(self) -> dict[str, str]:
        """Returns the object reference."""
        reference = {"apiVersion": self.api, "kind": self.kind, "name": self.name, "uid": self.uid}
        if self.namespace:
            reference["namespace"] = self.namespace
        if self.field:
            reference["fieldPath"] = self.field
        return reference


@dataclass(frozen=True, slots=True)
class _Bucket:
    tokens: float
    at: float

    def taken(self, now: float, burst: float, refill: float) -> _Bucket | None:
        """What is left after one more, or None when there is none left."""
        tokens = min(burst, self.tokens + (now - self.at) / refill)
        return _Bucket(tokens - 1, now) if tokens >= 1 else None


class Throttle:
    """Which of many repetitions are worth an event. Holds no clock.

    Args:
        burst: Events of all objects together that may come at once.
        refill: Seconds for another one.
    """

    def __init__(self, burst: float = _BURST, refill: float = _REFILL) -> None:
        self._burst = burst
        self._refill = refill
        self._reports: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()
        self._objects: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(burst, 0.0)

    def due(self, uid: str, key: tuple[str, ...], now: float) -> bool:
        """Whether the report KEY on the object UID is to be sent at NOW."""
        last, times = self._reports.get((uid, *key), (0.0, 0))
        if times and now - last < _INTERVALS[min(times, len(_INTERVALS)) - 1]:
            return False
        object_bucket = self._objects.get(uid, _Bucket(_OBJECT_BURST, now)).taken(
            now, _OBJECT_BURST, _OBJECT_REFILL
        )
        shared_bucket = self._all.taken(now, self._burst, self._refill)
        if object_bucket is None or shared_bucket is None:
            return False
        self._all = shared_bucket
        remember(self._objects, uid, object_bucket, _REMEMBERED)
        remember(self._reports, (uid, *key), (now, times + 1), _REMEMBERED)
        return True


def remember(table: OrderedDict, key: object, value: object, most: int) -> None:  # type: ignore[type-arg]
    """Sets a value of TABLE, which keeps the MOST that were set last."""
    table[key] = value
    table.move_to_end(key)
    while len(table) > most:
        table.popitem(last=False)


def event_text(text: str) -> str:
    """Returns TEXT in one line and in as many bytes as the API server takes."""
    return plain(text).encode("utf-8", "replace")[:_MAX_TEXT].decode("utf-8", "ignore")


def event_name(of: str, identity: str) -> str:
    """Returns a name for an event about the object OF: the parts of an RFC 1123 name begin and end with a letter."""
    return f"{of[:200].rstrip('.-')}.{identity}"


def event_document(
    regarding: Regarding,
    name: str,
    *,
    kind: str,
    reason: str,
    text: str,
    stamp: str,
    component: str,
    host: str,
) -> dict[str, Any]:
    """Returns the Event.

    Args:
        regarding: What it is about.
        name: The event's own name.
        kind: "Normal" or "Warning".
        reason: One word in CamelCase.
        text: What happened, as `event_text` makes it.
        stamp: The time, as 2006-01-02T15:04:05Z.
        component: The part that reports, such as "node".
        host: Where it runs.
    """
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": regarding.event_namespace},
        "involvedObject": regarding.document(),
        "type": kind,
        "reason": reason,
        "message": text,
        "source": {"component": f"gigaslice-{component}", "host": host},
        "reportingComponent": f"gigaslice.io/{component}",
        "reportingInstance": host,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
