# SPDX-License-Identifier: Apache-2.0
"""One document of a manifest: the pods in it, wherever they stand, quotas, and names of others anywhere else. Pure.

A pod is what has `spec.containers`, be it the document or something in it: templates of Deployments and Jobs, of
Kubeflow's and Ray's kinds, items of a List. Nothing depends on the kind, but for ResourceQuota.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gigaslice.core.kube.pod_fields import count_of
from gigaslice.core.rewrite.edits import Edit, Note, Path, Replace, number_like, value_at
from gigaslice.core.rewrite.gpu_request import RewriteSettings
from gigaslice.core.rewrite.names import DIALECTS, NAMES, SCHEDULERS, ForeignPlace
from gigaslice.core.rewrite.pod import rewrite_pod

__all__ = ["DocumentRewrite", "rewrite_document"]

_QUOTA = "ResourceQuota"
_RESOURCES = frozenset(row.name for row in NAMES if row.place is ForeignPlace.RESOURCE)
_FOREIGN = _RESOURCES | {row.name for row in NAMES if row.place is ForeignPlace.ANNOTATION}


@dataclass(frozen=True, slots=True)
class DocumentRewrite:
    """What becomes of a document. pods: how many of its pods are rewritten; left: how many are left as they are."""

    edits: tuple[Edit, ...] = ()
    notes: tuple[Note, ...] = ()
    pods: int = 0
    left: int = 0


def rewrite_document(document: object, settings: RewriteSettings) -> DocumentRewrite:
    """Decides about a document, whose size whoever has read it has bounded."""
    edits: list[Edit] = []
    notes: list[Note] = []
    pods = left = 0
    for path, value in _walk(document):
        if _is_pod(value):
            rewritten = rewrite_pod(document, path, settings)  # type: ignore[arg-type]  # a mapping, as its part is one
            edits += rewritten.edits
            notes += rewritten.notes
            pods += bool(rewritten.edits)
            left += any(note.left for note in rewritten.notes)
        elif isinstance(value, dict) and value.get("kind") == _QUOTA:
            for edit, note in _quota(value, path, settings):
                edits += [edit] if edit else []
                notes += [note] if note else []
        else:
            notes += _elsewhere(path, value)
    return DocumentRewrite(tuple(edits), tuple(notes), pods, left)


def _walk(document: object) -> Iterator[tuple[Path, Any]]:
    """Every value of a document, in any order; of a pod and of a quota not what is below it."""
    waiting: list[tuple[Path, Any]] = [((), document)]
    while waiting:
        path, value = waiting.pop()
        yield path, value
        if _is_pod(value) or (isinstance(value, dict) and value.get("kind") == _QUOTA):
            continue
        parts = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        waiting += [((*path, key), part) for key, part in parts]


def _is_pod(value: object) -> bool:
    containers = value_at(value, ("spec", "containers"))
    return isinstance(containers, list) and any(
        isinstance(container, dict) and "name" in container for container in containers
    )


def _quota(
    quota: Mapping[str, Any], path: Path, settings: RewriteSettings
) -> Iterator[tuple[Edit | None, Note | None]]:
    """The sums of memory of a ResourceQuota; what else it counts is left."""
    hard = value_at(quota, ("spec", "hard"))
    ours = f"requests.{settings.units.memory_resource}"
    written = isinstance(hard, dict) and ours in hard
    for key, amount in hard.items() if isinstance(hard, dict) else ():
        prefix, _, name = str(key).partition(".")
        if prefix not in ("requests", "limits") or name not in _RESOURCES:
            continue
        where = (*path, "spec", "hard", key)
        number = count_of(amount)
        unit = next((dialect.memory_unit for dialect in DIALECTS if dialect.memory == name), 0)
        if not unit or number is None or written:
            yield (
                None,
                Note(where, f"{key} has no counterpart that is sure; write quotas of {ours}", left=True),
            )
            continue
        written = True
        slices = -(-number * unit * settings.memory_factor // settings.units.slice_bytes)
        text = f"{key}: {amount} is {ours}: {slices}, which Kubernetes compares with what pods ask for, rounded up"
        yield Replace(where, ours, number_like(amount, slices)), Note(where, text)


def _elsewhere(path: Path, value: object) -> Iterator[Note]:
    """Names of others where no pod is: what has no effect there, or what a kind has that is not understood."""
    last = path[-1] if path else ""
    if last in _FOREIGN or (isinstance(last, str) and last.startswith("hami.io/")):
        yield Note(path, f"{last} stands where no pod with spec.containers is; rewrite it by hand", left=True)
    elif isinstance(value, str) and (
        value in _RESOURCES or (last == "schedulerName" and value in SCHEDULERS)
    ):
        yield Note(
            path, f"{value} stands where no pod with spec.containers is; rewrite it by hand", left=True
        )
