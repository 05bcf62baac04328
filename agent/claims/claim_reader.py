# SPDX-License-Identifier: Apache-2.0
"""Claims as the API server has them at this moment: the kubelet names one, and what it is for has to be read.

Nothing watches claims: a node needs a claim once, when it is prepared, and whether it is still there at a start. So the
right to get single claims is enough.
"""

from __future__ import annotations

from typing import Protocol

from gigaslice.core.claims.resource_claim import ResourceClaim
from gigaslice.kubeapi.client import NOT_FOUND, ApiFailure, KubeClient, object_path

__all__ = ["ClaimReader", "KubeClaimReader"]


class ClaimReader(Protocol):
    """Reads claims."""

    async def read(self, namespace: str, name: str, seconds: float) -> ResourceClaim | None:
        """Returns the claim of that name, within so many seconds; None where there is none.

        Raises:
            ApiFailure: The API server does not say.
            ValueError: What it says makes no sense.
        """
        ...


class KubeClaimReader:
    """Reads claims from an API server."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def read(self, namespace: str, name: str, seconds: float) -> ResourceClaim | None:
        """Returns the claim of that name; None where there is none. Raises ApiFailure, ValueError."""
        path = object_path("apis", "resource.k8s.io", "v1", "namespaces", namespace, "resourceclaims", name)
        try:
            answer = await self._client.request("GET", path, seconds=seconds, patient=False)
        except ApiFailure as failure:
            if failure.status == NOT_FOUND:
                return None
            raise
        return ResourceClaim.parse(answer.document())
