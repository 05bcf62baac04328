# SPDX-License-Identifier: Apache-2.0
"""Follows the namespaces' labels and the quotas in them: what admission needs to know of a namespace.

Every replica follows both, since every replica serves the webhook. Of a Namespace a few labels are kept, of the quotas
those that count something of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.kube.fields import object_at, text_at
from gigaslice.kubeapi.client import KubeClient
from gigaslice.kubeapi.informer import Informer
from gigaslice.roles.webhook.namespace_rules import (
    CountingQuota,
    NamespaceRules,
    namespace_rules,
    parse_labels,
    parse_quota,
)
from gigaslice.runtime.tasks import all_of

__all__ = ["NamespaceFeed"]

_Labelled = tuple[str, Mapping[str, str]]


class NamespaceFeed:
    """What is followed of namespaces.

    Args:
        client: The API server.
        units: What pods count in.
        default: The API where a namespace says nothing.
        pause: The first pause after a failure.
    """

    def __init__(self, client: KubeClient, units: ClusterUnits, default: str, *, pause: float = 0.25) -> None:
        self._default = default
        self._labels: dict[str, Mapping[str, str]] = {}
        self._quotas: dict[str, dict[str, CountingQuota]] = {}
        self.informers: dict[str, Informer[Any]] = {
            "namespaces": Informer(
                client, "/api/v1/namespaces", _parse_namespace, self._named, self._unnamed, pause=pause
            ),
            "resourcequotas": Informer(
                client,
                "/api/v1/resourcequotas",
                lambda document: parse_quota(document, units),
                self._bounded,
                self._unbounded,
                pause=pause,
            ),
        }

    async def run(self) -> None:
        """Works until cancelled."""
        await all_of(*(informer.run() for informer in self.informers.values()))

    def rules(self, namespace: str) -> NamespaceRules | None:
        """Returns what holds in a namespace; None where it has not been seen, or quotas have not."""
        labels = self._labels.get(namespace)
        if labels is None or not self.informers["resourcequotas"].synced.is_set():
            return None
        return namespace_rules(namespace, labels, self._quotas.get(namespace, {}).values(), self._default)

    def _named(self, labelled: _Labelled) -> None:
        name, labels = labelled
        self._labels[name] = labels

    def _unnamed(self, labelled: _Labelled) -> None:
        self._labels.pop(labelled[0], None)

    def _bounded(self, quota: CountingQuota) -> None:
        self._quotas.setdefault(quota.namespace, {})[quota.name] = quota

    def _unbounded(self, quota: CountingQuota) -> None:
        of_namespace = self._quotas.get(quota.namespace, {})
        of_namespace.pop(quota.name, None)
        if not of_namespace:
            self._quotas.pop(quota.namespace, None)


def _parse_namespace(document: Mapping[str, Any]) -> _Labelled:
    return text_at(object_at(document, "metadata"), "name"), parse_labels(document)
