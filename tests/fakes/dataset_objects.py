# SPDX-License-Identifier: Apache-2.0
"""An API server that has Dataset objects and nothing else, as `KubeClient` shows it."""

from __future__ import annotations

import json
from typing import Any

from gigaslice.kubeapi.client import ApiFailure, KubeAnswer

__all__ = ["DatasetApi"]

_PREFIX = "/apis/gigaslice.io/v1alpha1/namespaces/"


class DatasetApi:
    """asked: the paths of all requests. failure: raised in place of every answer."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.failure: ApiFailure | None = None

    def put(self, namespace: str, name: str, **spec: Any) -> None:
        """Creates or changes one; its source is s3://bucket/1 where none is given."""
        self.objects[f"{namespace}/datasets/{name}"] = {
            "metadata": {"namespace": namespace, "name": name, "uid": "u"},
            "spec": {"source": "s3://bucket/1", **spec},
        }

    def delete(self, namespace: str, name: str) -> None:
        del self.objects[f"{namespace}/datasets/{name}"]

    async def request(self, method: str, path: str, *, seconds: float | None = None) -> KubeAnswer:
        self.asked.append(path)
        if self.failure is not None:
            raise self.failure
        found = self.objects.get(path.removeprefix(_PREFIX))
        if found is None:
            raise ApiFailure("not found", 404)
        return KubeAnswer(200, json.dumps(found).encode())
