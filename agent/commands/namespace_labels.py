# SPDX-License-Identifier: Apache-2.0
"""Which Namespaces would need a label for what the annotations of their pods say: before a policy refuses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gigaslice.cluster_commands.cluster import listed
from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.model import ANNOTATIONS, Pod
from gigaslice.core.model.options import PREFIX, Option
from gigaslice.core.text import plain
from gigaslice.kubeapi.client import ApiFailure, KubeClient
from gigaslice.kubeapi.cluster_objects import PODS_PATH, PODS_QUERY
from vcuda.doctor import Finding

__all__ = ["Needs", "as_findings", "needed_labels", "read_needs"]

_NAMESPACES_PATH = "/api/v1/namespaces"
_FORBIDDEN = 403


@dataclass(slots=True)
class Needs:
    """What a Namespace needs. pods: names of those that need it, by label. labels: those that it has; None where they
    may not be read.
    """

    pods: dict[str, list[str]] = field(default_factory=dict)
    labels: Mapping[str, str] | None = None


def needed_labels(pod: Pod, free_cores: int) -> set[str]:
    """The labels that the API server's policy asks of the Namespace of such a pod if it were made now."""
    return {
        row.option.namespace_label
        for row in ANNOTATIONS
        for key in (
            PREFIX + row.name,
            *(f"{PREFIX}{row.name}.{container.name}" for container in pod.containers),
        )
        if key in pod.annotations and not _is_free(row.option, pod.annotations[key], free_cores)
    }


def _is_free(option: Option, text: str, free_cores: int) -> bool:
    """By the text and not by what it means: as the policy does it, for wrong texts too."""
    if option.free_up_to is not None:
        return bool(re.fullmatch("[0-9]{1,9}", text)) and int(text) <= free_cores
    return option.free_values is None or text in option.free_values


async def read_needs(client: KubeClient, free_cores: int) -> dict[str, Needs]:
    """By Namespace, of those with a pod that has not ended and needs a label. Raises ApiFailure."""
    needs: dict[str, Needs] = {}
    async for document in listed(client, PODS_PATH, PODS_QUERY):
        try:
            pod = parse_pod(document)
        except ValueError:
            continue
        for label in needed_labels(pod, free_cores):
            needs.setdefault(pod.namespace, Needs()).pods.setdefault(label, []).append(pod.name)
    if not needs:
        return needs
    try:
        async for document in listed(client, _NAMESPACES_PATH, {}):
            metadata = document.get("metadata") or {}
            if metadata.get("name") in needs:
                needs[metadata["name"]].labels = metadata.get("labels") or {}
    except ApiFailure as error:
        if error.status != _FORBIDDEN:
            raise
    return needs


def as_findings(needs: Mapping[str, Needs]) -> Iterator[Finding]:
    """One line for each label that is missing, with the command that sets it."""
    missing = 0
    for namespace, need in sorted(needs.items()):
        for label, pods in sorted(need.pods.items()):
            if need.labels is not None and need.labels.get(label) == "true":
                continue
            missing += 1
            verb = "needs" if need.labels is not None else "needs, if it has not yet,"
            count = "1 pod" if len(pods) == 1 else f"{len(pods)} pods"
            yield Finding(
                "fail" if need.labels is not None else "warn",
                "namespace",
                plain(f'{namespace} {verb} the label {label}: "true" for {count}, such as {min(pods)}'),
                f"kubectl label namespace {namespace} {label}=true, or leave the annotation out",
            )
    if not missing:
        yield Finding("ok", "namespaces", "no pod that is there needs a label that its Namespace has not")
