# SPDX-License-Identifier: Apache-2.0
"""What the node agent's informer makes of whole answers."""

from __future__ import annotations

from agent.apiserver.node_pods import node_pods
from gigaslice.core.kube.object_reader import Document, ObjectReader
from gigaslice.core.model import Pod
from gigaslice.kubeapi.client import KubeClient
from gigaslice.kubeapi.documents import DocumentReader
from gigaslice.kubeapi.informer import Informer, _list_state

__all__ = ["after_events", "documents_of", "listed"]


def documents_of(reader: ObjectReader | DocumentReader, text: bytes) -> list[Document]:
    """Every document of the text."""
    return [*reader.feed(text), *reader.end()]


def listed(body: bytes) -> tuple[Pod, ...]:
    """The pods of a list. Raises ApiFailure and ValueError."""
    pods = _pods()
    reader = pods._decoder.page()
    entries = pods._no_entries()
    pods._add(documents_of(reader, body), entries)
    _list_state(reader.envelope)
    return tuple(entry.value for entry in entries.values())


def after_events(*lines: bytes) -> Informer[Pod]:
    """The informer after these events of a watch. Raises ApiFailure and ValueError."""
    pods = _pods()
    for document in documents_of(pods._decoder.watch(), b"\n".join(lines)):
        pods._apply(document)
    return pods


def _pods() -> Informer[Pod]:
    return node_pods(KubeClient.__new__(KubeClient), "node-a", lambda: None)
