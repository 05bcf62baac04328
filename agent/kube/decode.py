"""Pods and watch events as the API server writes them, to the values that the agent works with. Pure.

A pod's document is some ten kilobytes of which a few dozen bytes matter: each is cut down as soon as it is complete, so
that a list of hundreds never exists in full beside its text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.model import ContainerKind, Pod, PodContainer

__all__ = ["Change", "Gone", "PodList", "count_of", "parse_change", "parse_list", "parse_pod"]

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_NOISE = "kubectl.kubernetes.io/last-applied-configuration"
_MAX_ANNOTATION = 4096  # characters; nothing that is meant for the agent is longer
GONE = 410


class Gone(Exception):  # noqa: N818  (the API's own word: the version is too old, ask for a list)
    """The watch cannot go on from where it was."""


@dataclass(frozen=True, slots=True)
class PodList:
    """All pods at one version of the cluster's state."""

    pods: tuple[Pod, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a watch. kind: "ADDED", "MODIFIED", "DELETED" or "BOOKMARK"; pod: None for a bookmark."""

    kind: str
    version: str
    pod: Pod | None


def parse_list(body: bytes) -> PodList:
    """A PodList. Raises ValueError for anything else."""
    document = json.loads(body, object_hook=_cut)
    if not isinstance(document, dict) or not isinstance(document.get("items", []), list | None):
        raise ValueError("the API server's answer is no list of pods")
    pods = tuple(pod for pod in document.get("items") or () if isinstance(pod, Pod))
    return PodList(pods, str(document["metadata"]["resourceVersion"]))


def parse_change(line: bytes) -> Change:
    """One line of a watch. Raises Gone, or ValueError for what is no event."""
    document = json.loads(line)
    kind, content = document["type"], document["object"]
    if kind == "ERROR":
        if content.get("code") == GONE:
            raise Gone(str(content.get("message", "")))
        raise ValueError(f"the watch ended: {content.get('message', content)}")
    version = str(content["metadata"]["resourceVersion"])
    if kind not in ("ADDED", "MODIFIED", "DELETED"):
        return Change(kind, version, None)
    return Change(kind, version, _pod_or_none(content))


def parse_pod(document: Mapping[str, Any]) -> Pod:
    """The Pod of a document. Raises KeyError, TypeError or ValueError for what is none."""
    metadata, spec = document["metadata"], document["spec"]
    init = [
        _container(one, ContainerKind.SIDECAR if one.get("restartPolicy") == "Always" else ContainerKind.INIT)
        for one in spec.get("initContainers") or ()
    ]
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        annotations={
            str(key): str(value)
            for key, value in (metadata.get("annotations") or {}).items()
            if key != _NOISE and len(str(value)) <= _MAX_ANNOTATION
        },
        containers=(*init, *(_container(one, ContainerKind.APP) for one in spec["containers"])),
        phase=(document.get("status") or {}).get("phase") or "Pending",
        controlled=any(owner.get("controller") for owner in metadata.get("ownerReferences") or ()),
        ending="deletionTimestamp" in metadata,
    )


def count_of(quantity: object) -> int:
    """A count as Kubernetes may print it: "8", "5k", 8. Raises ValueError for what is none."""
    text = str(quantity)
    digits = text.rstrip("kKMGi")
    if not digits.isdigit() or text[len(digits) :] not in _SUFFIXES:
        raise ValueError(f"{text!r} is no count")
    return int(digits) * _SUFFIXES[text[len(digits) :]]


def _cut(document: dict[str, Any]) -> Any:
    """Called for every object of a list from the inside out: pods become values, what is never used goes."""
    document.pop("managedFields", None)
    if "spec" in document and "metadata" in document and "uid" in document["metadata"]:
        return _pod_or_none(document)
    return document


def _pod_or_none(document: dict[str, Any]) -> Pod | None:
    """A pod that cannot be understood is one that nobody knows: the others must not be lost for it."""
    try:
        return parse_pod(document)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _container(document: Mapping[str, Any], kind: ContainerKind) -> PodContainer:
    resources = document.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    counts = {name: count_of(value) for name, value in asked.items() if "/" in name}
    return PodContainer(document["name"], kind, counts)
