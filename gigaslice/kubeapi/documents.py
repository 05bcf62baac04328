"""JSON objects of the API server and its clients, read as fast as they come. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from gigaslice.kube.json_text import read_json

__all__ = ["read_document"]


def read_document(text: bytes) -> dict[str, Any]:
    """Returns the JSON object of a text. Raises ValueError where it is none.

    orjson refuses a whole list for half a surrogate pair in one of its objects; what it refuses is read as `read_json`
    does.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        document = read_json(text)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document
