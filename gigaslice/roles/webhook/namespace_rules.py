# SPDX-License-Identifier: Apache-2.0
"""What holds in a namespace: which of the two APIs its pods get GPUs by, and what forbids that they get them. Pure.

A label of the Namespace says it, and the controller's setting where there is no label. A label that says neither is a
mistake and no default: a pod that got GPUs by the other API would go past the quotas of its namespace.

A ResourceQuota on the resource counts nothing once pods have claims in its place. So a namespace with such a quota gets
no claims, unless a label says that it may be ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gigaslice.core.claims.templates import CLASS
from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.cluster.names import CLASS_PREFIX
from gigaslice.core.kube.fields import object_at, text_at
from gigaslice.core.text import plain

__all__ = [
    "API_LABEL",
    "DEVICE_PLUGIN",
    "DRA",
    "CountingQuota",
    "NamespaceRules",
    "namespace_rules",
    "parse_labels",
    "parse_quota",
]

DRA, DEVICE_PLUGIN = "dra", "device-plugin"
API_LABEL = "gigaslice.io/api"
QUOTA_LABEL = "gigaslice.io/resource-quota"
CLASS_LABEL = "gigaslice.io/require-class"
_LABELS = (API_LABEL, QUOTA_LABEL, CLASS_LABEL)
DEVICES_QUOTA = f"{CLASS}.deviceclass.resource.k8s.io/devices"
_MOST = 3  # quotas that are named


@dataclass(frozen=True, slots=True)
class CountingQuota:
    """A ResourceQuota that counts resources of ours. keys: under which, as it writes them."""

    namespace: str
    name: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NamespaceRules:
    """What holds in a namespace. claims: whether pods get claims. mistakes: why none that asks for GPUs is taken."""

    claims: bool
    mistakes: tuple[str, ...] = field(default=())


def parse_labels(document: Mapping[str, Any]) -> dict[str, str]:
    """Returns the labels of a Namespace that matter here."""
    labels = object_at(object_at(document, "metadata"), "labels")
    return {key: value for key in _LABELS if isinstance(value := labels.get(key), str)}


def parse_quota(document: Mapping[str, Any], units: ClusterUnits) -> CountingQuota | None:
    """Returns a ResourceQuota; None for one that counts nothing of ours."""
    metadata, hard = object_at(document, "metadata"), object_at(object_at(document, "spec"), "hard")
    keys = tuple(sorted(key for key in hard if _counts(key, units)))
    return CountingQuota(text_at(metadata, "namespace"), text_at(metadata, "name"), keys) if keys else None


def namespace_rules(
    namespace: str, labels: Mapping[str, str], quotas: Iterable[CountingQuota], default: str
) -> NamespaceRules:
    """Returns what holds in a namespace.

    Args:
        namespace: Its name.
        labels: Its labels.
        quotas: Those in it that count something of ours.
        default: The API where no label says it.
    """
    api = labels.get(API_LABEL, default)
    if api not in (DRA, DEVICE_PLUGIN):
        return NamespaceRules(
            False,
            (
                f'the label {API_LABEL} of Namespace {namespace} says "{plain(api)}"; write {DRA} or {DEVICE_PLUGIN} '
                f"there, or remove it, which stands for {default}",
            ),
        )
    if api == DEVICE_PLUGIN:
        return NamespaceRules(claims=False)
    mistakes = []
    if labels.get(CLASS_LABEL) == "true":
        mistakes.append(
            f"Namespace {namespace} has the label {CLASS_LABEL}, and GPU classes are no claims yet; remove that label, "
            f"or write {API_LABEL}: {DEVICE_PLUGIN}"
        )
    counting = sorted(quotas, key=lambda quota: quota.name)
    if counting and labels.get(QUOTA_LABEL) != "ignored":
        named = " and ".join(f"{quota.name} ({', '.join(quota.keys)})" for quota in counting[:_MOST])
        mistakes.append(
            f"Namespace {namespace} has the ResourceQuota {named}, by which nothing is counted: its pods get GPUs by "
            f"claims (label {API_LABEL}). Write a quota on {DEVICES_QUOTA} instead, which counts GPUs and not GiB, or "
            f"label the Namespace {QUOTA_LABEL}: ignored"
        )
    return NamespaceRules(True, tuple(mistakes))


def _counts(key: str, units: ClusterUnits) -> bool:
    resource = key.removeprefix("requests.").removeprefix("limits.")
    return units.counts(resource) or resource.startswith(CLASS_PREFIX)
