# SPDX-License-Identifier: Apache-2.0
"""Fields of JSON documents that others wrote, each of the type that it should have. Pure.

A field that is missing or of another type reads as an empty one: a status or a label that cannot be understood must not
hide the object around it. Pods are read by `gigaslice.core.kube.pod_fields`, which refuses such a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["object_at", "objects_at", "strings_at", "text_at"]


def object_at(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns the object at KEY."""
    field = document.get(key)
    return field if isinstance(field, dict) else {}


def objects_at(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Returns the objects of the list at KEY, without its other entries."""
    field = document.get(key)
    return [element for element in field if isinstance(element, dict)] if isinstance(field, list) else []


def text_at(document: Mapping[str, Any], key: str) -> str:
    """Returns the text at KEY."""
    field = document.get(key)
    return field if isinstance(field, str) else ""


def strings_at(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Returns the texts of the list at KEY, without its other entries."""
    field = document.get(key)
    return tuple(element for element in field if isinstance(element, str)) if isinstance(field, list) else ()
