# SPDX-License-Identifier: Apache-2.0
"""The Dataset objects that pods name, read one at a time when a pod asks: an idle service watches nothing.

What a pod may not name is answered as what is not there: a name tells nothing about other namespaces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gigaslice.core.dataset.errors import RequestError, SourceError
from gigaslice.core.dataset.objects import may_be_named, parse_dataset
from gigaslice.core.dataset.request import Check
from gigaslice.kubeapi.client import NOT_FOUND, ApiFailure, KubeClient
from gigaslice.kubeapi.dataset_paths import dataset_path
from gigaslice.roles.dataset_node.tasks.protocols import ResolvedDataset

__all__ = ["ClusterDatasets"]

_SECONDS = 5.0


class ClusterDatasets:
    """Reads Dataset objects through CLIENT. TRUSTED: the namespaces in which administrators alone write them."""

    def __init__(self, client: KubeClient, trusted: Collection[str] = ()) -> None:
        self._client = client
        self._trusted = frozenset(trusted)

    async def resolve(self, name: str, namespace: str) -> ResolvedDataset:
        """What NAME, or "NAMESPACE/NAME", stands for in a pod of NAMESPACE.

        Raises:
            RequestError: There is none that the pod may name, or it is invalid.
            SourceError: The API server does not answer; asked again later.
        """
        where, slash, short = name.rpartition("/")
        home = where if slash else namespace
        document = await self._read(home, short)
        if document is None or not may_be_named(document, home, namespace):
            hint = "" if slash else ", or write source: with the place of the data in its stead"
            raise RequestError(
                f"there is no Dataset {home}/{short} that pods of namespace {namespace} may name "
                f"(kubectl get datasets -n {home}); create it{hint}"
            )
        dataset = parse_dataset(document)
        return ResolvedDataset(
            dataset.source, Check(dataset.check), dataset.digest, home in self._trusted, f"{home}/{short}"
        )

    async def _read(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        try:
            answer = await self._client.request("GET", dataset_path(namespace, name), seconds=_SECONDS)
            return None if answer.status == NOT_FOUND else answer.document()
        except ApiFailure as failure:
            if failure.status == NOT_FOUND:
                return None
            raise SourceError(f"Dataset {namespace}/{name} not read: {failure}", retry=True) from failure
        except ValueError as error:
            raise SourceError(f"Dataset {namespace}/{name} not read: {error}", retry=True) from error
