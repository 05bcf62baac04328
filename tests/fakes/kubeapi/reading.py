"""What the node agent's readers make of whole answers."""

from __future__ import annotations

from gigaslice.kube.decode import Change, change_reader, list_reader, list_state, parse_change, read_pod
from gigaslice.kube.object_reader import ObjectReader
from gigaslice.model import Pod

__all__ = ["change_of", "documents", "listed"]


def documents(reader: ObjectReader, text: bytes) -> list:
    """Every document of the text."""
    return [*reader.feed(text), *reader.end()]


def listed(body: bytes) -> tuple[Pod, ...]:
    """The pods of a list."""
    reader = list_reader()
    pods = tuple(pod for one in documents(reader, body) if (pod := read_pod(one)) is not None)
    list_state(reader.envelope)
    return pods


def change_of(line: bytes) -> Change:
    """The one event of a line."""
    (change,) = map(parse_change, documents(change_reader(), line))
    return change
