"""The node agent's client of the API server: that of the cluster's roles, with the agent's bound."""

from __future__ import annotations

import vcuda
from gigaslice.kubeapi.access import Access
from gigaslice.kubeapi.client import KubeClient

__all__ = ["node_client"]

_MOST_BYTES = (
    1 << 20
)  # of an answer that is no list and no watch; the longest is that to a change of the node


def node_client(access: Access, **seconds: float) -> KubeClient:
    """Returns a client. SECONDS: how long it waits, as of `KubeClient`."""
    return KubeClient(access, f"gigaslice-node/{vcuda.__version__}", most=_MOST_BYTES, **seconds)
